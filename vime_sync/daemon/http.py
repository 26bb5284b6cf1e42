"""The daemon's HTTP side: what the board and the metrics say, for load balancers, people and Prometheus.

It only reads, and nobody who asks can hold up the loop or the host: one request per connection, its head bounded in
bytes and in time, a bounded number of connections, answers from the last snapshot. Tells no client what went wrong
inside, and writes no log.
"""

from __future__ import annotations

import io
import socket
import socketserver
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from vime_sync.daemon.answers import Answer, answer, json_answer
from vime_sync.daemon.board import Board
from vime_sync.daemon.metrics import Metrics
from vime_sync.errors import SyncError, UsageError

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 32
MAX_HEAD_BYTES = 16 << 10
# From the connection to the end of the request's head, and then again for its answer.
TIMEOUT_S = 5.0
_HINT = "Give --http ADDR:PORT (or VIME_SYNC_HTTP) another address; PORT alone is on the loopback interface."
# How often the thread that accepts looks whether to stop, should nothing wake it.
_STOP_POLL_S = 0.5
_NO_DESCRIPTORS_PAUSE_S = 0.2
_MAX_DRAINED_BYTES = 64 << 10


def parse_address(text: str) -> tuple[str, int]:
    """`ADDR:PORT`, `[IPV6]:PORT`, and `:PORT` or `PORT` on the loopback interface. Raises UsageError."""
    host, _, port_text = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    port_is_right = port_text.isascii() and port_text.isdigit() and len(port_text) <= 5 and int(port_text) <= 65535
    if not port_is_right or (":" in host and not bracketed) or (bracketed and ":" not in host):
        raise UsageError(f"--http {text!r}, expected ADDR:PORT, [IPV6]:PORT or PORT", hint=_HINT)
    if bracketed:
        host = host[1:-1]
    return host or LOOPBACK, int(port_text)


def serve(address: str, board: Board, metrics: Metrics) -> HttpServer:
    """Listen at `address` (see `parse_address`) and answer until `close`. Raises UsageError where it cannot listen."""
    host, port = parse_address(address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return HttpServer(_Listener(family, place, board, metrics))
    except (OSError, UnicodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise UsageError(f"--http {address}: cannot listen there: {reason}", hint=_HINT) from None


class HttpServer:
    """Answers in threads of its own. As a context manager it is closed at the end."""

    def __init__(self, listener: _Listener) -> None:
        self._listener = listener
        self._thread = threading.Thread(
            target=listener.serve_forever, args=(_STOP_POLL_S,), name="vime-sync-http", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The real one, also where port 0 was asked for."""
        return int(self._listener.server_address[1])

    def close(self) -> None:
        """Stop listening, end every connection, and wait for all threads; twice is once."""
        self._listener.wake_to_stop()
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()
        self._listener.end_connections()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Listener(ThreadingHTTPServer):
    """Accepts up to MAX_CONNECTIONS at once and knows the threads that answer them."""

    daemon_threads = True
    request_queue_size = 2 * MAX_CONNECTIONS

    def __init__(self, family: int, place: Any, board: Board, metrics: Metrics) -> None:
        self.board = board
        self.metrics = metrics
        self.address_family = socket.AddressFamily(family)
        self._is_stopping = False
        self._guard = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        """Without the name look-up of HTTPServer, which can hang, and whose result nobody uses."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            if not self._is_stopping:  # no descriptors left: the connection stays pending, and would be tried at once
                time.sleep(_NO_DESCRIPTORS_PAUSE_S)
            raise

    def wake_to_stop(self) -> None:
        """A listening socket that was shut down looks readable, so the thread that accepts comes round at once."""
        self._is_stopping = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._answer, args=(request, client_address), name="vime-sync-http-request", daemon=True
        )
        with self._guard:
            is_taken = len(self._connections) < MAX_CONNECTIONS
            if is_taken:
                self._connections[thread] = request
        if not is_taken:
            _turn_away(request)
            self.shutdown_request(request)
            return
        try:
            thread.start()
        except RuntimeError:  # no more threads for this process
            self._forget(thread)
            self.shutdown_request(request)

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            self._forget(threading.current_thread())

    def _forget(self, thread: threading.Thread) -> None:
        with self._guard:
            self._connections.pop(thread, None)

    def end_connections(self) -> None:
        with self._guard:
            connections = dict(self._connections)
        for connection in connections.values():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in connections:
            thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away; bugs are counted where they happen. The standard way prints a traceback."""


class _TooLong(HTTPException):
    """The head of a request is longer than it may be."""


class _Head(io.RawIOBase):
    """What a client sends, up to a number of bytes and a moment: one that drips bytes ends there too."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + TIMEOUT_S
        self._left_bytes = MAX_HEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left_bytes <= 0:
            raise _TooLong
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        size_bytes = self._connection.recv_into(memoryview(buffer)[: self._left_bytes])
        self._left_bytes -= size_bytes
        return size_bytes


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request: the protocol stays HTTP/1.0."""

    server: _Listener
    timeout = TIMEOUT_S
    command = ""
    requestline = ""
    request_version = "HTTP/1.0"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Head(self.connection), 4096)

    def handle(self) -> None:
        try:
            super().handle()
        except _TooLong:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def do_GET(self) -> None:
        try:
            path = unquote(self.path.partition("?")[0])
            found = answer(path, self.server.board.snapshot, self.server.metrics)
        except Exception as problem:  # a bug of ours: no business of the client's, and no reason to stop the daemon
            self.server.metrics.failed(SyncError(f"answering {self.path}: {problem}"))
            found = json_answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "internal error"})
        self._send(found)

    do_HEAD = do_GET

    def _send(self, found: Answer) -> None:
        self.connection.settimeout(TIMEOUT_S)
        self.send_response(found.status)
        self.send_header("Content-Type", found.content_type)
        self.send_header("Content-Length", str(len(found.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        if found.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the request parser refuses, without its page and its words about the request."""
        # It answers 501 to a method that the handler lacks.
        status = HTTPStatus.METHOD_NOT_ALLOWED if code == HTTPStatus.NOT_IMPLEMENTED else HTTPStatus(code)
        self.close_connection = True
        self._send(json_answer(status, {"error": status.phrase.lower()}))
        self._drain()

    def _drain(self) -> None:
        """Closing with bytes unread would reset the connection, and the client might never see the answer."""
        deadline = time.monotonic() + 1.0
        left_bytes = _MAX_DRAINED_BYTES
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while left_bytes > 0 and (left_s := deadline - time.monotonic()) > 0:
                self.connection.settimeout(left_s)
                received_bytes = len(self.connection.recv(min(left_bytes, 4096)))
                if received_bytes == 0:
                    break
                left_bytes -= received_bytes

    def version_string(self) -> str:
        return "vime-sync"

    def log_message(self, format: str, *arguments: Any) -> None:
        """No access log: probes come every second."""


def _turn_away(connection: socket.socket) -> None:
    """In the thread that accepts: a fresh connection takes these few bytes at once, or gets none."""
    with suppress(OSError):
        connection.setblocking(False)
        connection.send(b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
