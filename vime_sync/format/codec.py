"""The two delta codecs, block by block in bounded memory; numpy does the xor and the scatter.

Payload layouts: vime_sync/docs/FORMAT.md. A decoder walks its tensor once, from the first byte to the last, in
blocks of the caller's size. Every size is in bytes. Nothing here knows files: a `Source` yields the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Protocol, cast

import numpy as np
import numpy.typing as npt
import zstandard

from vime_sync.format.frame import MAX_WINDOW_BYTES
from vime_sync.format.problems import FormatError, PayloadError

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.uint32]

COUNT_BYTES = 4
POSITION_BYTES = 4
# 32-bit positions reach this far; beyond it they wrapped when they were written (FIELD_GUIDE H15).
MAX_OVERWRITE_TENSOR_BYTES = 1 << 32
# Compressed bytes handed to a decoder at a time.
_READ_BYTES = 128 << 10
# Positions are read this many at a time: 256 KiB.
_POSITIONS_PER_READ = 64 << 10


class Source(Protocol):
    """A sequential reader of one frame's compressed bytes."""

    def read(self, size: int, /) -> bytes: ...


OpenSource = Callable[[], Source]


def overwrite_count(content_size: int, tensor_size: int) -> int:
    """How many bytes an overwrite payload of `content_size` changes. Raises FormatError if it fits no count."""
    count, rest = divmod(content_size - COUNT_BYTES, POSITION_BYTES + 1)
    if rest or count < 0:
        raise FormatError(f"overwrite payload of {content_size} bytes fits no count of 5-byte changes")
    if count > tensor_size:
        raise FormatError(f"overwrite payload changes {count} bytes of a tensor of {tensor_size}")
    return count


class FrameReader:
    """Decodes one frame into buffers of the caller's. Every method raises PayloadError where it does not decode."""

    def __init__(self, source: Source) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        self._reader = decompressor.stream_reader(cast(IO[bytes], source), read_size=_READ_BYTES)

    def fill(self, out: Bytes) -> None:
        view = out.data
        while len(view):
            try:
                got = self._reader.readinto(view)
            except zstandard.ZstdError as problem:
                raise PayloadError(f"zstd frame does not decode ({problem})") from None
            if not got:
                raise PayloadError(f"zstd frame ends {len(view)} bytes before its stated content size")
            view = view[got:]

    def finish(self) -> None:
        """The frame holds nothing more; also makes the library check what it checks at the end."""
        try:
            rest = self._reader.read(1)
        except zstandard.ZstdError as problem:
            raise PayloadError(f"zstd frame does not decode ({problem})") from None
        if rest:
            raise PayloadError("zstd frame holds more than its stated content size")


class XorDecoder:
    """`block` ^= the next bytes of the payload; applied twice it undoes itself."""

    def __init__(self, open_source: OpenSource, tensor_size: int, scratch: Bytes) -> None:
        self._reader = FrameReader(open_source())
        self._left = tensor_size
        self._scratch = scratch
        if not tensor_size:
            self._reader.finish()

    def apply(self, block: Bytes) -> None:
        delta = self._scratch[: len(block)]
        self._reader.fill(delta)
        np.bitwise_xor(block, delta, out=block)
        self._left -= len(block)
        if not self._left:
            self._reader.finish()


class OverwriteDecoder:
    """Hands out, block by block, the positions and new values of an overwrite payload.

    All positions are checked before the first is handed out, so a bad one is found before its tensor is
    written (FIELD_GUIDE S13): the constructor decodes the frame once for that. A payload of up to
    `keep_bytes` decoded bytes is then kept; a larger one is decoded again by two readers, one for the
    positions and one that runs ahead to the values.
    """

    def __init__(self, open_source: OpenSource, content_size: int, tensor_size: int, keep_bytes: int) -> None:
        self._count = overwrite_count(content_size, tensor_size)
        self._positions: _PositionStream | _KeptPositions
        self._values: _Values
        if content_size <= keep_bytes:
            self._positions, self._values = _keep(open_source, self._count)
            self._positions.check(tensor_size)
        else:
            stream = _PositionStream(open_source, self._count)
            stream.check(tensor_size)
            self._values = _ValueStream(open_source, self._count)
            self._positions = _PositionStream(open_source, self._count)

    @property
    def count(self) -> int:
        return self._count

    def window(self, start: int, stop: int) -> tuple[npt.NDArray[np.intp], Bytes]:
        """Positions relative to `start` of the changes in [start, stop), ascending, and the new byte of each."""
        positions = self._positions.until(start, stop)
        return positions, self._values.take(len(positions))


