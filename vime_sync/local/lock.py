"""The lock on LOCAL: flock on the file that the peers' receiver locks too (docs/FORMAT.md).

Held over plan, apply, commit and reload; released by the kernel when its holder dies, so a stale record of a
holder means nothing (FIELD_GUIDE H13). Only ever on the local side.
"""

from __future__ import annotations

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

import portalocker

from vime_sync import fsio
from vime_sync.errors import LocalIOError, LockHeld
from vime_sync.local.paths import LocalPaths

_POLL_S = 0.1


@contextmanager
def hold(paths: LocalPaths, *, wait_s: float, check_stop: Callable[[], None]) -> Iterator[None]:
    """Hold the lock while the body runs. LOCAL/.weight_sync must exist.

    Raises LockHeld after `wait_s`, naming the holder; LocalIOError where the filesystem has no locks.
    """
    deadline = time.monotonic() + wait_s
    while True:
        file = _try(paths)
        if file is not None:
            break
        if time.monotonic() >= deadline:
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
    file = paths.lock.open("ab")  # the peers open it for writing; append never truncates
    try:
        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.AlreadyLocked:
        file.close()
        return None
    except portalocker.LockException as problem:
        file.close()
        raise LocalIOError(
            f"locking {paths.lock}: {problem}; expected a filesystem with flock",
            hint="Put LOCAL on this host's own disk or RAM disk.",
        ) from None
    # Whoever removed and made the file anew holds another inode than ours: take the one the name means now.
    try:
        same = os.path.samestat(os.fstat(file.fileno()), paths.lock.stat())
    except FileNotFoundError:
        same = False
    if not same:
        file.close()
        return _try(paths)
    return file


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
    try:
        recorded = json.loads(paths.holder.read_bytes())
        recorded_pid, since = int(recorded["pid"]), str(recorded["since"])
    except (OSError, ValueError, KeyError, TypeError):
        recorded_pid, since = None, None
    if pid is None:
        pid = recorded_pid
    if pid is None:
        return "another process"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        command = " ".join(takewhile(lambda word: not word.startswith("--"), words)).strip()[:120]
    except OSError:
        command = ""
    if pid != recorded_pid or since is None:
        since = _process_start(pid)
        since = f"it runs since {since}" if since else "since when is not known"
    else:
        since = f"since {since}"
    return f"process {pid} ({command or 'command not known'}), {since}"


def _holder_pid(lock: Path) -> int | None:
    """proc_locks(5): `N: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`."""
    try:
        figures = lock.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(figures.st_dev):02x}:{os.minor(figures.st_dev):02x}:{figures.st_ino}"
    for line in lines:
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == place and fields[4].isdigit():
            return int(fields[4]) or None
    return None


def _process_start(pid: int) -> str | None:
    try:
        changed = Path(f"/proc/{pid}").stat().st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(changed, timezone.utc).isoformat(timespec="seconds")
