"""The three digests of the stream behind one small interface; xxh3-128 is also ours for everything local."""

from __future__ import annotations

import zlib
from typing import Protocol

import blake3
import xxhash

from vime_sync.format.problems import FormatError
from vime_sync.model import ChecksumFormat

Buffer = bytes | bytearray | memoryview

DIGEST_DIGITS = {ChecksumFormat.XXH3_128: 32, ChecksumFormat.BLAKE3: 64, ChecksumFormat.ADLER32: 8}


class Hasher(Protocol):
    def update(self, data: Buffer, /) -> object: ...

    def hexdigest(self) -> str: ...


class _Adler32:
    """Initial value 1, eight hex digits (docs/FORMAT.md)."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: Buffer, /) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


def new_hasher(checksum: ChecksumFormat) -> Hasher:
    if checksum is ChecksumFormat.XXH3_128:
        return xxhash.xxh3_128()
    if checksum is ChecksumFormat.BLAKE3:
        return blake3.blake3()
    return _Adler32()


def xxh3(data: Buffer) -> str:
    """Our own digest of a small thing, as hex."""
    return xxhash.xxh3_128(data).hexdigest()


def block_digest(data: Buffer) -> int:
    """The 64-bit digest of one block: tells old, new and torn apart, and proves nothing beyond that."""
    return xxhash.xxh3_64_intdigest(data)


def check_digest(digest: str, checksum: ChecksumFormat) -> None:
    """Raises FormatError unless `digest` is lower-case hex of the right length."""
    digits = DIGEST_DIGITS[checksum]
    if len(digest) != digits or set(digest) - set("0123456789abcdef"):
        raise FormatError(f"digest {digest[:80]!r}, expected {digits} hex digits of {checksum.value}")
