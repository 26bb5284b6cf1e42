"""Hashing what lies in LOCAL against the digest table: all of it, or just the files that were touched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vime_sync import fsio
from vime_sync.format.checksum import new_hasher
from vime_sync.local.layout import Layout, read_layout
from vime_sync.local.state import boot_id
from vime_sync.materialize.context import Buffers, Context
from vime_sync.materialize.pool import run
from vime_sync.materialize.rebuild import span_digest
from vime_sync.model import AuxiliaryFile, Checkpoint, ChecksumFormat, DigestTable, FileStat, LocalState
from vime_sync.stream.payloads import SourceFiles


@dataclass(frozen=True)
class Findings:
    """`wrong_tensors` lie in whole shards; `wrong_files` are shards gone, cut or with another header, and others."""

    layout: Layout
    wrong_tensors: tuple[str, ...]
    wrong_files: tuple[str, ...]
    stats: dict[str, FileStat]
    bytes_read: int

    @property
    def wrong(self) -> tuple[str, ...]:
        return (*self.wrong_files, *self.wrong_tensors)


def hash_files(context: Context, table: DigestTable, files: Collection[str]) -> Findings:
    """Hash the named files of the table, tensor by tensor. Raises OSError; wrong bytes are findings, not errors."""
    paths = context.paths
    layout = read_layout(paths, table)
    wrong_files = [name for name in files if name in layout.broken]
    stats = {name: fsio.stat(paths.file(name)) for name in files if paths.file(name).exists()}
    wrong_tensors: list[str] = []
    guard = threading.Lock()
    spans = [(name, span) for name, span in layout.spans.items() if span.file in files]
    others = [name for name in files if not table.files[name].is_shard]
    size_bytes = sum(span.size_bytes for _, span in spans) + sum(table.files[name].size_bytes for name in others)
    context.tally.start("verify", len(spans), size_bytes)
    opened = {span.file: fsio.File(paths.file(span.file)) for _, span in spans}

    def prove(item: int, buffers: Buffers, check: Callable[[], None]) -> None:
        name, span = spans[item]
        if span_digest(opened[span.file], span, buffers, check) != table.tensors[name]:
            with guard:
                wrong_tensors.append(name)
        context.tally.advance("verify", span.size_bytes)

    try:
        run(context, range(len(spans)), prove)
    finally:
        for file in opened.values():
            file.close()
    for name in others:
        if not context.paths.file(name).is_file() or (
            file_digest(context, context.paths.file(name)) != table.files[name].digest
        ):
            wrong_files.append(name)
    return Findings(layout, tuple(sorted(wrong_tensors)), tuple(sorted(wrong_files)), stats, size_bytes)


def file_digest(context: Context, path: Path) -> str:
    """xxh3-128 of a whole file. Raises OSError."""
    hasher = new_hasher(ChecksumFormat.XXH3_128)
    with fsio.File(path) as file:
        offset = 0
        while piece := file.read_up_to(1 << 20, offset):
            context.stop.check()
            hasher.update(piece)
            offset += len(piece)
    return hasher.hexdigest()


def source_digest(context: Context, files: SourceFiles, file: AuxiliaryFile, version: int) -> str:
    """As `file_digest`, of a file that is not ours. Raises StreamChanged, ShareUnreachable."""
    hasher = new_hasher(ChecksumFormat.XXH3_128)
    buffer = bytearray(1 << 20)
    for start in range(0, file.stat.size_bytes, len(buffer)):
        context.stop.check()
        piece = memoryview(buffer)[: min(len(buffer), file.stat.size_bytes - start)]
        files.read_into(piece, file.path, file.stat, start, version)
        hasher.update(piece)
    return hasher.hexdigest()


def with_findings(state: LocalState, findings: Findings, files: Collection[str]) -> LocalState:
    """What was found right is believed by its new stats; what was wrong is marked, and unmarked where it is not.

    A file with other stats was put there by somebody else, or by a run of ours that was killed before its record:
    nobody has synced it, so the version is not durable any more (FIELD_GUIDE H3).
    """
    hashed = {*files, *(name for name, span in findings.layout.spans.items() if span.file in files)}
    damaged = {name for name in state.damaged if name not in hashed}.union(findings.wrong)
    stats = {**state.stats, **findings.stats}
    if state.durable and stats != state.stats:
        state = replace(state, durable=False, boot_id=boot_id())
    return replace(state, stats=stats, damaged=tuple(sorted(damaged)))


def same_content(context: Context, checkpoint: Checkpoint, table: DigestTable) -> bool:
    """Whether a checkpoint's tensors are those of a table: its files' stats changed, so it is hashed again (V9)."""
    spans = checkpoint.spans()
    if spans.keys() != table.tensors.keys():
        return False
    return tensor_digests(context, checkpoint, sorted(spans)) == table.tensors


def tensor_digests(context: Context, checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, str]:
    """xxh3-128 of the named tensors. Raises StreamChanged when the files change meanwhile, ShareUnreachable."""
    spans = checkpoint.spans()
    found: dict[str, str] = {}
    context.tally.start("hash", len(names), sum(spans[name].size_bytes for name in names))
    with SourceFiles() as files:

        def digest(name: str, buffers: Buffers, check: Callable[[], None]) -> None:
            span = spans[name]
            shard = checkpoint.shards[span.file]
            hasher = new_hasher(ChecksumFormat.XXH3_128)
            for start in range(0, span.size_bytes, len(buffers.current)):
                check()
                block = buffers.current[: min(len(buffers.current), span.size_bytes - start)]
                files.read_into(block.data, shard.path, shard.stat, span.offset + start, checkpoint.version)
                hasher.update(block.data)
            found[name] = hasher.hexdigest()
            context.tally.add(read=span.size_bytes)
            context.tally.advance("hash", span.size_bytes)

        run(context, names, digest)
        files.check_unchanged()
    return found
