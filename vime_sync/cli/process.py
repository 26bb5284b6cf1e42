"""What a process that writes needs: signals that stop it at a safe point, and enough open files."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from vime_sync.materialize.context import StopFlag

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = "\x1b[?25h\n"


@contextmanager
def stoppable(wake: Callable[[], None] = lambda: None) -> Iterator[StopFlag]:
    """TERM and INT stop the work at its next safe point; a second one ends the process at once (recovery covers it).

    `wake` is called when the first one came, for who sleeps: it must be safe in a signal handler.
    """
    flag = StopFlag()

    def stop(number: int, frame: FrameType | None) -> None:
        if flag.signal_number is not None:
            _leave_terminal()
            os._exit(128 + number)
        flag.signal_name = signal.Signals(number).name
        flag.signal_number = number
        wake()

    with _handling(dict.fromkeys(_STOPPING, stop)):
        yield flag


@contextmanager
def on_signal(number: int, action: Callable[[], None]) -> Iterator[None]:
    """Have `action` done in the handler of a signal while the body runs."""
    with _handling({number: lambda received, frame: action()}):
        yield


@contextmanager
def _handling(handlers: Mapping[int, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
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
