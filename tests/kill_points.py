"""Kills that strike at a chosen operation, in this process, and what a run opens and reads.

A real kill runs no undo code: once `KillSwitch` has struck, every further durable operation raises too, so that
nothing of the run reaches the disk any more, whatever its `finally` blocks try. A page cache survives a kill, so
what was written before stays.
"""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from tests.toolkit import Result
from vime_sync import fsio

PULL_THREADS = ("--threads", "1")  # one writer: the n-th write to a shard is the same one in every run


class Killed(BaseException):
    """Stands for SIGKILL: no handler of ordinary failures may see it."""


Matching = Callable[[str, Path], bool]


def every_operation(operation: str, path: Path) -> bool:
    """The default of `KillSwitch`: all durable operations count."""
    return True


def shard_writes(local: Path) -> Matching:
    """Writes into a live shard of LOCAL: the moments when bytes are between two versions."""

    def matching(operation: str, path: Path) -> bool:
        return operation == "write" and path.suffix == ".safetensors" and path.is_relative_to(local)

    return matching


def operations(operation: str, suffix: str) -> Matching:
    """Operations of one kind on paths that end so."""

    def matching(seen: str, path: Path) -> bool:
        return seen == operation and str(path).endswith(suffix)

    return matching


class KillSwitch:
    """An observer that dies before the `at`-th matching operation (0 is the first; None never does).

    `also` sees every operation that is done.
    """

    def __init__(
        self, at: int | None, matching: Matching = every_operation, also: fsio.Observer = lambda operation, path: None
    ) -> None:
        self.at = at
        self._also = also
        self.seen = 0
        self.struck = False
        self._matching = matching
        self._guard = threading.Lock()

    def __call__(self, operation: str, path: Path) -> None:
        with self._guard:
            if self.struck:
                raise Killed
            if self._matching(operation, path):
                if self.seen == self.at:
                    self.strike()
                self.seen += 1
            self._also(operation, path)

    def strike(self) -> None:
        """From here on the process is dead."""
        self.struck = True
        raise Killed


@contextmanager
def observing(observer: fsio.Observer) -> Iterator[None]:
    """Every durable operation is shown to `observer` before it is done."""
    before = fsio.observer
    fsio.observer = observer
    try:
        yield
    finally:
        fsio.observer = before


def run_until_killed(run: Callable[[], Result], switch: KillSwitch) -> Result | None:
    """The outcome of a run under the switch; None when it was killed."""
    with observing(switch):
        try:
            result = run()
        except Killed:
            return None
    return None if switch.struck else result


def kill(run: Callable[[], Result], at: int, matching: Matching = every_operation) -> None:
    """Let a run die before its `at`-th matching operation. It must come that far."""
    switch = KillSwitch(at, matching)
    assert run_until_killed(run, switch) is None, f"only {switch.seen} operations, wanted to die at number {at}"


def count_operations(run: Callable[[], Result], matching: Matching = every_operation) -> int:
    """How many matching operations an undisturbed run does."""
    switch = KillSwitch(None, matching)
    run_until_killed(run, switch)
    return switch.seen


def kill_tearing(run: Callable[[], Result], local: Path, at: int, keep: Callable[[int], int]) -> bool:
    """Let a run die inside its `at`-th write to a live shard: of `size` bytes the first `keep(size)` arrive.

    False where it ended before it came that far.
    """
    switch = KillSwitch(None)
    matching = shard_writes(local)
    write_at = fsio.File.write_at
    seen = 0

    def torn_write(file: fsio.File, view: memoryview, offset: int) -> None:
        nonlocal seen
        if not matching("write", file.path):
            write_at(file, view, offset)
            return
        if seen == at:
            write_at(file, view[: keep(len(view))], offset)
            switch.strike()
        seen += 1
        write_at(file, view, offset)

    with mock.patch.object(fsio.File, "write_at", torn_write):
        return run_until_killed(run, switch) is None


class Trace:
    """What was opened (by anything in this process) and how many bytes were read through fsio, by path."""

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()
        self.read_bytes: Counter[str] = Counter()

    def opens(self, directory: Path, suffix: str = "") -> list[str]:
        """The files below a directory that were opened."""
        prefix = str(directory) + os.sep
        return sorted(path for path in self.opened if path.startswith(prefix) and path.endswith(suffix))

    def bytes_from(self, directory: Path, suffix: str = "") -> int:
        """How many bytes were read of the files below a directory."""
        prefix = str(directory) + os.sep
        return sum(size for path, size in self.read_bytes.items() if path.startswith(prefix) and path.endswith(suffix))


_traces: list[Trace] = []
_hooked = False


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hooks stay for good, so there is one, and it is idle while nobody traces."""
    if _traces and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.fsdecode(arguments[0])
        for trace in _traces:
            trace.opened[path] += 1


@contextmanager
def tracing() -> Iterator[Trace]:
    """Trace all opens and reads while the body runs."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    trace = Trace()
    guard = threading.Lock()
    read_into, read_up_to = fsio.File.read_into, fsio.File.read_up_to

    def counted_read_into(file: fsio.File, view: memoryview, offset: int) -> None:
        size = len(view)
        read_into(file, view, offset)
        with guard:
            trace.read_bytes[str(file.path)] += size

    def counted_read_up_to(file: fsio.File, size_bytes: int, offset: int) -> bytes:
        piece = read_up_to(file, size_bytes, offset)
        with guard:
            trace.read_bytes[str(file.path)] += len(piece)
        return piece

    _traces.append(trace)
    try:
        with (
            mock.patch.object(fsio.File, "read_into", counted_read_into),
            mock.patch.object(fsio.File, "read_up_to", counted_read_up_to),
        ):
            yield trace
    finally:
        _traces.remove(trace)


def reboot(monkeypatch: pytest.MonkeyPatch, name: str = "11111111-2222-3333-4444-555555555555") -> None:
    """From here on the host has been booted again, for every module that asks."""
    found = [
        module
        for module_name, module in list(sys.modules.items())
        if module_name.partition(".")[0] == "vime_sync" and hasattr(module, "boot_id")
    ]
    assert found, "no module asks for the boot id"
    for module in found:
        monkeypatch.setattr(module, "boot_id", lambda: name)


def no_disk_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill keeps the page cache: sweeps over many kills need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
