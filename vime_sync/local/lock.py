"""The lock on LOCAL: flock on the file that the peers' receiver locks too (docs/FORMAT.md).

Held over plan, apply, commit and reload; released by the kernel when its holder dies, so a stale record of a
holder means nothing (FIELD_GUIDE H13). Only ever on the local side.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from itertools import takewhile
from pathlib import Path
from typing import IO

from vime_sync import fsio
from vime_sync.errors import LocalIOError, LockHeld
from vime_sync.local import fields
from vime_sync.local.paths import LocalPaths
from vime_sync.local.seal import parse_open, read_record

_POLL_S = 0.1
# The kernel's own limit, PID_MAX_LIMIT.
_MOST_PID = 1 << 22


@contextmanager
def hold(paths: LocalPaths, *, wait_s: float, check_stop: Callable[[], None]) -> Iterator[None]:
    """Hold the lock while the body runs. LOCAL/.weight_sync must exist.

    Raises LockHeld after `wait_s`, naming the holder; LocalIOError where the filesystem has no locks.
    """
    deadline = time.monotonic() + wait_s
    looked_again = False
    while True:
        file = _try(paths)
        if file is not None:
            break
        if time.monotonic() >= deadline:
            if not looked_again and not _listed(paths.lock):
                looked_again = True  # let go of since the try: nobody is to be blamed for it
                continue
            raise LockHeld(f"{paths.lock} is held by {describe_holder(paths)}; waited {wait_s:g} s for it")
        check_stop()
        time.sleep(_POLL_S)
    try:
        _record_holder(paths)
        yield
    finally:
        file.close()


def _try(paths: LocalPaths) -> IO[bytes] | None:
    """The locked file, or None while another process holds it."""
    while True:
        file = paths.lock.open("ab")  # the peers open it for writing; append never truncates
        try:
            if not _flock(file, paths.lock):
                file.close()
                return None
            # Whoever removed and made the file anew holds another inode: take the one the name means now.
            if _is_named(file, paths.lock):
                return file
        except BaseException:
            file.close()  # else this process would stand in its own way
            raise
        file.close()


def _flock(file: IO[bytes], place: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        raise LocalIOError(
            f"locking {place}: {problem.strerror}; expected a filesystem with flock",
            hint="Put LOCAL on this host's own disk or RAM disk.",
        ) from None
    return True


def _is_named(file: IO[bytes], place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), place.stat())
    except FileNotFoundError:
        return False


def _record_holder(paths: LocalPaths) -> None:
    document = {
        "pid": os.getpid(),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv[:2]),
    }
    with suppress(OSError):  # for people only: a full disk does not keep us from the lock
        fsio.write_atomic(paths.holder, json.dumps(document).encode(), durable=False)


def describe_holder(paths: LocalPaths) -> str:
    """Who holds the lock, from the kernel's list, and since when, from what the holder wrote (if it was ours)."""
    pid = _holder_pid(paths.lock)
    recorded_pid, since = _recorded_holder(paths)
    if pid is None:
        pid = recorded_pid
    if pid is None:
        return "another process"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        given = " ".join(takewhile(lambda word: not word.startswith("--"), words))
        command = "".join(character if character.isprintable() else " " for character in given).strip()[:120]
    except OSError:
        command = ""
    if pid != recorded_pid or since is None:
        since = _process_start(pid)
        since = f"it runs since {since}" if since else "since when is not known"
    else:
        since = f"since {since}"
    return f"process {pid} ({command or 'command not known'}), {since}"


def _recorded_holder(paths: LocalPaths) -> tuple[int | None, str | None]:
    """Process and time, None and None where the record says nothing that makes sense."""
    try:
        raw = read_record(paths.holder)
        recorded = {} if raw is None else parse_open(raw)
        since = datetime.fromisoformat(fields.word(recorded["since"])).isoformat(timespec="seconds")
        return fields.number(recorded["pid"], 1, _MOST_PID), since
    except (OSError, ValueError, KeyError, OverflowError):
        return None, None


def _holder_pid(lock: Path) -> int | None:
    """None also for a process that another container hides."""
    return next((int(pid) for pid in _listed(lock) if pid.isdigit() and int(pid)), None)


def _listed(lock: Path) -> list[str]:
    """Pids of the holders by proc_locks(5): `N: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`."""
    try:
        figures = lock.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    place = f"{os.major(figures.st_dev):02x}:{os.minor(figures.st_dev):02x}:{figures.st_ino}"
    listed = [line.split() for line in lines]
    return [words[4] for words in listed if len(words) >= 6 and words[1] == "FLOCK" and words[5] == place]


def _process_start(pid: int) -> str | None:
    try:
        changed = Path(f"/proc/{pid}").stat().st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(changed, timezone.utc).isoformat(timespec="seconds")
