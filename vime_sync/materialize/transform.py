"""The heart: one tensor from old bytes to new, or back, in place, block by block, both digests proven on the way.

Invariants:
* A block is recorded (place, digest before and after) before it is written.
* Whatever the journal says a block holds, both its old and its new bytes are computed and hashed, so a pass that was
  killed half way is finished with the same proof as one that was not.
* A block that does not change is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vime_sync import fsio
from vime_sync.format.checksum import Hasher, block_digest, new_hasher
from vime_sync.format.codec import Bytes
from vime_sync.local.journal import BLOCK_BYTES, Doubt, Journal, Side
from vime_sync.materialize.context import Buffers
from vime_sync.materialize.steps import BlockStep
from vime_sync.model import ChecksumFormat, Span

# Where a torn write may have stopped: page boundaries first, then ever finer.
_TEAR_GRAINS = (4096, 64, 1)


@dataclass(frozen=True)
class Digests:
    """xxh3-128 of the whole tensor before and after; `published` is the new one in the publisher's format."""

    old: str
    new: str
    published: str
    written_bytes: int


class SpanHashers:
    """The digests of one tensor as its blocks go by."""

    def __init__(self, checksum: ChecksumFormat) -> None:
        self.old = new_hasher(ChecksumFormat.XXH3_128)
        self.new = new_hasher(ChecksumFormat.XXH3_128)
        self._published: Hasher | None = None if checksum is ChecksumFormat.XXH3_128 else new_hasher(checksum)

    def update_new(self, block: Bytes) -> None:
        self.new.update(block.data)
        if self._published is not None:
            self._published.update(block.data)

    def result(self, written_bytes: int) -> Digests:
        new = self.new.hexdigest()
        published = new if self._published is None else self._published.hexdigest()
        return Digests(self.old.hexdigest(), new, published, written_bytes)


def transform(
    file: fsio.File,
    span: Span,
    steps: Sequence[BlockStep],
    checksum: ChecksumFormat,
    buffers: Buffers,
    check: Callable[[], None],
    *,
    journal: Journal | None,
    tensor: int,
    want: Side,
) -> Digests:
    """Bring every block of the span to the wanted side. Without a journal nothing is written: a dry run.

    Going back, the steps are not decoded beyond the last block that is new; `new` is then of no meaning.
    Raises what the steps raise, OSError, EOFError where the file is shorter than the span says.
    """
    hashers = SpanHashers(checksum)
    written_bytes = 0
    last_new = journal.last_block_on(tensor, Side.NEW) if journal is not None else -1
    for number, start in enumerate(range(0, span.size_bytes, BLOCK_BYTES)):
        check()
        block = buffers.current[: min(BLOCK_BYTES, span.size_bytes - start)]
        file.read_into(block.data, span.offset + start)
        side = journal.side(tensor, number) if journal is not None else Side.OLD
        before = block_digest(block.data)
        if side is Side.OLD:
            hashers.old.update(block.data)
            if want is Side.OLD and number > last_new:
                continue
            for step in steps:
                step.forward(block, start)
            hashers.update_new(block)
        else:
            hashers.update_new(block)
            for step in reversed(steps):
                step.backward(block, start)
            hashers.old.update(block.data)
        if side is want or journal is None:
            continue
        after = block_digest(block.data)
        if after != before:
            journal.record(tensor, number, want, before, after)
            file.write_at(block.data, span.offset + start)
            journal.written(tensor)
            written_bytes += len(block)
    return hashers.result(written_bytes)


def settle_torn_block(
    file: fsio.File, span: Span, steps: Sequence[BlockStep], buffers: Buffers, doubt: Doubt
) -> Side | None:
    """Settle the block that a kill may have torn: both digests of it are known, and a write tears in one place.

    Returns the side the block is on afterwards, None when it is on neither and cannot be brought there.
    Bytes before the tear are `after`, bytes behind it `before`; the steps take the latter to the former. Going
    forward the steps must not keep old values: those were kept before the write that tore.
    """
    start = doubt.block * BLOCK_BYTES
    block = buffers.current[: min(BLOCK_BYTES, span.size_bytes - start)]
    file.read_into(block.data, span.offset + start)
    found = block_digest(block.data)
    if found == doubt.after:
        return doubt.towards
    other = Side.OLD if doubt.towards is Side.NEW else Side.NEW
    if found == doubt.before:
        return other
    moved = _moved(file, span, steps, buffers, doubt, block)
    whole = _find_tear(block, moved, doubt.after, span.offset + start)
    if whole is None:
        return None
    file.write_at(whole.data, span.offset + start)
    return doubt.towards


def _moved(
    file: fsio.File, span: Span, steps: Sequence[BlockStep], buffers: Buffers, doubt: Doubt, block: Bytes
) -> Bytes:
    """The torn block taken one step on as a whole; right where it was still `before`."""
    skipped = np.empty(BLOCK_BYTES, np.uint8)
    for start in range(0, doubt.block * BLOCK_BYTES, BLOCK_BYTES):
        _move(steps, skipped, start, doubt.towards)  # the decoders go through the tensor from its first byte
    moved: Bytes = block.copy()
    _move(steps, moved, doubt.block * BLOCK_BYTES, doubt.towards)
    return moved


def _move(steps: Sequence[BlockStep], block: Bytes, start: int, towards: Side) -> None:
    if towards is Side.NEW:
        for step in steps:
            step.forward(block, start)
    else:
        for step in reversed(steps):
            step.backward(block, start)


def _find_tear(torn: Bytes, moved: Bytes, after: int, place: int) -> Bytes | None:
    """`place` is the block's place in its file: a write tears where a page of the file ends."""
    if block_digest(moved.data) == after:  # an overwrite done again over its own torn write
        return moved
    candidate: Bytes = moved.copy()
    differs = np.flatnonzero(torn != moved)
    for grain in _TEAR_GRAINS:
        candidate[:] = moved
        done = 0
        # Only tears that move a differing byte give another candidate.
        for tear in np.unique(((differs + place) // grain + 1) * grain - place):
            tear = min(int(tear), len(torn))
            candidate[done:tear] = torn[done:tear]
            done = tear
            if block_digest(candidate.data) == after:
                return candidate
    return None
