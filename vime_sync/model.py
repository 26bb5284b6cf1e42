"""Frozen value types and the rules over them that need no I/O.

Owns the words of the project: version, lineage, tensor, span, payload, digest table. Imports nothing of the
package. Sizes and offsets are bytes; digests are lower-case hex; versions are integers, 0 is the base.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Our records and the peers', below LOCAL; never part of a checkpoint.
SYNC_DIRECTORY = ".weight_sync"
# Never part of a checkpoint, at any depth: those records, a clone's history, what a filesystem keeps at its root.
IGNORED_NAMES = frozenset((SYNC_DIRECTORY, ".git", "lost+found"))


class Encoding(str, enum.Enum):
    """How a delta's payload turns old bytes into new ones."""

    XOR = "xor"
    OVERWRITE = "overwrite"


class ChecksumFormat(str, enum.Enum):
    """The digests a publisher may choose for a delta's new bytes."""

    XXH3_128 = "xxh3-128"
    BLAKE3 = "blake3"
    ADLER32 = "adler32"


class VersionKind(str, enum.Enum):
    BASE = "base"
    FULL = "full"
    DELTA = "delta"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a safetensors file: `begin` and `size_bytes` place it in the file's data section."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size_bytes: int


@dataclass(frozen=True)
class Span:
    """A tensor's byte range in a file named relative to its checkpoint."""

    file: str
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class FileStat:
    """What tells that a file was not touched since: size, mtime, ctime and inode (promise 1)."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @property
    def content_key(self) -> tuple[int, int, int]:
        """Survives a rename, which changes ctime on some filesystems."""
        return (self.size_bytes, self.mtime_ns, self.inode)


@dataclass(frozen=True)
class ShardFile:
    """A safetensors file as parsed: `data_offset` is 8 + header length; tensors sorted by place."""

    name: str
    path: Path
    stat: FileStat
    data_offset: int
    header_digest: str
    tensors: Mapping[str, TensorSpec]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Payload:
    """One changed tensor of a delta: its zstd frame at `offset` of the shard file, and the new bytes' digest."""

    shard: str
    offset: int
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class DeltaVersion:
    """A published delta, parsed and cross-checked. `payloads` maps tensor name to its payload."""

    version: int
    directory: Path
    base_version: int
    encoding: Encoding
    checksum: ChecksumFormat
    payloads: Mapping[str, Payload]
    shards: Mapping[str, ShardFile]
    identity: str
    fingerprint: str

    @property
    def size_bytes(self) -> int:
        return sum(payload.size_bytes for payload in self.payloads.values())


@dataclass(frozen=True)
class AuxiliaryFile:
    """A file of a checkpoint that is no shard: config, tokenizer, index."""

    name: str
    path: Path
    stat: FileStat


@dataclass(frozen=True)
class Checkpoint:
    """A full checkpoint directory: the base, a published full version, or LOCAL itself.

    `identity` covers structure (index, headers) and every file's size and mtime.
    """

    version: int
    kind: VersionKind
    directory: Path
    shards: Mapping[str, ShardFile]
    auxiliary: Mapping[str, AuxiliaryFile]
    identity: str
    fingerprint: str
    skipped: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        shards = sum(shard.stat.size_bytes for shard in self.shards.values())
        return shards + sum(file.stat.size_bytes for file in self.auxiliary.values())

    def spans(self) -> dict[str, Span]:
        """Where each tensor lies; names are unique over all shards (checked when parsed)."""
        return {
            name: Span(shard.name, shard.data_offset + spec.begin, spec.size_bytes)
            for shard in self.shards.values()
            for name, spec in shard.tensors.items()
        }

    def signature(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Names, dtypes and shapes: what must be the same for a tensor-by-tensor replacement."""
        return {
            name: (spec.dtype, spec.shape) for shard in self.shards.values() for name, spec in shard.tensors.items()
        }


Published = DeltaVersion | Checkpoint


@dataclass(frozen=True)
class LineageEntry:
    """One version the local bytes were built from, and how to know it again.

    `identity` is content; `fingerprint` are the published files' stats when it was read, a shortcut only.
    """

    version: int
    kind: VersionKind
    identity: str
    fingerprint: str


Lineage = tuple[LineageEntry, ...]


@dataclass(frozen=True)
class FileDigest:
    """A local file: for a shard the digest of its header (with the 8-byte length), else of all of it."""

    size_bytes: int
    digest: str
    is_shard: bool


@dataclass(frozen=True)
class DigestTable:
    """xxh3-128 of every tensor of a checkpoint at one version, and of what surrounds them. Immutable.

    `anchor_identity` says which base or full version the lineage began with.
    """

    version: int
    anchor_identity: str
    tensors: Mapping[str, str]
    files: Mapping[str, FileDigest]


@dataclass(frozen=True)
class LocalState:
    """What `state.json` says of LOCAL: the committed version, and what proves it.

    `stats` are the files' stats when their bytes were last proven; `anchor_table_name` is the digest table of the
    lineage's first version; `damaged` names tensors and files that were found wrong; `repairs` counts every time
    bytes changed without the version changing.
    """

    version: int
    lineage: Lineage
    table_name: str
    stats: Mapping[str, FileStat]
    boot_id: str
    durable: bool
    share: str | None
    base: str | None
    anchor_table_name: str
    damaged: tuple[str, ...] = ()
    repairs: int = 0


@dataclass(frozen=True)
class Weights:
    """Which weights: the number alone proves nothing (FIELD_GUIDE E12).

    `lineage` is one digest over the digests of all tensors, the same on every host that holds the same weights;
    `repairs` counts how often local bytes changed under the same number.
    """

    version: int
    lineage: str
    repairs: int


@dataclass(frozen=True)
class EngineMemory:
    """What is known of an engine. `weights` are those of the last load that was begun in it.

    While `is_open` that load did not come to a good end, and the engine may be paused by us; `error` says that it
    failed for good, `error_id` how. `told` is the version that the engine told of itself after it: another one at a
    later look means that it has restarted (FIELD_GUIDE E2). With `leave_paused` others had paused it before us.
    """

    weights: Weights | None = None
    told: str | None = None
    is_open: bool = False
    leave_paused: bool = False
    error: str | None = None
    error_id: str | None = None


def lineage_entry(source: Published) -> LineageEntry:
    """How a published version is remembered once the local bytes were built from it."""
    kind = VersionKind.DELTA if isinstance(source, DeltaVersion) else source.kind
    return LineageEntry(source.version, kind, source.identity, source.fingerprint)


def structure_of(identity: str) -> str:
    """The part of a full version's identity that is its index and headers; the rest is its files' stats."""
    return identity.partition("-")[0]


def version_label(version: int) -> str:
    """The zero-padded number of directory names and of the peers' state (docs/FORMAT.md)."""
    return f"{version:06d}"
