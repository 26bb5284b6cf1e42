"""What the fake engines of the tests share: a server that a test starts, stops, asks and spoils.

It is started and stopped as often as a test likes, always on the port it got at first; while it is down,
connections are refused. Every call is recorded in order. It leaves no thread and no socket behind. What is
answered to which call is the subclasses' business.
"""

import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, urlsplit

from tests.fake_http import POLL_S, Answer, Call, Exchange, Hangup, Life, bound_socket, decoded, send

Server = TypeVar("Server", bound="FakeServer")


@dataclass
class Fault:
    """What goes wrong with the calls to one path, `times` times or until the test takes it away.

    It happens before the engine does anything, or after it did (`when`). With a status, a body, a size, a trickle
    or a closed connection it takes the place of the engine's answer, and with "before" the engine then does
    nothing; a fault that only waits (`hang` until the event is set, `slow_s` seconds) just delays.
    """

    status: int | None = None
    body: Any = None
    times: int | None = None
    when: Literal["before", "after"] = "before"
    hang: threading.Event | None = None
    slow_s: float = 0.0
    close: bool = False  # no answer, the connection is closed
    trickle: bool = False  # a body that never ends, a byte at a time
    huge_bytes: int = 0  # a body of that many spaces
    reached: threading.Event = field(default_factory=threading.Event)  # set when a call met it
    taken: int = 0

    @property
    def replaces(self) -> bool:
        return self.status is not None or self.body is not None or self.close or self.trickle or self.huge_bytes > 0


class FakeServer:
    """A server under the test's control: a context manager that is up from `with` to its end."""

    def __init__(self, *, port: int = 0) -> None:
        # Bound, never listening: nobody else is given the port while the server is down.
        self._reserved = bound_socket(port)
        self.port: int = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.calls: list[Call] = []
        self.faults: dict[str, Fault] = {}
        self._called = threading.Condition()
        self._life: Life | None = None
        self._broke: list[BaseException] = []  # mistakes of the fake itself

    def answer(self, exchange: Exchange) -> Answer:
        """What the server does and says; subclasses'."""
        raise NotImplementedError

    def boot(self) -> None:
        """Subclasses: what a fresh process does before it takes calls."""

    def halt(self) -> None:
        """Subclasses: let go of every call that waits for something."""

    def start(self) -> None:
        if self._life is not None:
            self.stop()  # a dead one may lie around
        self.boot()
        self._life = Life(self.port, self._serve)

    def stop(self) -> None:
        """As SIGKILL to the process, except that a thread in the middle of something is waited for."""
        if self._life is not None:
            self._life.close()
            self.halt()
            self._life.join()
            self._life = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def __enter__(self: Server) -> Server:
        try:
            self.start()
        except BaseException:
            self._reserved.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._reserved.close()
        if kind is None and self._broke:
            raise self._broke[0]

    def die(self) -> None:
        """The process ends by itself: answers being given go out, then nothing listens any more."""
        if self._life is not None:
            self._life.close(answers_go_out=True)
        self.halt()

    def told(self, path: str | None = None) -> list[str]:
        """The calls so far as "METHOD /path", all of them or those to one path."""
        return [f"{call.method} {call.path}" for call in list(self.calls) if path in (None, call.path)]

    def wait_for_calls(self, path: str, count: int = 1, *, timeout_s: float = 30.0) -> list[Call]:
        """The calls to a path once there are that many."""

        def found() -> list[Call]:
            return [call for call in self.calls if call.path == path]

        with self._called:
            arrived = self._called.wait_for(lambda: len(found()) >= count, timeout_s)
        assert arrived, f"{len(found())} calls to {path}, not {count}"
        return found()

    def _serve(self, connection: socket.socket, life: Life) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                life.busy(connection, True)
                try:
                    fake._handle(self, connection, life)
                except (Hangup, OSError):
                    self.close_connection = True
                finally:
                    self.close_connection = self.close_connection or life.stopping.is_set()
                    life.busy(connection, False)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, format: str, *arguments: Any) -> None:
                """Silent."""

        try:
            Handler(connection, connection.getpeername(), None)  # type: ignore[arg-type]
        except OSError:
            return  # cut in the middle

    def _handle(self, handler: BaseHTTPRequestHandler, connection: socket.socket, life: Life) -> None:
        address = urlsplit(handler.path)
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        call = Call(handler.command, address.path, query, decoded(raw), dict(handler.headers.items()))
        exchange = Exchange(call, connection, life)
        with self._called:
            self.calls.append(call)
            fault = self._fault(call.path)
            self._called.notify_all()
        if fault is not None and fault.when == "before" and self._spoil(fault, exchange, handler):
            return
        try:
            answer = self.answer(exchange)
        except Hangup:
            raise
        except Exception as error:
            self._broke.append(error)
            answer = Answer(500, {"fake": repr(error)})
        if fault is None or fault.when == "before" or not self._spoil(fault, exchange, handler):
            send(handler, answer)

    def _fault(self, path: str) -> Fault | None:
        fault = self.faults.get(path)
        if fault is None or (fault.times is not None and fault.taken >= fault.times):
            return None
        fault.taken += 1
        return fault

    def _spoil(self, fault: Fault, exchange: Exchange, handler: BaseHTTPRequestHandler) -> bool:
        """Do what the fault says; whether it took the place of the answer."""
        fault.reached.set()
        if fault.hang is not None:
            exchange.wait(fault.hang)
        if fault.slow_s:
            exchange.life.stopping.wait(fault.slow_s)
        if not fault.replaces:
            return False
        if fault.close:
            raise Hangup
        if fault.trickle or fault.huge_bytes:
            _send_without_end(handler, exchange, fault)
        else:
            send(handler, Answer(fault.status or 200, fault.body))
        return True


def _send_without_end(handler: BaseHTTPRequestHandler, exchange: Exchange, fault: Fault) -> None:
    handler.close_connection = True
    handler.send_response(fault.status or 200)
    handler.send_header("Connection", "close")
    handler.end_headers()
    left = fault.huge_bytes
    while fault.trickle or left > 0:
        block = b" " if fault.trickle else b" " * min(left, 1 << 16)
        handler.wfile.write(block)
        handler.wfile.flush()
        left -= len(block)
        if fault.trickle:
            exchange.leave_if_over()
            time.sleep(POLL_S)
