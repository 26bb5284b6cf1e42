"""The names under LOCAL/.weight_sync, and which directories may be used together at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vime_sync.errors import UsageError
from vime_sync.model import SYNC_DIRECTORY


@dataclass(frozen=True)
class LocalPaths:
    """Where things are. `state` and `lock` are shared with the peers' receiver (docs/FORMAT.md)."""

    root: Path

    @property
    def sync(self) -> Path:
        return self.root / SYNC_DIRECTORY

    @property
    def state(self) -> Path:
        return self.sync / "state.json"

    @property
    def lock(self) -> Path:
        return self.sync / "lock"

    @property
    def holder(self) -> Path:
        return self.sync / "holder.json"

    @property
    def owner(self) -> Path:
        return self.sync / "owner.json"

    @property
    def intent(self) -> Path:
        return self.sync / "intent.json"

    @property
    def journal(self) -> Path:
        return self.sync / "journal"

    @property
    def staged(self) -> Path:
        return self.sync / "staged"

    @property
    def kept(self) -> Path:
        """What the last in-place pass staged: enough to take it back."""
        return self.sync / "kept"

    @property
    def aside(self) -> Path:
        """New files of a seed or full version, built here and renamed out; same filesystem as the rest."""
        return self.sync / "aside"

    @property
    def engines(self) -> Path:
        """What each engine of this host loaded."""
        return self.sync / "engines.json"

    @property
    def trouble(self) -> Path:
        """The last pass's error, while it is not mended."""
        return self.sync / "last_error.json"

    @property
    def tables(self) -> Path:
        return self.sync / "digests"

    def file(self, name: str) -> Path:
        return self.root / name


def local_paths(local: Path) -> LocalPaths:
    """LOCAL itself may be a link; everything below is addressed through what it points to."""
    return LocalPaths(Path(os.path.realpath(local)))


def check_apart(paths: LocalPaths, share: Path | None, base: Path | None) -> None:
    """LOCAL, SHARED and the base must not be, or lie in, one another (FIELD_GUIDE H11).

    Compared by device and inode of every existing parent, so links and bind mounts do not deceive.
    Raises UsageError.
    """
    local = paths.root
    for option, other in (("--shared", share), ("--base", base)):
        if other is None:
            continue
        other = Path(os.path.realpath(other))
        for inner, outer, sentence in (
            (local, other, f"--local {local} lies in {option} {other}"),
            (other, local, f"{option} {other} lies in --local {local}"),
        ):
            if _lies_in(inner, outer):
                raise UsageError(
                    f"{sentence}, expected two directories apart",
                    hint="Give LOCAL a directory of its own on this host's disk.",
                )


def check_aside(ack_dir: Path | None, others: Mapping[str, Path | None]) -> None:
    """--ack-dir is written to: it must not be, or lie in, a directory of `others`, by option. Raises UsageError."""
    for option, other in others.items():
        if ack_dir is None or other is None:
            continue
        if _lies_in(Path(os.path.realpath(ack_dir)), Path(os.path.realpath(other))):
            raise UsageError(
                f"--ack-dir {ack_dir} lies in {option} {other}, expected a directory of its own",
                hint="Give the records a directory beside the share, on a filesystem that the trainer sees too.",
            )


def _lies_in(inner: Path, outer: Path) -> bool:
    outer_identity = _identity(outer)
    for place in (inner, *inner.parents):
        if place == outer or (outer_identity is not None and _identity(place) == outer_identity):
            return True
    return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        figures = path.stat()
    except OSError:
        return None
    return (figures.st_dev, figures.st_ino)
