"""A tensor from its anchor along the chain: seeds, repairs, and what a full version brings.

Source and destination are two arguments; nothing here reads the destination's old bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from vime_sync import fsio
from vime_sync.errors import ChecksumMismatch
from vime_sync.format.checksum import new_hasher
from vime_sync.format.codec import Bytes
from vime_sync.local.journal import BLOCK_BYTES
from vime_sync.materialize.context import Buffers
from vime_sync.materialize.steps import BlockStep, ReadInto, naming, open_step, walk_frame
from vime_sync.materialize.transform import Digests, SpanHashers
from vime_sync.model import Checkpoint, ChecksumFormat, DeltaVersion, Payload, Span
from vime_sync.stream.payloads import SourceFiles, check_payload

# Each delta folded costs a decoder per thread; a longer chain goes through the tensor more than once.
_MAX_FOLDED = 48


@dataclass(frozen=True)
class Chain:
    """An anchor and the deltas above it. `content_sizes` are the decoded sizes of their frames where the whole chain
    was checked before; a chain for a few tensors is checked tensor by tensor.
    """

    anchor: Checkpoint
    spans: Mapping[str, Span]
    deltas: tuple[DeltaVersion, ...]
    content_sizes: tuple[Mapping[str, int], ...] | None
    files: SourceFiles

    @property
    def version(self) -> int:
        return self.deltas[-1].version if self.deltas else self.anchor.version

    def cut(self, version: int) -> Chain:
        """The part of the chain up to `version`."""
        count = sum(delta.version <= version for delta in self.deltas)
        sizes = None if self.content_sizes is None else self.content_sizes[:count]
        return replace(self, deltas=self.deltas[:count], content_sizes=sizes)

    def touching(self, name: str) -> list[int]:
        return [number for number, delta in enumerate(self.deltas) if name in delta.payloads]

    def published(self, name: str) -> tuple[ChecksumFormat, str] | None:
        """The digest the newest delta that touches the tensor gives it; None where none does."""
        for delta in reversed(self.deltas):
            if name in delta.payloads:
                return delta.checksum, delta.payloads[name].digest
        return None

    def prove(self, name: str, digests: Digests) -> None:
        """Hold what the whole chain gave against what was published. Raises ChecksumMismatch."""
        published = self.published(name)
        if published is not None and digests.published != published[1]:
            raise ChecksumMismatch(
                f"version {self.version}: tensor {name!r} comes to the {published[0].value} digest "
                f"{digests.published}, expected {published[1]}",
                version=self.version,
                tensors=(name,),
            )

    def content_size(self, number: int, name: str) -> int:
        """Decoded size of a payload. Raises what `check_payload` raises."""
        if self.content_sizes is not None:
            return self.content_sizes[number][name]
        return check_payload(self.deltas[number], name, self.spans, self.files)


def payload_reader(chain: Chain, delta: DeltaVersion, payload: Payload) -> ReadInto:
    shard = delta.shards[payload.shard]

    def read_into(view: memoryview, offset: int) -> None:
        chain.files.read_into(view, shard.path, shard.stat, payload.offset + offset, delta.version)

    return read_into


class _PayloadSource:
    """A sequential reader of a payload on the share."""

    def __init__(self, read_into: ReadInto, size_bytes: int) -> None:
        self._read_into, self._left, self._place = read_into, size_bytes, 0

    def read(self, size: int, /) -> bytes:
        size = min(size, self._left) if size >= 0 else self._left
        piece = bytearray(size)
        if size:
            self._read_into(memoryview(piece), self._place)
        self._place += size
        self._left -= size
        return bytes(piece)


def open_chain_steps(
    chain: Chain, name: str, numbers: Sequence[int], size_bytes: int, scratch: Bytes
) -> list[BlockStep]:
    """Forward-only steps straight from the share, each frame checked whole first.

    Raises StreamChanged, ShareUnreachable, Malformed, CorruptPayload.
    """
    steps = []
    for number in numbers:
        delta = chain.deltas[number]
        payload = delta.payloads[name]
        read_into = payload_reader(chain, delta, payload)
        with naming(delta.version, name):
            walk_frame(read_into, payload.size_bytes, scratch)

        def open_source(read_into: ReadInto = read_into, size: int = payload.size_bytes) -> _PayloadSource:
            return _PayloadSource(read_into, size)

        content_size = chain.content_size(number, name)
        steps.append(
            open_step(delta.version, name, delta.encoding, open_source, content_size, size_bytes, scratch, None)
        )
    return steps


def rebuild(
    chain: Chain,
    name: str,
    target: fsio.File | None,
    offset: int,
    buffers: Buffers,
    check: Callable[[], None],
    numbers: Sequence[int] | None = None,
    checksum: ChecksumFormat | None = None,
) -> Digests:
    """Write the tensor at `offset` of `target` (None: only compute). `old` is the anchor's digest.

    `numbers` limits which deltas of the chain are applied; `checksum` is the format of `published`, by default that
    of the last delta applied. Raises what the share and the steps raise, OSError.
    """
    applied = chain.touching(name) if numbers is None else list(numbers)
    if checksum is None:
        checksum = chain.deltas[applied[-1]].checksum if applied else ChecksumFormat.XXH3_128
    span = chain.spans[name]
    shard = chain.anchor.shards[span.file]

    def read_anchor(view: memoryview, offset: int) -> None:
        chain.files.read_into(view, shard.path, shard.stat, span.offset + offset, chain.anchor.version)

    first = applied[:_MAX_FOLDED] if target is not None else applied
    digests = _fold(chain, name, first, read_anchor, target, offset, buffers, check, checksum)
    for begin in range(len(first), len(applied), _MAX_FOLDED):
        assert target is not None

        def read_written(view: memoryview, offset: int, written: fsio.File = target, place: int = offset) -> None:
            written.read_into(view, place + offset)

        batch = applied[begin : begin + _MAX_FOLDED]
        digests = replace(
            _fold(chain, name, batch, read_written, target, offset, buffers, check, checksum), old=digests.old
        )
    return digests


def _fold(
    chain: Chain,
    name: str,
    numbers: Sequence[int],
    read_source: ReadInto,
    target: fsio.File | None,
    offset: int,
    buffers: Buffers,
    check: Callable[[], None],
    checksum: ChecksumFormat,
) -> Digests:
    size_bytes = chain.spans[name].size_bytes
    steps = open_chain_steps(chain, name, numbers, size_bytes, buffers.scratch)
    hashers = SpanHashers(checksum)
    for start in range(0, size_bytes, BLOCK_BYTES):
        check()
        block = buffers.current[: min(BLOCK_BYTES, size_bytes - start)]
        read_source(block.data, start)
        hashers.old.update(block.data)
        for step in steps:
            step.forward(block, start)
        hashers.update_new(block)
        if target is not None:
            target.write_at(block.data, offset + start)
    return hashers.result(size_bytes)


def digest_of_step(chain: Chain, name: str, count: int, buffers: Buffers, check: Callable[[], None]) -> bool:
    """Whether the first `count` deltas that touch the tensor give what the last of them published."""
    numbers = chain.touching(name)[:count]
    delta = chain.deltas[numbers[-1]]
    return rebuild(chain, name, None, 0, buffers, check, numbers=numbers).published == delta.payloads[name].digest


def span_digest(file: fsio.File, span: Span, buffers: Buffers, check: Callable[[], None]) -> str:
    """xxh3-128 of a span as it lies there; of a file that was cut short no digest at all. Raises OSError."""
    hasher = new_hasher(ChecksumFormat.XXH3_128)
    for start in range(0, span.size_bytes, BLOCK_BYTES):
        check()
        block = buffers.current[: min(BLOCK_BYTES, span.size_bytes - start)]
        try:
            file.read_into(block.data, span.offset + start)
        except EOFError:
            return ""
        hasher.update(block.data)
    return hasher.hexdigest()
