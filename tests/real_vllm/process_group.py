"""Processes of a story: awaited, and ended with all their children and everything that they leave behind."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# A safety net only: nothing is expected to take this long.
PATIENCE_S = 180.0
_POLL_S = 0.05
_SHARED_MEMORY = "/dev/shm/"
_TRACKER = "multiprocessing.resource_tracker"

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> Found:
    """The first answer of `look` that is not None (or False); fails with `what` when none comes."""
    deadline = time.monotonic() + patience_s
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s in vain: {what() if callable(what) else what}"
        time.sleep(_POLL_S)


def members(group: int) -> list[int]:
    """The living processes of a group; what is dead and not yet fetched by its parent does not count."""
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            fields = (directory / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(directory.name))
    return found


def end_group(group: int) -> None:
    """SIGKILL to all of it; returns when none is left.

    What tracks the shared memory of the others comes last: it gives back theirs when they are gone.
    """

    def others() -> list[int]:
        return [pid for pid in members(group) if _TRACKER not in _title(pid)]

    segments = _segments(group)
    until(lambda: not _kill(others()), lambda: f"the processes {others()} do not die")
    with contextlib.suppress(AssertionError):
        until(lambda: not members(group), "", patience_s=10)
    until(lambda: not _kill(members(group)), lambda: f"the processes {members(group)} do not die")
    for segment in segments:
        segment.unlink(missing_ok=True)


def _kill(pids: list[int]) -> list[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    except OSError:
        return ""


def _segments(group: int) -> set[Path]:
    """Processes that are killed leave their shared memory to nobody."""
    found: set[Path] = set()
    for pid in members(group):
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        places = [line.partition(_SHARED_MEMORY)[2] for line in maps.splitlines() if _SHARED_MEMORY in line]
        found.update(Path(_SHARED_MEMORY, place) for place in places if place and not place.endswith("(deleted)"))
    return found
