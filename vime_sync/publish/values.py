"""What a publication is asked for, and what it was: frozen values without I/O."""

from __future__ import annotations

import enum
import operator
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def __post_init__(self) -> None:
        """Raises UsageError for a value out of range."""
        if not 1 <= self.level <= MAX_LEVEL:
            raise UsageError(
                f"level {self.level}, expected 1 to {MAX_LEVEL}: receivers refuse what is compressed harder"
            )
        if self.full_every < 0 or self.threads < 0 or self.shard_size_bytes < 1:
            raise UsageError("full_every, threads and shard_size_bytes cannot be below 0, 0 and 1")


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


def whole_number(option: str, value: Any) -> int:
    """An integer, also one of numpy's; True, 1.0 and "1" are none. Raises UsageError."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{option} is {value!r:.80}, expected a whole number") from None


def directory(option: str, value: Any) -> Path:
    """Raises UsageError for what is no path."""
    try:
        path = Path(value)
    except TypeError:
        raise UsageError(f"{option} is {value!r:.80}, expected the path of a directory") from None
    if "\0" in os.fspath(path):
        raise UsageError(f"{option} is {value!r:.80}, and no path has a zero byte")
    return path


def make_options(
    shared: Any,
    base: Any,
    cache: Any,
    version: Any,
    encoding: Any,
    checksum: Any,
    full_every: Any,
    threads: Any,
    level: Any,
    shard_size_bytes: Any,
) -> Options:
    """Options from plain values, of whatever type a caller gives. Raises UsageError for one that is none."""
    try:
        wanted, digest = PublishEncoding(encoding), ChecksumFormat(checksum)
    except (ValueError, TypeError) as problem:
        raise UsageError(f"{problem}, expected an encoding and a digest of the format") from None
    return Options(
        directory("shared", shared),
        directory("base", base) if base is not None else None,
        directory("cache", cache) if cache is not None else None,
        whole_number("version", version) if version is not None else None,
        wanted,
        digest,
        whole_number("full_every", full_every),
        whole_number("threads", threads),
        whole_number("level", level),
        whole_number("shard_size_bytes", shard_size_bytes),
    )
