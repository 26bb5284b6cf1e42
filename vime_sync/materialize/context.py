"""What every job of this package needs: where, how many threads, when to stop, whom to tell."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from vime_sync.errors import Interrupted
from vime_sync.format.codec import Bytes
from vime_sync.local.journal import BLOCK_BYTES
from vime_sync.local.paths import LocalPaths

_MAX_DEFAULT_THREADS = 16


def default_threads() -> int:
    """One per core this process may use, capped: the engines on this host need cores too (FIELD_GUIDE H18)."""
    return max(1, min(_MAX_DEFAULT_THREADS, len(os.sched_getaffinity(0))))


class StopFlag:
    """Set by a signal handler; work asks at safe points."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self.signal_name = ""

    def check(self) -> None:
        """Raises Interrupted once a signal has asked for a stop."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number, self.signal_name)


class Tally:
    """Counts of one pass, added to from many threads; `listener` hears each addition (phase, tensors, bytes)."""

    def __init__(self, listener: Callable[[str, int, int], None] | None = None) -> None:
        self._listener = listener
        self._guard = threading.Lock()
        self.bytes_read = 0
        self.bytes_written = 0

    def add(self, *, read: int = 0, written: int = 0) -> None:
        with self._guard:
            self.bytes_read += read
            self.bytes_written += written
            if self._listener is not None:
                self._listener("", 0, 0)  # bytes go by, though no tensor is done yet

    def start(self, phase: str, tensors: int, size_bytes: int) -> None:
        if self._listener is not None:
            self._listener(f"start:{phase}", tensors, size_bytes)

    def beat(self, phase: str) -> None:
        """Still at it, with nothing to count."""
        if self._listener is not None:
            with self._guard:
                self._listener(phase, 0, 0)

    def advance(self, phase: str, size_bytes: int) -> None:
        if self._listener is not None:
            with self._guard:
                self._listener(phase, 1, size_bytes)


@dataclass(frozen=True)
class Context:
    """How one process works on one LOCAL."""

    paths: LocalPaths
    threads: int = field(default_factory=default_threads)
    stop: StopFlag = field(default_factory=StopFlag)
    tally: Tally = field(default_factory=Tally)
    durable: bool = False


class Buffers:
    """One thread's blocks, reused from tensor to tensor: memory is threads x blocks (promise 8)."""

    def __init__(self) -> None:
        self.current: Bytes = np.empty(BLOCK_BYTES, np.uint8)
        self.scratch: Bytes = np.empty(BLOCK_BYTES, np.uint8)
