"""What stands on a share that is to be pruned: each version's kind, identity, size, and its files' stats. Reads only.

One version is parsed at a time and only these facts are kept: a hundred indexes of a large model do not fit in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vime_sync import fsio
from vime_sync.checkpoint import fingerprint
from vime_sync.errors import ShareUnreachable, SyncError
from vime_sync.format.index import INDEX_NAME, version_of_directory
from vime_sync.model import DeltaVersion, Published
from vime_sync.pruning.decide import Kind
from vime_sync.stream.catalog import read_problem, read_version

# A directory under this name was taken out of the stream and only has to be removed still. No receiver takes it for a
# version. The number behind it is there where the plain name was taken.
PRUNED_PREFIX = ".pruned-"
_PRUNED = re.compile(rf"{re.escape(PRUNED_PREFIX)}(weight_v\d{{6,}})(?:-[1-9]\d*)?", re.ASCII)


@dataclass(frozen=True)
class Version:
    """`fingerprint` is of the stats of all its files; `problem` says why an unusable one is none."""

    number: int
    path: Path
    kind: Kind
    identity: str | None
    size_bytes: int
    fingerprint: str
    is_link: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Share:
    """`leftovers` are versions that an earlier prune had taken out and was killed before it had removed them."""

    root: Path
    versions: Mapping[int, Version]
    leftovers: tuple[Path, ...] = ()

    @property
    def identities(self) -> dict[int, str]:
        return {number: version.identity for number, version in self.versions.items() if version.identity is not None}


def look(root: Path) -> Share:
    """Raises ShareUnreachable where anything cannot be read: what is not known may be needed."""
    versions: dict[int, Version] = {}
    leftovers: list[Path] = []
    try:
        listed = sorted(root.iterdir())
    except OSError as problem:
        raise ShareUnreachable(
            f"listing {root}: {problem.strerror}; expected a readable directory of weight_v* versions"
        ) from None
    for path in listed:
        number = version_of_directory(path.name)
        if number is not None and path.is_dir():
            versions[number] = _look_at(path, number, root)
        elif _is_leftover(path):
            leftovers.append(path)
    return Share(root, versions, tuple(leftovers))


def measure(directory: Path) -> tuple[str, int]:
    """The stats of all files below it as one digest, and their bytes. Raises OSError."""
    stats = {
        name: fsio.to_stat(path.lstat()) for name, path in fsio.walk(directory, follow_links=False, skip=frozenset())
    }
    return fingerprint(stats), sum(stat.size_bytes for stat in stats.values())


def _look_at(path: Path, number: int, root: Path) -> Version:
    is_link = path.is_symlink()
    kind, identity, problem = Kind.UNUSABLE, None, None
    try:
        print_before, size_bytes = measure(path)
        found = read_version(path, number, root)
        kind, identity = _kind(found), found.identity
    except OSError as trouble:  # taken away meanwhile, or a share in trouble
        print_before, size_bytes, problem = _unreadable(read_problem(trouble, number, path))
    except ShareUnreachable:
        raise
    except SyncError as trouble:
        problem = trouble.message
    return Version(number, path, kind, identity, size_bytes, print_before, is_link, problem)


def _kind(found: Published) -> Kind:
    if isinstance(found, DeltaVersion):
        return Kind.DELTA
    return Kind.FULL if INDEX_NAME in found.auxiliary else Kind.SINGLE


def _unreadable(problem: SyncError) -> tuple[str, int, str]:
    if isinstance(problem, ShareUnreachable):
        raise problem
    return "", 0, problem.message


def _is_leftover(path: Path) -> bool:
    named = _PRUNED.fullmatch(path.name)
    is_version = named is not None and version_of_directory(named.group(1)) is not None
    return is_version and path.is_dir() and not path.is_symlink()
