"""A delta, built in a directory that is no version yet: shards first, index last, all of it durable.

The old bytes of every tensor that is compared must have the digest that is known of them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from vime_sync import fsio
from vime_sync.errors import SourceNotReady
from vime_sync.format.index import INDEX_NAME
from vime_sync.materialize.context import Context
from vime_sync.model import ChecksumFormat, DigestTable, Encoding, version_label
from vime_sync.publish.choice import difference
from vime_sync.publish.compare import Comparer, Pair, Unsteady
from vime_sync.publish.crew import Check, Work, run_crew
from vime_sync.publish.previous import Previous
from vime_sync.publish.shards import Parts, PartWriter, seal
from vime_sync.publish.tensors import NewTensor
from vime_sync.publish.workshop import Build


class Differs(Exception):
    """The tensors are not those of the version before, so there is no delta to them; the message says how."""


@dataclass(frozen=True)
class How:
    encoding: Encoding
    checksum: ChecksumFormat
    level: int
    shard_size_bytes: int


@dataclass
class Compared:
    """What a comparison found; `old_digests` are xxh3-128 of all tensors of the version before."""

    tensors_changed: int = 0
    changed_bytes: int = 0
    total_bytes: int = 0
    old_digests: dict[str, str] = field(default_factory=dict)

    def old_table(self) -> DigestTable:
        return DigestTable(0, "", self.old_digests, {})


class _Job:
    """What the threads share."""

    def __init__(self, previous: Previous, how: How, parts: Parts, context: Context) -> None:
        self.previous, self.how, self.parts, self.context = previous, how, parts, context
        self.compared = Compared()
        self._guard = threading.Lock()

    def make_work(self, check: Check) -> Work[NewTensor]:
        comparer = Comparer(self.how.encoding, self.how.checksum, self.how.level, check)
        writer = PartWriter(self.parts)

        def work(tensor: NewTensor) -> None:
            self._compare(tensor, comparer, writer)

        return work

    def _compare(self, tensor: NewTensor, comparer: Comparer, writer: PartWriter) -> None:
        previous, name = self.previous, tensor.name
        known = previous.digests[name] if previous.digests is not None else None
        pair = Pair(tensor.size_bytes, previous.reader(name), tensor.read, known)
        try:
            outcome = comparer.compare(pair, writer.append)
        except Unsteady:
            raise SourceNotReady(f"tensor {name!r} changed while it was read", tensors=(name,)) from None
        if known is not None and outcome.old_digest != known:
            raise previous.accuse(name)
        if outcome.changed_bytes:
            writer.finish(name, "U8", None, outcome.new_digest)
        with self._guard:
            compared = self.compared
            compared.tensors_changed += bool(outcome.changed_bytes)
            compared.changed_bytes += outcome.changed_bytes
            compared.total_bytes += tensor.size_bytes
            compared.old_digests[name] = outcome.old_digest
        self.context.tally.advance("diff", tensor.size_bytes)


def build_delta(
    tensors: Iterable[NewTensor],
    previous: Previous,
    version: int,
    how: How,
    build: Build,
    context: Context,
    *,
    before_writing: Callable[[], None],
) -> Compared:
    """`before_writing` is called when all is compared. Raises Differs, SourceNotReady, what `accuse` makes, OSError."""
    sizes = [span.size_bytes for span in previous.spans.values()]
    context.tally.start("diff", len(sizes), sum(sizes))
    with Parts(build.parts, how.shard_size_bytes) as parts:
        job = _Job(previous, how, parts, context)
        run_crew(context.threads, _fitting(tensors, previous), job.make_work, context.stop.check)
        before_writing()
        weight_map = seal(parts, build.directory, 0, context.stop.check)
    metadata = {
        "version": version_label(version),
        "base_version": version_label(version - 1),
        "delta_encoding": how.encoding.value,
        "compression_format": "zstd",
        "checksum_format": how.checksum.value,
    }
    write_index(build, metadata, weight_map)
    return job.compared


def _fitting(tensors: Iterable[NewTensor], previous: Previous) -> Iterable[NewTensor]:
    """Each tensor as it comes, if it is one of the version before; at the end, whether all of those came."""
    missing = dict(previous.signature)
    for tensor in tensors:
        known = missing.pop(tensor.name, None)
        if known != (tensor.dtype, tensor.shape):
            old = {} if known is None else {tensor.name: known}
            raise Differs(difference(old, {tensor.name: (tensor.dtype, tensor.shape)}))
        yield tensor
    if missing:
        raise Differs(difference(missing, {}))


def write_index(build: Build, metadata: Mapping[str, object], weight_map: Mapping[str, str]) -> None:
    """The last file of a version: every file that it names is durable under its name already."""
    fsio.sync_directory(build.directory)
    document = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    # Written aside: its temporary name may be that of a file that the version carries.
    fsio.write_atomic(build.parts / INDEX_NAME, json.dumps(document).encode(), durable=True)
    fsio.rename(build.parts / INDEX_NAME, build.directory / INDEX_NAME)
