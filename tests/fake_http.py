"""HTTP of the fake servers: a listening socket with its connections and threads, calls in, answers out.

One `Life` is one life of a server's process. Closing it refuses new connections and cuts the open ones; joining
it leaves no thread and no socket behind. What is answered to which call is not decided here.
"""

import json
import os
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

POLL_S = 0.02
JOIN_TIMEOUT_S = 30.0


class Hangup(Exception):
    """The connection is dropped without an answer."""


@dataclass(frozen=True)
class Call:
    """One request as it came in; `body` is the decoded JSON, the bytes if they are none, None if empty."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What goes back: a body of bytes as it is, any other as JSON, None as an empty one.

    `closes`: the connection is closed right after, without having said so.
    """

    status: int = 200
    body: Any = None
    closes: bool = False


class Exchange:
    """One call being answered, with the means to see that nobody waits for the answer any more."""

    def __init__(self, call: Call, connection: socket.socket, life: "Life") -> None:
        self.call = call
        self.connection = connection
        self.life = life

    def client_gone(self) -> bool:
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            return True

    def wait(self, event: threading.Event) -> None:
        """Until the event is set; `Hangup` if the client goes or the server stops before."""
        while not event.wait(POLL_S):
            self.leave_if_over()

    def leave_if_over(self) -> None:
        if self.life.stopping.is_set() or self.client_gone():
            raise Hangup


class Life:
    """One life of the server's process: a listening socket, its connections and its threads."""

    def __init__(self, port: int, serve: Callable[[socket.socket, "Life"], None]) -> None:
        self.stopping = threading.Event()
        self._serve = serve
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, bool] = {}  # True while a call is being answered
        self._threads: list[threading.Thread] = []
        self._listener = bound_socket(port)
        self._listener.listen(128)
        self._acceptor = threading.Thread(target=self._accept, name=f"fake-accept-{port}", daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # shut down
                self._listener.close()
                return
            with self._lock:
                if self.stopping.is_set():
                    connection.close()
                    continue
                self._connections[connection] = False
                thread = threading.Thread(target=self._run, args=(connection,), name="fake-connection", daemon=True)
                self._threads = [known for known in self._threads if known.is_alive()]
                self._threads.append(thread)
                thread.start()

    def _run(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._serve(connection, self)
        finally:
            with self._lock:
                del self._connections[connection]
            os.close(connection.detach())  # whatever files were made of it

    def busy(self, connection: socket.socket, busy: bool) -> None:
        with self._lock:
            self._connections[connection] = busy

    def close(self, *, answers_go_out: bool = False) -> None:
        """Refuse connections from now on and cut the open ones, maybe not those that are being answered."""
        self.stopping.set()
        _shut(self._listener)
        with self._lock:
            for connection, busy in self._connections.items():
                if not (busy and answers_go_out):
                    _shut(connection)

    def join(self) -> None:
        with self._lock:
            threads = [self._acceptor, *self._threads]
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)
            assert not thread.is_alive(), f"{thread.name} does not end"


def bound_socket(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # not connected, or closed already


def decoded(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def send(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    content = answer.body
    if not isinstance(content, bytes):
        content = b"" if content is None else json.dumps(content, separators=(",", ":")).encode()
    handler.send_response(answer.status)
    if not isinstance(answer.body, bytes):
        handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
    handler.wfile.flush()
    handler.close_connection = handler.close_connection or answer.closes
