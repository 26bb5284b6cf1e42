"""LOCAL's shards as they lie there, held against what was committed: where each tensor is, and what is broken."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass

from vime_sync import fsio
from vime_sync.checkpoint import read_shard
from vime_sync.format.problems import FormatError
from vime_sync.local.intent_values import TensorWork
from vime_sync.local.paths import LocalPaths
from vime_sync.model import DigestTable, FileStat, LocalState, Span

# Gone, or something else than a regular file stands there.
_NO_SHARD = (errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.ELOOP)


@dataclass(frozen=True)
class Layout:
    """`spans` of the tensors of whole shards; `broken` files that are gone, cut, or have another header."""

    spans: dict[str, Span]
    signature: dict[str, tuple[str, tuple[int, ...]]]
    broken: tuple[str, ...]


def read_layout(paths: LocalPaths, table: DigestTable) -> Layout:
    """Parse the headers of all shards of the table. Raises OSError for trouble other than a missing file."""
    spans: dict[str, Span] = {}
    signature: dict[str, tuple[str, tuple[int, ...]]] = {}
    broken = []
    for name, file in table.files.items():
        if not file.is_shard:
            continue
        try:
            shard = read_shard(paths.root, name)
        except FormatError:
            broken.append(name)
            continue
        except OSError as problem:
            if problem.errno not in _NO_SHARD:
                raise
            broken.append(name)
            continue
        if shard.header_digest != file.digest or shard.stat.size_bytes != file.size_bytes:
            broken.append(name)
            continue
        for tensor, spec in shard.tensors.items():
            spans[tensor] = Span(name, shard.data_offset + spec.begin, spec.size_bytes)
            signature[tensor] = (spec.dtype, spec.shape)
    return Layout(spans, signature, tuple(sorted(broken)))


def lie_there(work: Iterable[TensorWork], layout: Layout) -> bool:
    """Whether each tensor of a pass is where its shard's own header says: an intent is a record, and may be wrong."""
    return all(layout.spans.get(item.name) == item.span for item in work)


def touched_files(paths: LocalPaths, state: LocalState) -> tuple[str, ...]:
    """Files whose stats are not what they were when their bytes were proven (promise 1). Reads no contents."""
    changed = []
    for name, known in state.stats.items():
        if _stat_or_none(paths, name) != known:
            changed.append(name)
    return tuple(sorted(changed))


def _stat_or_none(paths: LocalPaths, name: str) -> FileStat | None:
    try:
        return fsio.stat(paths.file(name))
    except OSError as problem:
        if problem.errno not in _NO_SHARD:
            raise
        return None
