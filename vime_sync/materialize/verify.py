"""Hashing what lies in LOCAL against the digest table: all of it, or just the files that were touched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from vime_sync import fsio
from vime_sync.format.checksum import new_hasher
from vime_sync.local.layout import Layout, read_layout
from vime_sync.materialize.context import Buffers, Context
from vime_sync.materialize.pool import run
from vime_sync.materialize.rebuild import span_digest
from vime_sync.model import ChecksumFormat, DigestTable, FileStat, LocalState


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
        if name not in stats or _whole_digest(context, name) != table.files[name].digest:
            wrong_files.append(name)
    return Findings(layout, tuple(sorted(wrong_tensors)), tuple(sorted(wrong_files)), stats, size_bytes)


def _whole_digest(context: Context, name: str) -> str:
    hasher = new_hasher(ChecksumFormat.XXH3_128)
    with fsio.File(context.paths.file(name)) as file:
        offset = 0
        while piece := file.read_up_to(1 << 20, offset):
            context.stop.check()
            hasher.update(piece)
            offset += len(piece)
    return hasher.hexdigest()


def with_findings(state: LocalState, findings: Findings, files: Collection[str]) -> LocalState:
    """What was found right is believed by its new stats; what was wrong is marked, and unmarked where it is not."""
    hashed = {*files, *(name for name, span in findings.layout.spans.items() if span.file in files)}
    damaged = {name for name in state.damaged if name not in hashed}.union(findings.wrong)
    return replace(state, stats={**state.stats, **findings.stats}, damaged=tuple(sorted(damaged)))
