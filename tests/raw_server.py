"""A server that sends exactly the bytes that a test gives it, at the pace that the test gives it, over TLS or not."""

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_SAFETY_S = 60.0


@dataclass
class RawServer:
    """`requests` are the bytes that each connection brought before the first answer went out."""

    port: int
    requests: list[bytes] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


def response(body: bytes, *, status: str = "200 OK", headers: Sequence[str] = ()) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def raw_server(
    content: bytes, *, pace_s: float = 0.0, greets: bool = False, tls: ssl.SSLContext | None = None
) -> Iterator[RawServer]:
    """Each connection gets `content` after its request, and is then closed. With a pace, byte by byte; one that
    greets does not wait for a request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = RawServer(listener.getsockname()[1])
        threads: list[threading.Thread] = []

        def answer(connection: socket.socket) -> None:
            connection.settimeout(_SAFETY_S)
            with suppress(OSError):  # the client has left
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                if not greets:
                    server.requests.append(_request(connection))
                if not pace_s:
                    connection.sendall(content)
                for byte in content if pace_s else b"":
                    if server.over.wait(pace_s):
                        return
                    connection.sendall(bytes([byte]))
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            connection.close()

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                if server.over.is_set():
                    connection.close()
                    return
                threads.append(threading.Thread(target=answer, args=(connection,), name="raw-connection"))
                threads[-1].start()

        acceptor = threading.Thread(target=accept, name="raw-accept")
        acceptor.start()
        try:
            yield server
        finally:
            server.over.set()
            socket.create_connection(("127.0.0.1", server.port)).close()
            for thread in (acceptor, *threads):
                thread.join(_SAFETY_S)
                assert not thread.is_alive()


def _request(connection: socket.socket) -> bytes:
    """The head and as much of a body as it announces."""
    received = b""
    while b"\r\n\r\n" not in received:
        block = connection.recv(65536)
        if not block:
            return received
        received += block
    head, _, body = received.partition(b"\r\n\r\n")
    announced = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while announced and len(body) < int(announced[0]):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body
