"""Tells the service manager how the daemon fares, as sd_notify(3) says: datagrams to the socket in NOTIFY_SOCKET.

Without a service manager all of it is silently nothing, and no trouble with it ever reaches the daemon. There is no
thread here, and there must be none that pings: the watchdog is to see a loop that hangs, so `progress` is called
from where work advances.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
# Several pings in the manager's time, so that one that comes late, or is lost, does no harm.
_PINGS_PER_TIMEOUT = 4
# A manager that takes nothing holds up nobody for longer.
_SEND_TIMEOUT_S = 1.0
_MAX_STATUS_CHARACTERS = 300


class Notifier:
    """Every method may be called from any thread, at any time, and never raises.

    `address` is a path, or a name in the abstract namespace with `@` for its first byte; None: nobody listens.
    `watchdog_timeout_s` is after how long without a ping the manager kills the service; None: never.
    """

    def __init__(
        self,
        address: str | None = None,
        watchdog_timeout_s: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = _place(address)
        self._clock = clock
        self._ping_interval_s = None if watchdog_timeout_s is None else watchdog_timeout_s / _PINGS_PER_TIMEOUT
        self._guard = threading.Lock()
        self._next_ping_s = -math.inf
        self._status = ""
        # Made now: later there might be no descriptor left, and the watchdog would kill a daemon that works.
        self._socket = _datagram_socket() if self._place is not None else None

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Takes the variables out: a command that the daemon starts must not speak for it."""
        address, timeout_usec, watchdog_pid = (environ.pop(name, None) for name in _VARIABLES)
        is_for_us = watchdog_pid is None or watchdog_pid == str(os.getpid())
        return cls(address, _seconds(timeout_usec) if is_for_us else None)

    def ready(self) -> None:
        """The loop runs; also said when a reload of the settings is over."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Settings are read again; to be followed by `ready`."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for people, as `systemctl status` shows it; the same one again is not sent."""
        line = " ".join(text.split())[:_MAX_STATUS_CHARACTERS]
        with self._guard:
            if line == self._status:
                return
            self._status = line
        self._send(f"STATUS={line}")

    def progress(self) -> None:
        """Work advanced. Cheap: it is called for every tensor, and pings now and then."""
        if self._ping_interval_s is None:
            return
        now_s = self._clock()
        with self._guard:
            if now_s < self._next_ping_s:
                return
            self._next_ping_s = now_s + self._ping_interval_s
        self._send("WATCHDOG=1")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _send(self, message: str) -> None:
        if self._socket is not None and self._place is not None:
            with suppress(OSError):
                self._socket.sendto(message.encode("utf-8", "replace"), self._place)


def _place(address: str | None) -> bytes | None:
    if address is None or address[:1] not in ("/", "@"):  # other kinds are for virtual machines
        return None
    place = os.fsencode(address)
    return b"\0" + place[1:] if place.startswith(b"@") else place


def _datagram_socket() -> socket.socket | None:
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return None
    made.settimeout(_SEND_TIMEOUT_S)
    return made


def _seconds(usec: str | None) -> float | None:
    if usec is None or not usec.isascii() or not usec.isdigit() or int(usec[:18]) == 0:
        return None
    return int(usec[:18]) / 1e6
