"""What a path is: a stream, one version of it, or a checkpoint, as one document. Reads headers, decodes nothing."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from vime_sync.checkpoint import read_checkpoint
from vime_sync.errors import Malformed, SyncError, UsageError
from vime_sync.format.index import version_of_directory
from vime_sync.format.problems import FormatError
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import read_state
from vime_sync.model import Checkpoint, DeltaVersion, VersionKind
from vime_sync.reconcile.sources import resolve_snapshot
from vime_sync.stream.catalog import Catalog, read_version

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


def inspect_path(path: Path) -> dict[str, Any]:
    """Raises UsageError for no directory, Malformed, NotReady or LineageMismatch for a version that is not whole.

    OSError where the storage fails.
    """
    path = path.absolute()
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; expected a stream, a version directory or a checkpoint")
    version = version_of_directory(path.name)
    if version is not None:
        found = read_version(path, version, path.parent)
        return _delta(path, found) if isinstance(found, DeltaVersion) else _checkpoint(path, "full version", found)
    if any(version_of_directory(entry.name) is not None for entry in path.iterdir()):
        return _stream(path)
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
    return _checkpoint(path, "checkpoint", checkpoint)


def _stream(path: Path) -> dict[str, Any]:
    catalog = Catalog(path)
    versions = [_entry(version, catalog.entry(version)) for version in catalog.versions]
    ready = [version["version"] for version in versions if version["ready"]]
    return {
        "schema": _SCHEMA,
        "kind": "stream",
        "path": str(path),
        "versions": versions,
        "latest_ready": max(ready, default=None),
    }


def _entry(version: int, entry: DeltaVersion | Checkpoint | SyncError) -> dict[str, Any]:
    document: dict[str, Any] = {
        "version": version,
        "ready": not isinstance(entry, SyncError),
        "version_kind": None,
        "encoding": None,
        "checksum": None,
        "tensor_count": None,
        "wire_bytes": None,
        "reason": None,
    }
    if isinstance(entry, SyncError):
        document["reason"] = f"{entry.id}: {entry.message}"
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
        "tensors": tensors,
    }


def _committed(path: Path) -> int | None:
    """The version that our state says a LOCAL holds; None between two versions, and for any other checkpoint."""
    state = read_state(LocalPaths(path)).state
    return None if state is None else state.version
