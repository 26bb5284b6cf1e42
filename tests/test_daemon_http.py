"""What the daemon answers over HTTP, asked by a real client."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.toolkit_http import READY, SNAPSHOT, ask, ask_json, connect, everything_from
from vime_sync.daemon.board import Board, Snapshot
from vime_sync.daemon.http import HttpServer, parse_address, serve
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


def test_a_ready_host_is_healthy(server: HttpServer) -> None:
    assert ask_json(server, "/healthz") == (200, {"ready": True})


def test_a_host_that_is_not_ready_says_why(server: HttpServer, board: Board) -> None:
    board.put(replace(SNAPSHOT, is_ready=False, reason="2 versions behind"))
    assert ask_json(server, "/healthz") == (503, {"ready": False, "reason": "2 versions behind"})


def test_before_the_first_pass_nothing_is_ready(server: HttpServer, board: Board) -> None:
    board.put(Snapshot())
    for path in ("/healthz", "/status"):
        status, document = ask_json(server, path)
        assert status == 503
        assert "first pass" in document["reason"]


def test_each_engine_is_ready_for_itself(server: HttpServer) -> None:
    assert ask_json(server, "/healthz/127.0.0.1:8000") == (200, {"ready": True, "state": "at_version", "version": 7})
    status, document = ask_json(server, "/healthz/gpu:8001")
    assert (status, document["ready"], document["reason"]) == (503, False, "the engine said 500")
    assert ask(server, "/healthz/GPU%3A8001")[0] == 503, "an address is one however it is written"


def test_an_unknown_engine_is_told_the_known_ones(server: HttpServer) -> None:
    status, document = ask_json(server, "/healthz/127.0.0.1:9")
    assert status == 404
    assert document["engines"] == ["127.0.0.1:8000", "gpu:8001"]


def test_all_engines_at_once(server: HttpServer, board: Board) -> None:
    status, document = ask_json(server, "/healthz/engines")
    assert (status, document["ready"]) == (503, False)
    assert [engine["engine"] for engine in document["engines"]] == ["127.0.0.1:8000", "gpu:8001"]
    board.put(replace(SNAPSHOT, engines=(READY,)))
    assert ask_json(server, "/healthz/engines")[0] == 200


def test_engines_that_share_an_address_are_ready_together(server: HttpServer, board: Board) -> None:
    board.put(replace(SNAPSHOT, engines=(READY, replace(READY, is_ready=False, error="the second hook said 500"))))
    status, document = ask_json(server, "/healthz/127.0.0.1:8000")
    assert (status, document["reason"]) == (503, "the second hook said 500")


def test_the_status_document_is_the_boards(server: HttpServer) -> None:
    assert ask_json(server, "/status") == (200, SNAPSHOT.document)


def test_metrics_are_for_prometheus(server: HttpServer, metrics: Metrics) -> None:
    metrics.polled()
    status, body, headers = ask(server, "/metrics?name=x")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b"\nvime_sync_polls_total 1.0\n" in body


def test_the_root_lists_the_paths(server: HttpServer) -> None:
    status, body, _ = ask(server, "/")
    assert status == 200
    for path in (b"/healthz ", b"/healthz/HOST:PORT", b"/status", b"/metrics"):
        assert path in body


@pytest.mark.parametrize("path", ["/nothing", "/healthzz", "/status/", "/../etc/passwd", "/%00", "*"])
def test_unknown_paths_are_not_found(server: HttpServer, path: str) -> None:
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize("path", ["/", "/healthz", "/status", "/metrics", "/nothing", "/healthz/nothing"])
def test_nothing_is_cached_and_head_is_get_without_a_body(server: HttpServer, path: str) -> None:
    status, body, headers = ask(server, path)
    head_status, head_body, head_headers = ask(server, path, "HEAD")
    assert (head_status, head_body) == (status, b"")
    assert int(headers["Content-Length"]) == len(body)
    assert head_headers["Content-Type"] == headers["Content-Type"]
    assert headers["Cache-Control"] == head_headers["Cache-Control"] == "no-store"
    assert "Python" not in headers["Server"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_nothing_can_be_changed_from_outside(server: HttpServer, method: str) -> None:
    status, _, headers = ask(server, "/healthz", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_a_client_may_send_all_of_a_refused_body(server: HttpServer) -> None:
    """Many only look for the answer when they have sent everything; a closed connection would reset theirs."""
    with connect(server) as connection:
        connection.sendall(b"POST /healthz HTTP/1.1\r\nContent-Length: 30000\r\n\r\n")
        received = everything_from(connection)
        for _ in range(20):
            connection.sendall(b"x" * 1000)
            threading.Event().wait(0.002)  # a reset would have come by the next one
    assert received.startswith(b"HTTP/1.0 405 ")
    assert b"not allowed" in received


# ---- addresses


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9178", ("127.0.0.1", 9178)),
        (":9178", ("127.0.0.1", 9178)),
        (" 0.0.0.0:80 ", ("0.0.0.0", 80)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9178", ("::1", 9178)),
        ("[::]:65535", ("::", 65535)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":", "host", "host:", "1:2:3", "::1:9178", "[::1]", "[::1]9178", "[host]:1", "[]:1", "h:65536", "h:-1", "h:٣"],
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--http"):
        parse_address(text)
