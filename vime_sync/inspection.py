"""What a path is: a stream, one version of it, or a checkpoint, as one document. Reads headers, decodes nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from vime_sync.checkpoint import SINGLE_NAME, read_checkpoint
from vime_sync.errors import Malformed, ShareUnreachable, SyncError, UsageError
from vime_sync.format.index import INDEX_NAME, version_of_directory
from vime_sync.format.problems import FormatError
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import read_state
from vime_sync.model import Checkpoint, DeltaVersion, Published, VersionKind
from vime_sync.reconcile.sources import resolve_snapshot
from vime_sync.stream.catalog import read_version

_SCHEMA = "vime-sync/inspect/1"
# A file that an index names is not there, or is no file: the checkpoint is wrong. Else the storage is.
_NOT_A_CHECKPOINT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EINVAL,
    errno.ELOOP,
    errno.ENXIO,
    errno.ENAMETOOLONG,
)


# Told to whoever prints: what a moment in a file's stats is, in seconds since the epoch; None where there is none.
TellMoment = Callable[[float | None], Mapping[str, Any]]


def inspect_path(path: Path, tell_moment: TellMoment) -> dict[str, Any]:
    """`tell_moment` gives the fields that say when something was written: nothing here looks at a clock.

    Raises UsageError for no directory, Malformed, NotReady or LineageMismatch for a version that is not whole, OSError
    where the storage fails.
    """
    path = path.absolute()
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; expected a stream, a version directory or a checkpoint")
    version = version_of_directory(path.name)
    if version is not None:
        found = read_version(path, version, path.parent)
        return {**_version(path, found), **tell_moment(_written(path))}
    numbered = {version_of_directory(entry.name): entry for entry in path.iterdir()}
    versions = {number: entry for number, entry in numbered.items() if number is not None}
    if versions:
        return _stream(path, versions, tell_moment)
    try:
        checkpoint = read_checkpoint(resolve_snapshot(path), 0, VersionKind.BASE)
    except FormatError as problem:
        raise Malformed(
            f"{path} is not a whole checkpoint, nor a stream with weight_v* directories: {problem}",
            hint="Name a stream, a version directory or a checkpoint; check that it was copied completely.",
        ) from None
    except OSError as problem:
        if problem.errno not in _NOT_A_CHECKPOINT:
            raise
        raise Malformed(
            f"{path} is not a whole checkpoint: {problem.filename or path}: {problem.strerror}",
            hint="Name a stream, a version directory or a checkpoint; check that it was copied completely.",
        ) from None
    return {**_checkpoint(path, "checkpoint", checkpoint), **tell_moment(_written(checkpoint.directory))}


def _stream(path: Path, named: Mapping[int, Path], tell_moment: TellMoment) -> dict[str, Any]:
    """One version at a time is held: a hundred indexes of a large model do not fit in memory."""
    try:
        directories = {number: entry for number, entry in named.items() if entry.is_dir()}
    except OSError as problem:
        raise ShareUnreachable(f"listing {path}: {problem.strerror}") from None
    versions: list[dict[str, Any]] = []
    for number, directory in sorted(directories.items()):
        try:
            entry: Published | SyncError = read_version(directory, number, path)
        except SyncError as problem:
            entry = problem
        versions.append({**_entry(number, entry), **tell_moment(_written(directory))})
    latest = max((version["version"] for version in versions if version["ready"]), default=None)
    return {
        "schema": _SCHEMA,
        "kind": "stream",
        "path": str(path),
        "versions": versions,
        "latest_ready": latest,
        "missing": missing(list(directories)),
        "fresh_host_from": None if latest is None else _start(versions, latest),
    }


def missing(numbers: Iterable[int]) -> list[list[int]]:
    """The gaps between the lowest and the highest version, each as its first and its last number."""
    ascending = sorted(numbers)
    return [[one + 1, other - 1] for one, other in pairwise(ascending) if other > one + 1]


def _start(versions: Iterable[Mapping[str, Any]], latest: int) -> int | None:
    """Where a host that holds nothing begins on its way to `latest`: a full version, the base (0), or nowhere."""
    kinds = {version["version"]: version["version_kind"] for version in versions if version["ready"]}
    number = latest
    while kinds.get(number) == VersionKind.DELTA.value:
        number -= 1
    return number if number == 0 or number in kinds else None


def _written(directory: Path) -> float | None:
    """When a publisher was done with it: its index comes last. Seconds since the epoch."""
    for place in (directory / INDEX_NAME, directory / SINGLE_NAME, directory):
        try:
            return place.stat().st_mtime
        except OSError:
            continue
    return None


def _version(path: Path, found: Published) -> dict[str, Any]:
    return _delta(path, found) if isinstance(found, DeltaVersion) else _checkpoint(path, "full version", found)


def _entry(version: int, entry: Published | SyncError) -> dict[str, Any]:
    document: dict[str, Any] = {
        "version": version,
        "ready": not isinstance(entry, SyncError),
        "version_kind": None,
        "encoding": None,
        "checksum": None,
        "tensor_count": None,
        "wire_bytes": None,
        "problem": None,
        "reason": None,
    }
    if isinstance(entry, SyncError):
        document.update(problem=entry.id, reason=f"{entry.id}: {entry.message}")
    elif isinstance(entry, DeltaVersion):
        document.update(
            version_kind="delta",
            encoding=entry.encoding.value,
            checksum=entry.checksum.value,
            tensor_count=len(entry.payloads),
            wire_bytes=entry.size_bytes,
        )
    else:
        tensors = sum(len(shard.tensors) for shard in entry.shards.values())
        document.update(version_kind="full", tensor_count=tensors, wire_bytes=entry.size_bytes)
    return document


def _delta(path: Path, delta: DeltaVersion) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "kind": "delta",
        "path": str(path),
        "version": delta.version,
        "base_version": delta.base_version,
        "encoding": delta.encoding.value,
        "checksum": delta.checksum.value,
        "tensor_count": len(delta.payloads),
        "wire_bytes": delta.size_bytes,
        "shard_count": len(delta.shards),
        "identity": delta.identity,
        "changed": {
            name: {"wire_bytes": payload.size_bytes, "digest": payload.digest, "shard": payload.shard}
            for name, payload in sorted(delta.payloads.items())
        },
    }


def _checkpoint(path: Path, kind: str, checkpoint: Checkpoint) -> dict[str, Any]:
    tensors = {
        name: {"dtype": spec.dtype, "shape": list(spec.shape), "size_bytes": spec.size_bytes, "file": shard.name}
        for shard in checkpoint.shards.values()
        for name, spec in shard.tensors.items()
    }
    return {
        "schema": _SCHEMA,
        "kind": kind,
        "path": str(path),
        "version": checkpoint.version if checkpoint.kind is VersionKind.FULL else None,
        "committed_version": _committed(path),
        "tensor_count": len(tensors),
        "total_bytes": checkpoint.size_bytes,
        "shard_count": len(checkpoint.shards),
        "other_files": len(checkpoint.auxiliary),
        "identity": checkpoint.identity,
        "dtypes": _dtypes(tensors.values()),
        "tensors": tensors,
    }


def _dtypes(tensors: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """By dtype as headers name it, the one with the most bytes first."""
    sums: dict[str, dict[str, int]] = {}
    for spec in tensors:
        counted = sums.setdefault(spec["dtype"], {"tensor_count": 0, "size_bytes": 0})
        counted["tensor_count"] += 1
        counted["size_bytes"] += spec["size_bytes"]
    return dict(sorted(sums.items(), key=lambda item: (-item[1]["size_bytes"], item[0])))


def _committed(path: Path) -> int | None:
    """The version that our state says a LOCAL holds; None between two versions, and for any other checkpoint."""
    state = read_state(LocalPaths(path)).state
    return None if state is None else state.version
