"""The block record: before a block of a tensor is overwritten, which one, and how to tell old, new and torn apart.

An append-only file of fixed-size records beside the intent. It needs no fsync: a kill keeps the page cache, and
after a power loss it is not believed (the intent holds the boot id). A tensor is worked on by one thread at a
time, in ascending order of blocks, so of each tensor at most the block of its last record is in doubt.
"""

from __future__ import annotations

import enum
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vime_sync import fsio
from vime_sync.format.checksum import block_digest

BLOCK_BYTES = 1 << 20

# Kind, tensor number, block number, digest of the bytes before, digest of the bytes after; then a check.
_BODY = struct.Struct("<IIQQQ")
_CHECK = struct.Struct("<Q")
_RECORD_BYTES = _BODY.size + _CHECK.size


class Side(enum.IntEnum):
    """Which of its two states a block is in, or is wanted in."""

    OLD = 0
    NEW = 1


_LOST = 2


@dataclass(frozen=True)
class Doubt:
    """The last recorded block of a tensor: it may hold `before`, `after` or a torn mixture of both."""

    block: int
    towards: Side
    before: int
    after: int


class Journal:
    """What was written of each tensor of one job, in memory and on disk. One byte per block begun."""

    def __init__(self, path: Path, block_counts: Iterable[int], *, fresh: bool) -> None:
        self._counts = list(block_counts)
        self._sides: dict[int, bytearray] = {}
        self._doubts: dict[int, Doubt] = {}
        self._lost: set[int] = set()
        self._file = fsio.File(path, write=True, create=fresh or not path.exists())
        self._end = 0
        self._guard = threading.Lock()
        if not fresh:
            self._replay()

    def close(self) -> None:
        self._file.close()

    def record(self, tensor: int, block: int, towards: Side, before: int, after: int) -> None:
        """To be called before the block is written; until `written` the block is in doubt."""
        self._append(int(towards), tensor, block, before, after)
        self._note(tensor, block, towards)
        self._doubts[tensor] = Doubt(block, towards, before, after)

    def written(self, tensor: int) -> None:
        """The write that was recorded last has succeeded as a whole."""
        del self._doubts[tensor]

    def record_lost(self, tensor: int) -> None:
        """From here on the tensor's bytes are neither its old nor its new ones, until it was rebuilt."""
        self._append(_LOST, tensor, 0, 0, 0)
        self._lost.add(tensor)

    def distrust(self, tensor: int) -> None:
        """Nothing recorded of the tensor counts any more; in memory only."""
        self._sides.pop(tensor, None)
        self._doubts.pop(tensor, None)
        self._lost.add(tensor)

    def record_found(self, tensor: int, side: Side) -> None:
        """The whole tensor was proven to be on one side; in memory only: a next run proves it again."""
        self._lost.discard(tensor)
        self._doubts.pop(tensor, None)
        self._sides[tensor] = bytearray([side]) * self._counts[tensor]

    def is_lost(self, tensor: int) -> bool:
        return tensor in self._lost

    def begun(self, tensor: int) -> bool:
        return tensor in self._sides or tensor in self._lost

    def side(self, tensor: int, block: int) -> Side:
        sides = self._sides.get(tensor)
        return Side(sides[block]) if sides is not None else Side.OLD

    def last_block_on(self, tensor: int, side: Side) -> int:
        """The highest block on that side, -1 if there is none."""
        sides = self._sides.get(tensor)
        if sides is None:
            return self._counts[tensor] - 1 if side is Side.OLD else -1
        return sides.rfind(side)

    def doubt(self, tensor: int) -> Doubt | None:
        """The block that a kill, or a write that failed half way, left in doubt."""
        return self._doubts.get(tensor)

    def settle(self, tensor: int, side: Side) -> None:
        doubt = self._doubts.pop(tensor)
        self._sides[tensor][doubt.block] = side

    def _append(self, kind: int, tensor: int, block: int, before: int, after: int) -> None:
        body = _BODY.pack(kind, tensor, block, before, after)
        with self._guard:
            self._file.write_at(memoryview(body + _CHECK.pack(block_digest(body))), self._end)
            self._end += _RECORD_BYTES

    def _note(self, tensor: int, block: int, side: Side) -> None:
        sides = self._sides.get(tensor)
        if sides is None:
            sides = self._sides[tensor] = bytearray(self._counts[tensor])
        sides[block] = side

    def _replay(self) -> None:
        """Read what is whole; a record cut short or spoiled was never followed by its block's write."""
        while len(raw := self._file.read_up_to(_RECORD_BYTES, self._end)) == _RECORD_BYTES:
            body = raw[: _BODY.size]
            if raw[_BODY.size :] != _CHECK.pack(block_digest(body)):
                break
            kind, tensor, block, before, after = _BODY.unpack(body)
            if tensor >= len(self._counts) or kind > _LOST:
                break
            self._end += _RECORD_BYTES
            if kind == _LOST:
                self._lost.add(tensor)
            elif block < self._counts[tensor]:
                self._note(tensor, block, Side(kind))
                self._doubts[tensor] = Doubt(block, Side(kind), before, after)


def block_count(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES)
