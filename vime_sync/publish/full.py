"""A full version, built in a directory that is no version yet: config and shards first, index last, all durable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import NoRoom, SourceNotReady
from vime_sync.format.index import INDEX_NAME
from vime_sync.materialize.context import Context
from vime_sync.model import Checkpoint, FileStat
from vime_sync.publish.choice import Signature
from vime_sync.publish.crew import Check, Work, run_crew
from vime_sync.publish.delta import write_index
from vime_sync.publish.files import OpenFiles
from vime_sync.publish.shards import Parts, PartWriter, seal
from vime_sync.publish.tensors import NewTensor
from vime_sync.publish.workshop import Build

_BLOCK_BYTES = 1 << 20
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class _Copy:
    source: Path
    stat: FileStat
    target: Path


def check_room(share: Path, size_bytes: int) -> None:
    """Raises NoRoom."""
    free = fsio.free_bytes(share)
    if size_bytes + _SPARE_BYTES > free:
        raise NoRoom(f"a full version of {size_bytes} bytes does not fit on {share}, which has {free} bytes free")


def copy_checkpoint(
    checkpoint: Checkpoint, auxiliary: Mapping[str, Path], build: Build, files: OpenFiles, context: Context
) -> None:
    """The checkpoint's files as they are. One without an index gets one: a receiver need not guess.

    The index is copied (or made) last. Raises SourceNotReady, OSError.
    """
    copies = [
        _Copy(shard.path, shard.stat, build.directory / name)
        for name, shard in sorted(checkpoint.shards.items(), key=lambda item: item[1].stat.size_bytes, reverse=True)
    ]
    copies += _auxiliary_copies({name: checkpoint.auxiliary[name].path for name in auxiliary}, build.directory)
    _copy(copies, files, context)
    fsio.sync_directory(build.directory)
    index = checkpoint.auxiliary.get(INDEX_NAME)
    if index is not None:
        _copy([_Copy(index.path, index.stat, build.directory / INDEX_NAME)], files, context)
        return
    total = sum(spec.size_bytes for shard in checkpoint.shards.values() for spec in shard.tensors.values())
    weight_map = {name: shard.name for shard in checkpoint.shards.values() for name in shard.tensors}
    write_index(build, {"total_size": total}, weight_map)


def write_tensors(
    tensors: Iterable[NewTensor],
    auxiliary: Mapping[str, Path],
    build: Build,
    shard_size_bytes: int,
    context: Context,
) -> Signature:
    """A checkpoint from tensors in memory; returns their names, dtypes and shapes."""
    total = 0
    signature = {}

    def noted() -> Iterator[NewTensor]:
        nonlocal total
        for tensor in tensors:
            total += tensor.size_bytes
            signature[tensor.name] = (tensor.dtype, tensor.shape)
            yield tensor

    def make_work(check: Check) -> Work[NewTensor]:
        writer = PartWriter(parts)
        buffer = memoryview(bytearray(_BLOCK_BYTES))

        def work(tensor: NewTensor) -> None:
            for begin in range(0, tensor.size_bytes, _BLOCK_BYTES):
                check()
                view = buffer[: min(_BLOCK_BYTES, tensor.size_bytes - begin)]
                tensor.read(view, begin)
                writer.append(view)
            writer.finish(tensor.name, tensor.dtype, tensor.shape, None)

        return work

    with OpenFiles(lambda message: SourceNotReady(message)) as files:
        _copy(_auxiliary_copies(auxiliary, build.directory), files, context)
    with Parts(build.parts, shard_size_bytes) as parts:
        run_crew(context.threads, noted(), make_work, context.stop.check)
        weight_map = seal(parts, build.directory, 1, context.stop.check)
    write_index(build, {"total_size": total}, weight_map)
    return signature


def _auxiliary_copies(auxiliary: Mapping[str, Path], build: Path) -> list[_Copy]:
    try:
        return [_Copy(path, fsio.stat(path), build / name) for name, path in sorted(auxiliary.items())]
    except FileNotFoundError as problem:
        raise SourceNotReady(f"{problem.filename} is gone") from None


def _copy(copies: list[_Copy], files: OpenFiles, context: Context) -> None:
    for folder in sorted({copy.target.parent for copy in copies}):
        fsio.make_directory(folder)
    context.tally.start("copy", len(copies), sum(copy.stat.size_bytes for copy in copies))

    def make_work(check: Check) -> Work[_Copy]:
        buffer = memoryview(bytearray(_BLOCK_BYTES))

        def work(copy: _Copy) -> None:
            read = files.reader(copy.source, copy.stat, 0)
            with fsio.File(copy.target, write=True, create=True) as target:
                for begin in range(0, copy.stat.size_bytes, _BLOCK_BYTES):
                    check()
                    view = buffer[: min(_BLOCK_BYTES, copy.stat.size_bytes - begin)]
                    read(view, begin)
                    target.write_at(view, begin)
                target.sync()
            context.tally.advance("copy", copy.stat.size_bytes)

        return work

    run_crew(context.threads, copies, make_work, context.stop.check)
    files.check_unchanged()
