"""One delta of one tensor as a step over blocks, forward and backward, whatever its encoding.

A step walks its tensor once, in ascending blocks. Where the compressed bytes come from (staged here, or the share)
and where an overwrite keeps the bytes it replaces are handed in. What the codecs raise becomes the error that names
version and tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from vime_sync import fsio
from vime_sync.errors import CorruptPayload, Malformed
from vime_sync.format.codec import Bytes, OpenSource, OverwriteDecoder, XorDecoder
from vime_sync.format.frame import FrameWalker
from vime_sync.format.problems import FormatError, PayloadError
from vime_sync.model import Encoding

# Decoded overwrite payloads up to this size are kept whole; larger ones are decoded by two readers at once.
_KEEP_BYTES = 2 << 20


class BlockStep(Protocol):
    def forward(self, block: Bytes, start: int) -> None:
        """Turn the old bytes of [start, start + len) into the new ones, in place."""

    def backward(self, block: Bytes, start: int) -> None:
        """Turn new bytes into old ones, in place."""


class OldValues:
    """The bytes that an overwrite replaces, kept in the order of their positions, so that it can be undone."""

    def __init__(self, file: fsio.File, offset: int) -> None:
        self._file = file
        self._place = offset

    def put(self, values: Bytes) -> None:
        if len(values):
            self._file.write_at(values.data, self._place)
            self._place += len(values)

    def skip(self, count: int) -> None:
        self._place += count

    def take(self, count: int) -> Bytes:
        values = np.empty(count, np.uint8)
        with cut_short(self._file.path):
            self._file.read_into(values.data, self._place)
        self._place += count
        return values


@contextmanager
def cut_short(path: Path) -> Iterator[None]:
    """What is staged or kept on this host may have lost its end in a power loss."""
    try:
        yield
    except EOFError:
        raise PayloadError(f"{path} is cut short") from None


@contextmanager
def naming(version: int, tensor: str) -> Iterator[None]:
    """Turn what the codecs raise into errors that name the version and the tensor."""
    try:
        yield
    except FormatError as problem:
        raise Malformed(
            f"version {version}: tensor {tensor!r}: {problem}", version=version, tensors=(tensor,)
        ) from None
    except PayloadError as problem:
        raise CorruptPayload(
            f"version {version}: tensor {tensor!r}: {problem}", version=version, tensors=(tensor,)
        ) from None


class _XorStep:
    def __init__(self, version: int, tensor: str, decoder: XorDecoder) -> None:
        self._version, self._tensor, self._decoder = version, tensor, decoder

    def forward(self, block: Bytes, start: int) -> None:
        with naming(self._version, self._tensor):
            self._decoder.apply(block)

    backward = forward


class _OverwriteStep:
    def __init__(
        self, version: int, tensor: str, decoder: OverwriteDecoder, old: OldValues | None, *, keeps: bool
    ) -> None:
        self._version, self._tensor, self._decoder, self._old, self._keeps = version, tensor, decoder, old, keeps

    def forward(self, block: Bytes, start: int) -> None:
        with naming(self._version, self._tensor):
            positions, values = self._decoder.window(start, start + len(block))
        if self._old is not None:
            if self._keeps:
                self._old.put(block[positions])
            else:
                self._old.skip(len(positions))
        block[positions] = values

    def backward(self, block: Bytes, start: int) -> None:
        assert self._old is not None, "an overwrite whose old bytes were not kept goes forward only"
        with naming(self._version, self._tensor):
            positions, _ = self._decoder.window(start, start + len(block))
            block[positions] = self._old.take(len(positions))


class _Reversed:
    """A step taken the other way: what it calls old is what the pass leads to."""

    def __init__(self, step: BlockStep) -> None:
        self.forward, self.backward = step.backward, step.forward


def open_step(
    version: int,
    tensor: str,
    encoding: Encoding,
    open_source: OpenSource,
    content_size: int,
    tensor_size: int,
    scratch: Bytes,
    old: OldValues | None,
    *,
    reverse: bool = False,
) -> BlockStep:
    """Sizes in bytes. Raises Malformed or CorruptPayload for a payload that cannot be applied (S13)."""
    with naming(version, tensor):
        if encoding is Encoding.XOR:
            return _XorStep(version, tensor, XorDecoder(open_source, tensor_size, scratch))
        decoder = OverwriteDecoder(open_source, content_size, tensor_size, _KEEP_BYTES)
    step = _OverwriteStep(version, tensor, decoder, old, keeps=not reverse)
    return _Reversed(step) if reverse else step


class FileRegion:
    """A sequential reader of a part of a file."""

    def __init__(self, file: fsio.File, offset: int, size_bytes: int) -> None:
        self._file, self._place, self._left = file, offset, size_bytes

    def read(self, size: int, /) -> bytes:
        size = min(size, self._left) if size >= 0 else self._left
        with cut_short(self._file.path):
            piece = self._file.read_at(size, self._place) if size else b""
        self._place += size
        self._left -= size
        return piece


class ReadInto(Protocol):
    def __call__(self, view: memoryview, offset: int) -> None: ...


def walk_frame(read_into: ReadInto, size_bytes: int, scratch: Bytes, take: ReadInto | None = None) -> None:
    """Read a payload once from first to last byte, checking that it is one whole frame; `take` gets each piece.

    Offsets are relative to the payload. Raises FormatError, PayloadError.
    """
    walker = FrameWalker(size_bytes)
    for done in range(0, size_bytes, len(scratch)):
        piece = scratch[: min(len(scratch), size_bytes - done)].data
        read_into(piece, done)
        walker.feed(piece)
        if take is not None:
            take(piece, done)
    walker.finish()
