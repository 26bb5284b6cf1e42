"""The daemon's HTTP side under rude clients, without resources, at its beginning and its end."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.toolkit_http import (
    SAFETY_S,
    SNAPSHOT,
    ask,
    ask_json,
    connect,
    everything_from,
    request_threads,
    wait_for_threads,
)
from vime_sync.daemon import http as daemon_http
from vime_sync.daemon.board import Board
from vime_sync.daemon.http import MAX_CONNECTIONS, MAX_HEAD_BYTES, HttpServer, serve
from vime_sync.daemon.metrics import Metrics
from vime_sync.errors import UsageError


@pytest.fixture
def board() -> Board:
    board = Board()
    board.put(SNAPSHOT)
    return board


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def server(board: Board, metrics: Metrics) -> Iterator[HttpServer]:
    with serve("127.0.0.1:0", board, metrics) as server:
        yield server


def test_a_bug_of_ours_is_counted_and_not_shown(
    server: HttpServer, board: Board, metrics: Metrics, capfd: pytest.CaptureFixture[str]
) -> None:
    board.put(replace(SNAPSHOT, document={"key": threading.Lock()}))
    status, document = ask_json(server, "/status")
    assert (status, document) == (500, {"error": "internal error"})
    assert 'vime_sync_errors_total{code="1",id="internal"} 1.0' in metrics.text()[0].decode()
    assert ask(server, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1 x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # somebody speaks TLS
        b"GET /<script> HTTP/1.1\r\n : \xff\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
    ids=lambda nonsense: repr(nonsense[:20]),
)
def test_nonsense_gets_a_short_answer_or_none(
    server: HttpServer, nonsense: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(server) as connection:
        connection.sendall(nonsense)
        received = everything_from(connection)
    assert not received or received.startswith((b"HTTP/1.0 4", b"HTTP/1.0 505", b'{"error"')), received
    for word in (b"Traceback", b"script", b"python", b"<html"):
        assert word not in received
    assert ask(server, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 100_000,
        b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000,
    ],
    ids=["line", "header", "headers"],
)
def test_a_head_without_end_is_cut_off(server: HttpServer, head: bytes) -> None:
    with connect(server) as connection:
        try:
            connection.sendall(head)
            received = everything_from(connection)
        except (BrokenPipeError, ConnectionResetError):
            received = b""  # it was closed while we still sent
    assert received == b"" or received.startswith(b"HTTP/1.0 431 ")
    assert ask(server, "/healthz")[0] == 200


def test_a_head_of_the_longest_size_is_read(server: HttpServer) -> None:
    head = b"GET /healthz HTTP/1.1\r\nA: \r\n\r\n"
    head = head.replace(b"A: ", b"A: " + b"x" * (MAX_HEAD_BYTES - len(head)))
    with connect(server) as connection:
        connection.sendall(head)
        assert everything_from(connection).startswith(b"HTTP/1.0 200 ")


def test_who_drips_bytes_is_cut_off_by_the_total_time(
    board: Board, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, the request never."""
    monkeypatch.setattr(daemon_http, "TIMEOUT_S", 0.3)
    stopped = threading.Event()
    with serve("0", board, metrics) as server, connect(server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nA: ")

        def drip() -> None:
            while not stopped.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert everything_from(connection) == b""
        except ConnectionResetError:
            pass
        finally:
            stopped.set()
            thread.join()
        monkeypatch.undo()  # a slow machine has its time again
        assert ask(server, "/healthz")[0] == 200


def test_who_says_nothing_is_cut_off(board: Board, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_http, "TIMEOUT_S", 0.2)
    with serve("0", board, metrics) as server, connect(server) as connection:
        assert everything_from(connection) == b""


def test_more_connections_than_allowed_are_turned_away_and_the_rest_served(server: HttpServer) -> None:
    held = [connect(server) for _ in range(MAX_CONNECTIONS)]
    wait_for_threads(MAX_CONNECTIONS + 1)
    for _ in range(3):
        with connect(server) as refused:
            assert everything_from(refused).startswith(b"HTTP/1.0 503 ")
    assert len(request_threads()) == MAX_CONNECTIONS + 1
    for connection in held:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert everything_from(connection).startswith(b"HTTP/1.0 200 ")
        connection.close()
    wait_for_threads(1)
    assert ask(server, "/healthz")[0] == 200


def test_a_client_that_goes_away_is_forgotten(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2 * MAX_CONNECTIONS):
        connection = connect(server)
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets
        connection.close()
    wait_for_threads(1)
    assert ask(server, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


# ---- beginning and end


def test_a_stop_ends_connections_and_threads(board: Board, metrics: Metrics) -> None:
    server = serve("0", board, metrics)
    held = [connect(server) for _ in range(3)]
    wait_for_threads(4)
    server.close()
    assert request_threads() == []
    for connection in held:
        assert everything_from(connection) == b""
        connection.close()
    with pytest.raises(ConnectionRefusedError):
        connect(server)
    server.close()


def test_the_port_is_free_again_at_once(board: Board, metrics: Metrics) -> None:
    with serve("0", board, metrics) as server:
        port = server.port
        assert ask(server, "/healthz")[0] == 200
    with serve(f"127.0.0.1:{port}", board, metrics) as server:
        assert server.port == port
        assert ask(server, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_wrong_usage_and_names_the_setting(server: HttpServer, board: Board) -> None:
    with pytest.raises(UsageError, match="in use") as caught:
        serve(f"127.0.0.1:{server.port}", board, Metrics())
    assert caught.value.code == 2
    assert caught.value.message.startswith(f"--http 127.0.0.1:{server.port}")
    assert "VIME_SYNC_HTTP" in caught.value.hint


@pytest.mark.parametrize("text", ["192.0.2.1:0", "name.invalid:0", "a..b:0", "é\udc80:0"])
def test_addresses_that_are_not_this_hosts(text: str, board: Board, metrics: Metrics) -> None:
    with pytest.raises(UsageError, match="cannot listen there"):
        serve(text, board, metrics)


def test_ipv6_is_listened_on(board: Board, metrics: Metrics) -> None:
    try:
        server = serve("[::1]:0", board, metrics)
    except UsageError as problem:
        pytest.skip(f"no IPv6 loopback on this machine: {problem}")
    with server, socket.create_connection(("::1", server.port), timeout=SAFETY_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert everything_from(connection).startswith(b"HTTP/1.0 200 ")


def test_listening_is_on_loopback_unless_told_otherwise(board: Board, metrics: Metrics) -> None:
    for address in ("0", ":0"):
        with serve(address, board, metrics) as server:
            assert server._listener.server_address[0] == "127.0.0.1"
