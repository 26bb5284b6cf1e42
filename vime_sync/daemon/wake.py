"""How a sleeping loop is woken: by a byte through a socket pair, which threads and signal handlers alike may send."""

from __future__ import annotations

import contextlib
import select
import socket


class Wake:
    def __init__(self) -> None:
        # An Event's lock could be held by the very thread that a signal handler interrupts; this has none.
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def poke(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake already
            self._writer.send(b"!")

    def wait(self, timeout_s: float) -> bool:
        """Sleep until poked, at most so long; whether it was poked. Pokes before the call count."""
        # Not select(): it knows no descriptor above 1023, and a pass may hold thousands of shards open.
        ready = self._poll.poll(max(0.0, timeout_s) * 1000)
        if ready:
            with contextlib.suppress(BlockingIOError):
                while self._reader.recv(4096):
                    pass
        return bool(ready)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
