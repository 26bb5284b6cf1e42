"""Publishing weights from Python, for trainers that save checkpoints or have their tensors in memory.

    from vime_sync.publish import publish_checkpoint, publish_tensors

    publish_checkpoint("/ckpt/step-200", shared="/mnt/share", base="/models/qwen3-4b", cache="/nvme/publish-cache")

    publish_tensors(
        ((name, parameter) for name, parameter in gather()),
        shared="/mnt/share", base="/models/qwen3-4b", cache="/nvme/publish-cache",
    )

Both write the version after the newest one on the share, as a delta against that newest one, and give back a
`Publication` that says what was written. What it is compared against is the base for version 1 and, from then on,
`cache`: a directory of its own with room for one checkpoint, brought along by the same pass that hosts make, so that
its bytes are proven. Without a cache a delta can only follow right on the base or on a full version.

Failures are `vime_sync.errors.SyncError`, each with `message`, `hint`, `retryable` and `code`, but for what the given
iterable itself raises; nothing is published then. A version appears whole, by one rename, or not at all. Nothing here
prints.

**Arrays.** `publish_tensors` takes pairs of a name and anything that numpy makes an array of (of bfloat16 and the
small floats the arrays of the package ml_dtypes), or `Tensor(name, dtype, shape, data)` with the dtype as safetensors
names it. All tensors of the model must be given, each once. They are taken from the iterable in the caller's thread,
one after the other; with `threads` at work at most `threads` + 2 are held at once. Each must stay as it is until the
next but `threads` + 2 is asked for; with `threads=1` until the next one is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vime_sync.materialize.context import StopFlag, Tally
from vime_sync.model import ChecksumFormat
from vime_sync.publish.publishing import publish
from vime_sync.publish.source import ArraySource, CheckpointSource, check_places
from vime_sync.publish.tensors import Tensor
from vime_sync.publish.values import (
    DEFAULT_LEVEL,
    DEFAULT_SHARD_BYTES,
    MAX_LEVEL,
    Options,
    Publication,
    PublishEncoding,
    directory,
    make_options,
)

__all__ = [
    "DEFAULT_LEVEL",
    "DEFAULT_SHARD_BYTES",
    "MAX_LEVEL",
    "ChecksumFormat",
    "Options",
    "Publication",
    "PublishEncoding",
    "Tensor",
    "publish_checkpoint",
    "publish_directory",
    "publish_tensors",
]

AnyPath = str | os.PathLike[str]


def publish_checkpoint(
    checkpoint: AnyPath,
    *,
    shared: AnyPath,
    base: AnyPath | None = None,
    cache: AnyPath | None = None,
    version: int | None = None,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    full_every: int = 0,
    threads: int = 0,
    level: int = DEFAULT_LEVEL,
    shard_size_bytes: int = DEFAULT_SHARD_BYTES,
) -> Publication:
    """Publish a checkpoint directory, as `vime-sync publish` does.

    `encoding` is "xor", "overwrite" or "full"; where names, dtypes or shapes changed it is a full version all the
    same, with a warning. `full_every` makes every version whose number it divides a full one. `threads` 0 is one per
    core that may be used. Raises SyncError.
    """
    options = make_options(
        shared, base, cache, version, encoding, checksum, full_every, threads, level, shard_size_bytes
    )
    return publish_directory(directory("checkpoint", checkpoint), options)


def publish_tensors(
    tensors: Iterable[tuple[str, Any] | Tensor],
    *,
    shared: AnyPath,
    base: AnyPath | None = None,
    cache: AnyPath | None = None,
    files: AnyPath | None = None,
    version: int | None = None,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    full_every: int = 0,
    threads: int = 0,
    level: int = DEFAULT_LEVEL,
    shard_size_bytes: int = DEFAULT_SHARD_BYTES,
) -> Publication:
    """Publish all tensors of a model from memory; the other options are those of `publish_checkpoint`.

    `files` is a directory with the config and tokenizer files that a full version carries too, by default the base.
    Where names, dtypes or shapes changed, a full version takes a second walk over `tensors`: of what can be walked
    only once that is a UsageError. Raises SyncError.
    """
    options = make_options(
        shared, base, cache, version, encoding, checksum, full_every, threads, level, shard_size_bytes
    )
    source = ArraySource(tensors, directory("files", files) if files is not None else None, options.base)
    return publish(source, options, StopFlag(), Tally())


def publish_directory(
    checkpoint: Path, options: Options, stop: StopFlag | None = None, tally: Tally | None = None
) -> Publication:
    """As `publish_checkpoint`, for programs that stop it or show how it goes. Raises SyncError."""
    check_places(options, checkpoint)
    with CheckpointSource(checkpoint) as source:
        return publish(source, options, stop or StopFlag(), tally or Tally())
