"""What a publication is asked for, and what it was: frozen values without I/O."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from vime_sync.errors import UsageError
from vime_sync.model import ChecksumFormat, VersionKind

DEFAULT_LEVEL = 1
# zstd levels above want a window that receivers refuse (docs/FORMAT.md, 3.2).
MAX_LEVEL = 19
DEFAULT_SHARD_BYTES = 4 << 30


class PublishEncoding(str, enum.Enum):
    """What is asked for; names, dtypes or shapes that changed make it a full version all the same."""

    XOR = "xor"
    OVERWRITE = "overwrite"
    FULL = "full"


@dataclass(frozen=True)
class Options:
    """`version` None is the one after the newest. `full_every` 0 is never; `threads` 0 one per usable core."""

    shared: Path
    base: Path | None = None
    cache: Path | None = None
    version: int | None = None
    encoding: PublishEncoding = PublishEncoding.XOR
    checksum: ChecksumFormat = ChecksumFormat.XXH3_128
    full_every: int = 0
    threads: int = 0
    level: int = DEFAULT_LEVEL
    shard_size_bytes: int = DEFAULT_SHARD_BYTES


@dataclass(frozen=True)
class Publication:
    """A version that was published; sizes in bytes, times in seconds.

    Of a full version nothing was compared: what counts changes is None. `wire_bytes` are all its files.
    """

    version: int
    path: Path
    kind: VersionKind
    encoding: str | None
    checksum: str | None
    tensors_changed: int | None
    tensors_total: int
    changed_bytes: int | None
    total_bytes: int
    wire_bytes: int
    seconds: dict[str, float]
    warnings: tuple[str, ...]

    @property
    def density(self) -> float | None:
        """Changed bytes per byte of the checkpoint."""
        if self.changed_bytes is None:
            return None
        return self.changed_bytes / self.total_bytes if self.total_bytes else 0.0


def make_options(
    shared: str | os.PathLike[str],
    base: str | os.PathLike[str] | None,
    cache: str | os.PathLike[str] | None,
    version: int | None,
    encoding: str,
    checksum: str,
    full_every: int,
    threads: int,
    level: int,
    shard_size_bytes: int,
) -> Options:
    """Options from plain values. Raises UsageError for one that is none."""
    try:
        wanted, digest = PublishEncoding(encoding), ChecksumFormat(checksum)
    except ValueError as problem:
        raise UsageError(f"{problem}, expected an encoding and a digest of the format") from None
    if not 1 <= level <= MAX_LEVEL:
        raise UsageError(f"level {level}, expected 1 to {MAX_LEVEL}: receivers refuse what is compressed harder")
    if full_every < 0 or threads < 0 or shard_size_bytes < 1:
        raise UsageError("full_every, threads and shard_size_bytes cannot be below 0, 0 and 1")
    return Options(
        Path(shared),
        Path(base) if base is not None else None,
        Path(cache) if cache is not None else None,
        version,
        wanted,
        digest,
        full_every,
        threads,
        level,
        shard_size_bytes,
    )
