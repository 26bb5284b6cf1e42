"""The lock that lets one prune at a time work on a share: flock on SHARED/.vime_sync_prune.lock.

The file stays there once it is made: a lock on a file that is removed locks nobody out. The kernel lets go of it when
its holder dies. Nobody else takes it: publishers and hosts go on. Never writes over what somebody else wrote there.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import LocalIOError, LockHeld, NotOurs

LOCK_NAME = ".vime_sync_prune.lock"
# EBADF: NFS wants the file open for writing, and it may belong to another user.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EBADF)
_MOST_BYTES = 200
_HOLDER = re.compile(rb"process \d+ on [\w.-]*\n", re.ASCII)


@contextmanager
def hold(share: Path, warn: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock while the body runs. Does not wait.

    Raises LockHeld where another prune is at work, NotOurs for a link or what is no file, LocalIOError. On a filesystem
    without locks it warns and goes on.
    """
    path = share / LOCK_NAME
    try:
        lock, may_write = _open(path)
    except OSError as problem:
        raise _cannot(path, problem) from problem
    with lock:
        try:
            if not lock.try_lock():
                raise LockHeld(
                    f"{path} is held by {_holder(lock)}: another prune is at work on this share",
                    hint="Run the same command again once the other prune has ended; this one removed nothing.",
                )
        except OSError as problem:
            if problem.errno not in _NO_LOCKS:
                raise _cannot(path, problem) from problem
            warn(f"{path} cannot be locked ({problem.strerror}): take care that only one prune runs on this share")
        if may_write:
            with suppress(OSError):  # for people only
                _record_holder(lock)
        yield


def _open(path: Path) -> tuple[fsio.File, bool]:
    """The file, and whether it may be written to."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        found = "a link" if path.is_symlink() else "no file"
        raise NotOurs(
            f"{path} is {found}, expected the lock file of prune, or nothing; nothing was removed",
            hint="Remove or rename it, then run the same command again: prune makes its own.",
        )
    exists = path.exists()
    try:
        return fsio.File(path, write=True, create=not exists), True  # making a file empties the one that is
    except PermissionError:
        if not exists:
            raise
        return fsio.File(path), False  # another user's prune made it


def _record_holder(lock: fsio.File) -> None:
    """Unless something stands there that no prune wrote."""
    if lock.stat().size_bytes and _recorded(lock) is None:
        return
    host = re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)
    line = f"process {os.getpid()} on {host[:100]}\n".encode()
    lock.write_at(memoryview(line), 0)
    lock.truncate(len(line))


def _recorded(lock: fsio.File) -> str | None:
    raw = lock.read_up_to(_MOST_BYTES, 0)
    return raw.decode().strip() if _HOLDER.fullmatch(raw) else None


def _holder(lock: fsio.File) -> str:
    try:
        return _recorded(lock) or "another process"
    except OSError:
        return "another process"


def _cannot(path: Path, problem: OSError) -> LocalIOError:
    return LocalIOError(
        f"locking {path}: {problem.strerror}; nothing was removed",
        hint="Let this user write in --shared, then run the same command again.",
    )
