"""What a process that writes needs: signals that stop it at a safe point, and enough open files."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vime_sync.materialize.context import StopFlag

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = "\x1b[?25h\n"


@contextmanager
def stoppable() -> Iterator[StopFlag]:
    """TERM and INT stop the work at its next safe point; a second one ends the process at once (recovery covers it)."""
    flag = StopFlag()

    def stop(number: int, frame: FrameType | None) -> None:
        if flag.signal_number is not None:
            _leave_terminal()
            os._exit(128 + number)
        flag.signal_number = number

    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.signal(number, stop) for number in _STOPPING}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    """The progress bar hid the cursor. The signal may have come in the middle of a write: then it stays hidden."""
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            sys.stderr.write(_SHOW_CURSOR)
            sys.stderr.flush()


def allow_many_files() -> None:
    """A pass keeps every shard it works on open: take all that the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a hard limit above what the kernel allows now
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