class _Values(Protocol):
    def take(self, count: int) -> Bytes: ...


class _KeptValues:
    def __init__(self, values: Bytes) -> None:
        self._values = values

    def take(self, count: int) -> Bytes:
        taken, self._values = self._values[:count], self._values[count:]
        return taken


class _ValueStream:
    def __init__(self, open_source: OpenSource, count: int) -> None:
        self._reader = FrameReader(open_source())
        self._left = count
        skip = np.empty(min(_POSITIONS_PER_READ * POSITION_BYTES, COUNT_BYTES + count * POSITION_BYTES), np.uint8)
        ahead = COUNT_BYTES + count * POSITION_BYTES
        while ahead:
            step = min(ahead, len(skip))
            self._reader.fill(skip[:step])
            ahead -= step

    def take(self, count: int) -> Bytes:
        values = np.empty(count, np.uint8)
        self._reader.fill(values)
        self._left -= count
        if not self._left:
            self._reader.finish()
        return values


class _KeptPositions:
    def __init__(self, positions: Positions) -> None:
        self._positions = positions

    def check(self, tensor_size: int) -> None:
        _check_positions(self._positions, -1, tensor_size)

    def until(self, start: int, stop: int) -> npt.NDArray[np.intp]:
        cut = int(np.searchsorted(self._positions, stop)) if len(self._positions) else 0
        taken, self._positions = self._positions[:cut], self._positions[cut:]
        return taken.astype(np.intp) - start


class _PositionStream:
    """Reads positions a bounded number at a time."""

    def __init__(self, open_source: OpenSource, count: int) -> None:
        self._reader = FrameReader(open_source())
        stated = np.empty(1, "<u4")
        self._reader.fill(stated.view(np.uint8))
        if int(stated[0]) != count:
            raise FormatError(f"overwrite payload states {int(stated[0])} changes, expected {count} by its size")
        self._left = count
        self._ready: Positions = np.empty(0, np.uint32)

    def _more(self) -> bool:
        if not self._left:
            return False
        piece = np.empty(min(self._left, _POSITIONS_PER_READ), "<u4")
        self._reader.fill(piece.view(np.uint8))
        self._left -= len(piece)
        self._ready = piece.astype(np.uint32, copy=False)
        return True

    def check(self, tensor_size: int) -> None:
        """Consumes the whole frame, values too, so that what does not decode shows here."""
        last, count = -1, self._left
        while self._more():
            last = _check_positions(self._ready, last, tensor_size)
        skip = np.empty(min(count, _POSITIONS_PER_READ * POSITION_BYTES), np.uint8)
        while count:
            step = min(count, len(skip))
            self._reader.fill(skip[:step])
            count -= step
        self._reader.finish()

    def until(self, start: int, stop: int) -> npt.NDArray[np.intp]:
        taken = []
        while len(self._ready) or self._more():
            cut = int(np.searchsorted(self._ready, stop))
            taken.append(self._ready[:cut].astype(np.intp) - start)
            self._ready = self._ready[cut:]
            if len(self._ready):
                break
        return np.concatenate(taken) if taken else np.empty(0, np.intp)


def _check_positions(positions: Positions, last: int, tensor_size: int) -> int:
    """Ascending, without repeats, inside the tensor, and after `last`; returns the new last position."""
    if not len(positions):
        return last
    if int(positions[0]) <= last or bool(np.any(positions[1:] <= positions[:-1])):
        raise PayloadError("overwrite positions are not ascending, or one is repeated")
    if int(positions[-1]) >= tensor_size:
        raise PayloadError(f"overwrite position {int(positions[-1])} is outside its tensor of {tensor_size} bytes")
    return int(positions[-1])


def _keep(open_source: OpenSource, count: int) -> tuple[_KeptPositions, _KeptValues]:
    content = np.empty(COUNT_BYTES + count * (POSITION_BYTES + 1), np.uint8)
    reader = FrameReader(open_source())
    reader.fill(content)
    reader.finish()
    stated = int(content[:COUNT_BYTES].view("<u4")[0])
    if stated != count:
        raise FormatError(f"overwrite payload states {stated} changes, expected {count} by its size")
    split = COUNT_BYTES + count * POSITION_BYTES
    return _KeptPositions(content[COUNT_BYTES:split].view("<u4")), _KeptValues(content[split:])
