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
from vime_sync.errors import NotOurs, PublisherConflict, ShareUnreachable
from vime_sync.format.index import version_of_directory
from vime_sync.local.fields import Spoilt
from vime_sync.local.seal import parse_open, read_record, read_sealed, write_sealed
from vime_sync.model import version_label

PUBLISHER_DIRECTORY = ".vime_sync_publish"
_BUILD = re.compile(r"(?:build|dead)-(?P<host>[\w.-]*)-(?P<pid>\d+)-[0-9a-f]{32}(?:\.parts)?", re.ASCII)
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)

Warn = Callable[[str], None]


@dataclass(frozen=True)
class BaseRecord:
    """The weights of the base that version 1, with this identity, was made against."""

    base_weights: str
    first_identity: str


@dataclass(frozen=True)
class Build:
    """A version at work: `directory` becomes it; `parts`, beside it, is for files that have no name in it yet.

    Both lie on the share's filesystem. A version carries files of any name: nothing else is ever in `directory`.
    """

    directory: Path
    parts: Path


class Workshop:
    def __init__(self, share: Path) -> None:
        self._share = share
        self.directory = share / PUBLISHER_DIRECTORY

    def new_build(self) -> Build:
        name = f"build-{_host()}-{os.getpid()}-{uuid.uuid4().hex}"
        build = Build(self.directory / name, self.directory / f"{name}.parts")
        fsio.make_directory(build.directory)
        fsio.make_directory(build.parts)
        return build

    def discard(self, build: Build) -> None:
        """What of it is still there goes."""
        for path in (build.parts, build.directory):
            if path.exists():
                fsio.remove_tree(path)

    def taken(self) -> dict[int, str]:
        """Names of the share that stand for a version and are no directory, nor a link to one, by number."""
        found = ((version_of_directory(path.name), path) for path in self._share.iterdir())
        return {version: path.name for version, path in found if version is not None and not path.is_dir()}

    def release(self, build: Build, version: int) -> Path:
        """Make the built version appear, all at once and durably. Its files are durable already.

        Raises PublisherConflict where another publisher was first.
        """
        target = self._share / f"weight_v{version_label(version)}"
        fsio.remove_tree(build.parts)  # nothing is left to fail once the version is there
        names = [Path(name) for name, _ in fsio.walk(build.directory, follow_links=False, skip=frozenset())]
        for folder in sorted({folder for name in names for folder in name.parents}, reverse=True):  # innermost first
            fsio.sync_directory(build.directory / folder)
        # Not left to the rename: it would take the place of an empty directory, where a trainer may have just begun.
        if target.is_symlink() or target.exists():
            raise _conflict(target, version)
        try:
            fsio.rename(build.directory, target)
        except FileNotFoundError:
            raise PublisherConflict(
                f"{build.directory} is gone: another process took it for the remains of a dead publisher",
                version=version,
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
        write_sealed(self.directory / "base.json", document, durable=True)

    def remembered_base(self, warn: Warn) -> BaseRecord | None:
        """None where version 1 was not made by us, and, with a warning, where the record of it is spoilt."""
        path = self.directory / "base.json"
        try:
            document = read_sealed(path)
            if document is None:
                return None
            weights, identity = document.get("base_weights"), document.get("first_identity")
            if type(weights) is not str or type(identity) is not str:
                raise Spoilt("a digest is missing")
        except Spoilt as problem:
            warn(f"{path} is spoilt ({problem}): whether the base is still that of version 1 cannot be told")
            return None
        return BaseRecord(weights, identity)


def _conflict(target: Path, version: int) -> PublisherConflict:
    return PublisherConflict(f"{target} appeared while version {version} was being made", version=version)


def expect_share(share: Path) -> None:
    """Raises ShareUnreachable."""
    if not share.is_dir():
        raise ShareUnreachable(
            f"{share} is not there; expected the directory to publish to",
            hint="Check that the shared filesystem is mounted; make the directory once, by hand.",
        )


@contextmanager
def open_workshop(share: Path, warn: Warn) -> Iterator[Workshop]:
    """Hold the share's publisher lock while the body runs, and remove what dead publishers left.

    Raises PublisherConflict where another publisher is at work, NotOurs where something of somebody else's bears the
    name of our directory or of its lock; nothing is written then.
    """
    workshop = Workshop(share)
    lock_path = workshop.directory / "lock"
    _check_ours(workshop.directory, Path.is_dir, "directory")
    _check_ours(lock_path, Path.is_file, "file")
    fsio.make_directory(workshop.directory)
    # Only what is not there is made: making a file empties the one that is.
    with fsio.File(lock_path, write=True, create=not lock_path.exists()) as lock:
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


def _check_ours(path: Path, is_kind: Callable[[Path], bool], kind: str) -> None:
    """Raises NotOurs for a link, whatever it leads to, and for another kind of thing."""
    if path.is_symlink():
        found = f"a link to {path.readlink()}"
    elif path.exists() and not is_kind(path):
        found = f"no {kind}"
    else:
        return
    raise NotOurs(
        f"{path} is {found}, expected a {kind} of the publisher's own, or nothing",
        hint="Remove or rename it: the publisher writes there, and never through a link. Nothing was published.",
    )


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
        if dead.is_dir() and not dead.is_symlink():
            fsio.remove_tree(dead)
        else:
            fsio.unlink(dead)


def _describe(holder: Path) -> str:
    try:
        document = parse_open(read_record(holder) or b"")
    except (OSError, Spoilt):
        return "another process"
    return f"process {document.get('pid')!r:.20} on {document.get('host')!s:.80}"


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
