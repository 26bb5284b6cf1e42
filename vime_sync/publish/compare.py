"""One tensor's old bytes against its new ones, into one zstd frame, block by block in bounded memory.

Both are hashed as they go by: the digest of the old bytes must be the one that is known of them, the digest of the
new ones is what is published. A frame is begun only at the first byte that differs. Layouts: docs/FORMAT.md, 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import zstandard

from vime_sync.format.checksum import Hasher, new_hasher
from vime_sync.format.codec import COUNT_BYTES, POSITION_BYTES, Bytes
from vime_sync.model import ChecksumFormat, Encoding
from vime_sync.publish.crew import Check
from vime_sync.publish.files import Reader

_BLOCK_BYTES = 1 << 20
# Positions of a block are 8 bytes each before they are written: smaller blocks keep a dense one small.
_OVERWRITE_BLOCK_BYTES = 128 << 10
# So much of an overwrite payload is kept; a longer one is read again instead.
_KEEP_BYTES = 16 << 20

Sink = Callable[[bytes], None]


class Unsteady(Exception):
    """The bytes read a second time were not those of the first time."""


@dataclass(frozen=True)
class Pair:
    """`known_old` is the xxh3-128 of the old bytes, where it is known."""

    size_bytes: int
    old: Reader
    new: Reader
    known_old: str | None


@dataclass(frozen=True)
class Outcome:
    """`old_digest` is xxh3-128, `new_digest` the publisher's; `changed_bytes` 0 means that no frame was made."""

    old_digest: str
    new_digest: str
    changed_bytes: int


class Comparer:
    """One thread's buffers and compressor, reused from tensor to tensor."""

    def __init__(self, encoding: Encoding, checksum: ChecksumFormat, level: int, check: Check) -> None:
        self._encoding = encoding
        self._checksum = checksum
        self._check = check
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)
        self._old: Bytes = np.empty(_BLOCK_BYTES, np.uint8)
        self._new: Bytes = np.empty(_BLOCK_BYTES, np.uint8)
        self._scratch: Bytes = np.empty(_BLOCK_BYTES, np.uint8)
        self._differs: npt.NDArray[np.bool_] = np.empty(_BLOCK_BYTES, np.bool_)
        self._zeros: Bytes = np.zeros(_BLOCK_BYTES, np.uint8)

    def compare(self, pair: Pair, sink: Sink) -> Outcome:
        """Hand the frame to `sink` piece by piece. Raises Unsteady."""
        if pair.known_old is not None and self._new_digest(pair) == pair.known_old:
            return Outcome(pair.known_old, "", 0)
        if self._encoding is Encoding.XOR:
            return self._xor(pair, sink)
        return self._overwrite(pair, sink)

    def _new_digest(self, pair: Pair) -> str:
        hasher = new_hasher(ChecksumFormat.XXH3_128)
        for begin in range(0, pair.size_bytes, _BLOCK_BYTES):
            self._check()
            block = self._new[: pair.size_bytes - begin]
            pair.new(block.data, begin)
            hasher.update(block.data)
        return hasher.hexdigest()

    def _blocks(
        self, pair: Pair, block_bytes: int, old_hasher: Hasher, new_hasher: Hasher
    ) -> Iterator[tuple[int, Bytes, Bytes, npt.NDArray[np.bool_], int]]:
        """Begin, old bytes, new bytes, where they differ, and in how many bytes."""
        for begin in range(0, pair.size_bytes, block_bytes):
            self._check()
            size_bytes = min(block_bytes, pair.size_bytes - begin)
            old, new, differs = self._old[:size_bytes], self._new[:size_bytes], self._differs[:size_bytes]
            pair.old(old.data, begin)
            pair.new(new.data, begin)
            old_hasher.update(old.data)
            new_hasher.update(new.data)
            np.not_equal(old, new, out=differs)
            yield begin, old, new, differs, int(np.count_nonzero(differs))

    def _hashers(self) -> tuple[Hasher, Hasher]:
        return new_hasher(ChecksumFormat.XXH3_128), new_hasher(self._checksum)

    def _xor(self, pair: Pair, sink: Sink) -> Outcome:
        hashers = self._hashers()
        frame = None
        changed_bytes = 0
        for begin, old, new, _, count in self._blocks(pair, _BLOCK_BYTES, *hashers):
            changed_bytes += count
            if frame is None and count:
                frame = self._compressor.compressobj(size=pair.size_bytes)
                for _ in range(0, begin, _BLOCK_BYTES):  # what was equal up to here
                    sink(frame.compress(self._zeros.data))
            if frame is not None:
                block = self._scratch[: len(new)] if count else self._zeros[: len(new)]
                if count:
                    np.bitwise_xor(old, new, out=block)
                sink(frame.compress(block.data))
        if frame is not None:
            sink(frame.flush())
        return Outcome(hashers[0].hexdigest(), hashers[1].hexdigest(), changed_bytes)

    def _overwrite(self, pair: Pair, sink: Sink) -> Outcome:
        """Count, all positions, all values: what does not fit into memory is read again for each of the three."""
        hashers = self._hashers()
        kept: list[tuple[Bytes, Bytes]] = []
        count = 0
        for begin, _, new, differs, differing in self._blocks(pair, _OVERWRITE_BLOCK_BYTES, *hashers):
            count += differing
            if count * (POSITION_BYTES + 1) > _KEEP_BYTES:
                kept.clear()
            elif differing:
                places = np.flatnonzero(differs)
                kept.append((_positions(begin, places), new[places]))
        outcome = Outcome(hashers[0].hexdigest(), hashers[1].hexdigest(), count)
        if not count:
            return outcome
        frame = self._compressor.compressobj(size=COUNT_BYTES + count * (POSITION_BYTES + 1))
        sink(frame.compress(count.to_bytes(COUNT_BYTES, "little")))
        if count * (POSITION_BYTES + 1) <= _KEEP_BYTES:
            for positions, _ in kept:
                sink(frame.compress(positions.data))
            for _, values in kept:
                sink(frame.compress(values.data))
        else:
            for positions in self._again(pair, outcome, want_positions=True):
                sink(frame.compress(positions.data))
            for values in self._again(pair, outcome, want_positions=False):
                sink(frame.compress(values.data))
        sink(frame.flush())
        return outcome

    def _again(self, pair: Pair, expected: Outcome, *, want_positions: bool) -> Iterator[Bytes]:
        """Read the tensor once more. Raises Unsteady where it is not the same any more."""
        hashers = self._hashers()
        left = expected.changed_bytes
        for begin, _, new, differs, differing in self._blocks(pair, _OVERWRITE_BLOCK_BYTES, *hashers):
            left -= differing
            if left < 0:  # the frame would hold more than it says
                raise Unsteady
            if differing:
                places = np.flatnonzero(differs)
                yield _positions(begin, places) if want_positions else new[places]
        if (hashers[0].hexdigest(), hashers[1].hexdigest()) != (expected.old_digest, expected.new_digest):
            raise Unsteady


def _positions(begin: int, places: npt.NDArray[np.intp]) -> Bytes:
    return (places + begin).astype("<u4").view(np.uint8)
