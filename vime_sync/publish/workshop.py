"""The publisher's own corner of the share: its lock, the version that is being built, and what it remembers.

All of it lies in SHARED/.vime_sync_publish, which is no version to any receiver. A version is built there whole and
appears under its name by one rename of its directory: what a kill leaves is never a version. Never touches a version
that is published.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import PublisherConflict, ShareUnreachable
from vime_sync.model import version_label

PUBLISHER_DIRECTORY = ".vime_sync_publish"
_BUILD = re.compile(r"(?:build|dead)-(?P<host>[\w.-]*)-(?P<pid>\d+)-[0-9a-f]{32}", re.ASCII)
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)

Warn = Callable[[str], None]


@dataclass(frozen=True)
class BaseRecord:
    """The weights of the base that version 1, with this identity, was made against."""

    base_weights: str
    first_identity: str


class Workshop:
    def __init__(self, share: Path) -> None:
        self._share = share
        self.directory = share / PUBLISHER_DIRECTORY

    def new_build(self) -> Path:
        """An empty directory to build a version in, on the share's filesystem."""
        path = self.directory / f"build-{_host()}-{os.getpid()}-{uuid.uuid4().hex}"
        fsio.make_directory(path)
        return path

    def discard(self, build: Path) -> None:
        fsio.remove_tree(build)

    def release(self, build: Path, version: int) -> Path:
        """Make the built version appear, all at once and durably. Its files are durable already.

        Raises PublisherConflict where another publisher was first.
        """
        target = self._share / f"weight_v{version_label(version)}"
        names = [Path(name) for name, _ in fsio.walk(build, follow_links=False, skip=frozenset())]
        for folder in sorted({folder for name in names for folder in name.parents}, reverse=True):  # innermost first
            fsio.sync_directory(build / folder)
        # Not left to the rename: it would take the place of an empty directory, where a trainer may have just begun.
        if target.is_symlink() or target.exists():
            raise _conflict(target, version)
        try:
            fsio.rename(build, target)
        except FileNotFoundError:
            raise PublisherConflict(
                f"{build} is gone: another process took it for the remains of a dead publisher", version=version
            ) from None
        except OSError as problem:
            if problem.errno in _TAKEN:
                raise _conflict(target, version) from None
            raise
        fsio.sync_directory(self._share)
        return target

    def remember_base(self, record: BaseRecord) -> None:
        document = {
            "schema": "vime-sync/publish-base/1",
            "base_weights": record.base_weights,
            "first_identity": record.first_identity,
        }
        fsio.write_atomic(self.directory / "base.json", json.dumps(document).encode(), durable=True)

    def remembered_base(self) -> BaseRecord | None:
        try:
            document = json.loads((self.directory / "base.json").read_bytes())
            return BaseRecord(str(document["base_weights"]), str(document["first_identity"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def _conflict(target: Path, version: int) -> PublisherConflict:
    return PublisherConflict(f"{target} appeared while version {version} was being made", version=version)


@contextmanager
def open_workshop(share: Path, warn: Warn) -> Iterator[Workshop]:
    """Hold the share's publisher lock while the body runs, and remove what dead publishers left.

    Raises PublisherConflict where another publisher is at work, ShareUnreachable without a share.
    """
    if not share.is_dir():
        raise ShareUnreachable(
            f"{share} is not there; expected the directory to publish to",
            hint="Check that the shared filesystem is mounted; make the directory once, by hand.",
        )
    workshop = Workshop(share)
    fsio.make_directory(workshop.directory)
    with fsio.File(workshop.directory / "lock", write=True, create=True) as lock:
        holder = workshop.directory / "holder.json"
        try:
            if not lock.try_lock():
                raise PublisherConflict(f"{share} is being published to by {_describe(holder)}")
            has_locks = True
        except OSError as problem:
            if problem.errno not in _NO_LOCKS:
                raise
            has_locks = False
            warn(f"the filesystem of {share} has no locks: take care that only one process publishes there")
        with suppress(OSError):  # for people only
            document = {"host": _host(), "pid": os.getpid()}
            fsio.write_atomic(holder, json.dumps(document).encode(), durable=False)
        _clear(workshop, warn, has_locks=has_locks)
        yield workshop


def _clear(workshop: Workshop, warn: Warn, *, has_locks: bool) -> None:
    """Remove what dead publishers left.

    Renamed first: should its publisher live after all (locks that other hosts do not see), either that rename or the
    publisher's own comes first, and no version is ever half removed.
    """
    for path in sorted(workshop.directory.iterdir()):
        match = _BUILD.fullmatch(path.name)
        if match is None:
            continue
        if not has_locks and (match["host"] != _host() or _is_alive(int(match["pid"]))):
            warn(f"{path} is left of another publisher; remove it once that one has ended")
            continue
        dead = workshop.directory / f"dead-{_host()}-{os.getpid()}-{uuid.uuid4().hex}"
        try:
            fsio.rename(path, dead)
        except FileNotFoundError:
            continue
        fsio.remove_tree(dead)


def _describe(holder: Path) -> str:
    try:
        document = json.loads(holder.read_bytes())
        return f"process {int(document['pid'])} on {document['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
