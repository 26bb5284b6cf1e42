"""zstd frames as containers: what can be known of one without decoding it.

A payload is exactly one frame that states its content size (docs/FORMAT.md). `check_frame` reads the frame
header; `FrameWalker` follows the block headers of a frame as its bytes pass by, so a frame cut short, a second
frame or trailing bytes are found before anything is decoded (FIELD_GUIDE S11, S12). Block layout: RFC 8878.
"""

from __future__ import annotations

import zstandard

from vime_sync.format.problems import FormatError, PayloadError

# Longest frame header: magic 4, descriptor 1, window 1, dictionary 4, content size 8.
MAX_FRAME_HEADER_BYTES = 18
# Publishers use level 1 (512 KiB); every level up to 19 stays within this. Bounds a decoder's memory.
MAX_WINDOW_BYTES = 8 << 20
_CONTENT_SIZE_UNKNOWN = (1 << 64) - 1
_BLOCK_HEADER_BYTES = 3
_CHECKSUM_BYTES = 4
_RAW, _RUN, _COMPRESSED = 0, 1, 2
# A frame that decoders pass over: sixteen magic numbers, little-endian, of which the first byte's low half differs.
_SKIPPABLE_FIRST, _SKIPPABLE_REST = 0x50, b"\x2a\x4d\x18"


def content_size_of(prefix: bytes) -> int:
    """The content size a frame states, from its first MAX_FRAME_HEADER_BYTES (or all, if shorter).

    Raises FormatError when it is no zstd frame, one to be skipped, states no size, or wants a dictionary or a huge
    window.
    """
    if prefix[1:4] == _SKIPPABLE_REST and prefix[0] & 0xF0 == _SKIPPABLE_FIRST:
        raise FormatError("payload begins with a skippable zstd frame, expected one frame alone")
    try:
        parameters = zstandard.get_frame_parameters(prefix)
    except zstandard.ZstdError as problem:
        raise FormatError(f"payload is not a zstd frame ({problem})") from None
    if parameters.content_size == _CONTENT_SIZE_UNKNOWN:
        raise FormatError("zstd frame states no content size")
    if parameters.dict_id:
        raise FormatError(f"zstd frame wants the dictionary {parameters.dict_id}, expected none")
    if parameters.window_size > MAX_WINDOW_BYTES:
        raise FormatError(
            f"zstd frame wants a window of {parameters.window_size} bytes, expected at most {MAX_WINDOW_BYTES}"
        )
    return int(parameters.content_size)


class FrameWalker:
    """Follows one frame through the pieces handed to `feed`; `finish` says whether it was whole and alone.

    The first piece must hold the frame header: MAX_FRAME_HEADER_BYTES of it, or the whole payload.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._position = 0  # bytes fed so far
        self._next = 0  # place of the next block header, or the frame's end once `_done`
        self._pending = b""  # a block header split over two pieces
        self._has_checksum = False
        self._done = False

    def feed(self, piece: bytes | memoryview) -> None:
        start = self._position
        self._position += len(piece)
        if start == 0:
            head = bytes(piece[:MAX_FRAME_HEADER_BYTES])
            self._has_checksum = zstandard.get_frame_parameters(head).has_checksum
            self._next = zstandard.frame_header_size(head)
        while not self._done:
            begin = self._next + len(self._pending)
            if begin >= self._position:
                return
            self._pending += bytes(piece[begin - start : self._next + _BLOCK_HEADER_BYTES - start])
            if len(self._pending) < _BLOCK_HEADER_BYTES:
                return
            self._take_block_header(int.from_bytes(self._pending, "little"))
            self._pending = b""

    def finish(self) -> None:
        """Raises PayloadError for a frame cut short (S12), FormatError for bytes after its end (S11)."""
        if not self._done or self._next > self._size_bytes:
            raise PayloadError(f"zstd frame is cut short: it goes on past its {self._size_bytes} bytes")
        if self._next < self._size_bytes:
            trailing = self._size_bytes - self._next
            raise FormatError(f"{trailing} bytes follow the zstd frame of {self._next}, expected one frame alone")

    def _take_block_header(self, word: int) -> None:
        kind, size = word >> 1 & 3, word >> 3
        if kind not in (_RAW, _RUN, _COMPRESSED):
            raise PayloadError(f"zstd block at byte {self._next} has a reserved type")
        self._next += _BLOCK_HEADER_BYTES + (1 if kind == _RUN else size)
        if word & 1:
            self._next += _CHECKSUM_BYTES if self._has_checksum else 0
            self._done = True
