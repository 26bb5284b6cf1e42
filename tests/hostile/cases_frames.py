"""Hostile payloads: frames that are not exactly one whole frame, bombs, counts and positions."""

# ruff: noqa: E501 - one case a line, as in the README

import struct
from collections.abc import Mapping

from tests.hostile.parts import BLOCK_BYTES, VICTIM, Case, Link, block, changes, delta, frame, opening, overwrite, xor

# The right xor payload of a tensor of 300 bytes, and 300 others in a compressed block with Huffman literals.
RIGHT = xor(2, VICTIM)
COMPRESSED = bytes.fromhex(
    "28b52ffd602c0095030032890a06e0e9bb01d411db5dd934420aafda4db10e844e4ad56dd250508866c25948451bcb4d467c97c08c243b1c"
    "007f13e067437b3bc0590366d323c600a7cd99cc31bcf91bc4686e74de009da3c36b80232e8193ba6a9083d7c4863a16c6f3284d930bcbf2"
    "b958705b4fa18b6b5518a6f6"
)
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"


# Wrong bytes in a payload that decodes.
MISMATCH = "checksum_mismatch"
# Malformed, and known only once the whole payload has passed by.
LATE = "late"
_IDENTIFIERS = {0: "", 11: "malformed", 12: "corrupt_payload", 13: "lineage_mismatch"}


def _case(name: str, tries: str, code: int, files: Mapping[str, bytes | Link], how: str) -> Case:
    identifier = how if how == MISMATCH else _IDENTIFIERS[code]
    return Case(name, tries, code, identifier, files, 0, code == 12 or how == LATE)


def _xor(name: str, tries: str, code: int, victim: bytes, how: str = "") -> Case:
    return _case(name, tries, code, delta(victim=victim), how)


def _overwrite(name: str, tries: str, code: int, payload: bytes, how: str = "") -> Case:
    return _case(name, tries, code, delta(encoding="overwrite", victim=frame(payload)), how)


def _containers() -> list[Case]:
    right = frame(RIGHT)
    unsized = b"\x28\xb5\x2f\xfd" + bytes([0x00, 7 << 3]) + block(0, 300, RIGHT, last=True)
    dictionary = (
        b"\x28\xb5\x2f\xfd" + bytes([0x81, 7 << 3, 42]) + struct.pack("<I", 300) + block(0, 300, RIGHT, last=True)
    )
    eight_bytes = b"\x28\xb5\x2f\xfd" + bytes([0xC0, 7 << 3])
    checked = opening(300, descriptor=0x84) + block(0, 300, RIGHT, last=True)
    halves = opening(300) + block(0, 150, RIGHT[:150]) + block(0, 150, RIGHT[150:], last=True)
    return [
        _xor("frame-two-blocks", "the control: a right frame made by hand, of two blocks", 0, halves),
        _xor("frame-two", "two frames that are right together", 13, frame(RIGHT[:150]) + frame(RIGHT[150:])),
        _xor("frame-twice", "the right frame twice", 11, right + right, LATE),
        _xor("frame-trailing-byte", "a byte behind the frame", 11, right + b"\0", LATE),
        _xor("frame-trailing-garbage", "garbage behind the frame", 11, right + bytes(range(256)), LATE),
        _xor("frame-no-content-size", "a frame that states no size", 11, unsized),
        _xor("frame-content-size-less", "a frame that states a byte less", 13, frame(RIGHT, size=299)),
        _xor("frame-content-size-more", "a frame that states a byte more", 13, frame(RIGHT, size=301)),
        _xor("frame-content-size-u64", "a frame that states 2^64-2 bytes", 13, eight_bytes + struct.pack("<Q", 2**64 - 2) + block(0, 300, RIGHT, last=True)),
        _xor("frame-content-size-unknown", "a stated size that means `unknown` inside the library", 11, eight_bytes + struct.pack("<Q", 2**64 - 1) + block(0, 300, RIGHT, last=True)),
        _xor("frame-content-less", "a whole frame with less than it states", 12, frame(RIGHT[:299], size=300)),
        _xor("frame-content-more", "a whole frame with more than it states", 12, frame(RIGHT + b"x", size=300)),
        _xor("frame-skippable-before", "a skippable frame before the right one", 11, SKIPPABLE + right),
        _xor("frame-skippable-after", "a skippable frame behind the right one", 11, right + SKIPPABLE, LATE),
        _xor("frame-skippable-only", "nothing but a skippable frame", 11, SKIPPABLE),
        _xor("frame-dictionary", "a frame that wants a dictionary", 11, dictionary),
        _xor("frame-window-2-gib", "a frame that wants 2 GiB of window", 11, frame(RIGHT, window_log=31)),
        _xor("frame-window-16-mib", "a window one step over what is allowed", 11, frame(RIGHT, window_log=24)),
        _xor("frame-window-8-mib", "the control: the largest window allowed", 0, frame(RIGHT, window_log=23)),
        _xor("frame-reserved-bit", "the reserved bit of the frame header", 11, frame(RIGHT, descriptor=0x88)),
        _xor("frame-magic", "no frame at all", 11, b"\x1f\x8b" + right[2:]),
        _xor("frame-magic-old", "the magic of a format before 0.8", 11, b"\x27\xb5\x2f\xfd" + right[4:]),
        _xor("frame-checksum-wrong", "a frame with a wrong checksum of its own", 12, checked + b"\0\0\0\0"),
        _xor("frame-block-reserved", "a block of the reserved type", 12, opening(300) + block(3, 300, RIGHT, last=True)),
        _xor("frame-block-large", "a raw block that states 2 MiB", 12, opening(300) + block(0, (2 << 20) - 1, RIGHT, last=True)),
        _xor("frame-block-garbage", "garbage as a compressed block", 12, opening(300) + block(2, 40, b"\xff" * 40, last=True)),
        _xor("frame-block-compressed-empty", "a compressed block without a byte", 12, opening(300) + block(2, 0, b"", last=True)),
        _xor("frame-block-repeats-past-size", "a run that goes on past the stated size", 12, opening(300) + block(1, 70_000, b"\0", last=True)),
        _xor("frame-wrong-content", "a right frame of the wrong bytes", 12, frame(bytes(300)), MISMATCH),
    ]  # fmt: skip


def _cuts() -> list[Case]:
    right = frame(RIGHT)
    checked = opening(300, descriptor=0x84) + block(0, 300, RIGHT, last=True)
    whole = COMPRESSED
    return [
        _xor("cut-in-magic", "three bytes of a frame", 11, right[:3]),
        _xor("cut-after-magic", "a frame's magic alone", 11, right[:4]),
        _xor("cut-in-header", "a frame cut in its header", 11, right[:7]),
        _xor("cut-after-header", "a frame cut behind its header", 12, right[:10]),
        _xor("cut-in-block-header", "a frame cut in a block's header", 12, right[:12]),
        _xor("cut-after-block-header", "a frame cut behind a block's header", 12, right[:13]),
        _xor("cut-in-raw-block", "a frame cut in a raw block", 12, right[:100]),
        _xor("cut-last-byte", "a frame without its last byte", 12, right[:-1]),
        _xor("cut-before-last-block", "all of the content, and the last block never comes", 12, frame(RIGHT, ended=False)),
        _xor("cut-checksum", "a frame without its checksum", 12, checked),
        _xor("cut-in-checksum", "a frame with half of its checksum", 12, checked + b"\0\0"),
        _xor("cut-in-literals", "a compressed block cut in its literals", 12, whole[:60]),
        _xor("cut-in-sequences", "a compressed block cut in its sequences", 12, whole[:-2]),
        _xor("cut-block-says-less", "a compressed block whose header says less than it has", 11, whole[:7] + (int.from_bytes(whole[7:10], "little") - (1 << 3)).to_bytes(3, "little") + whole[10:], LATE),
    ]  # fmt: skip


def _bombs() -> list[Case]:
    run = block(1, BLOCK_BYTES, b"\0")
    inflated = 4096 * BLOCK_BYTES
    runs = run * 4095 + block(1, BLOCK_BYTES, b"\0", last=True)
    empty = block(0, 0, b"") * 15_000
    lying = delta(encoding="overwrite", victim=opening(4 + 5 * 3) + runs)
    honest = delta(encoding="overwrite", victim=opening(inflated, 20) + runs)
    unsized = b"\x28\xb5\x2f\xfd" + bytes([0x00, 7 << 3]) + runs
    return [
        _xor("bomb-honest", "16 kB that say they are 512 MiB", 13, opening(inflated, 20) + runs),
        _xor("bomb-lying", "16 kB that are 512 MiB and say 300 bytes", 12, opening(300) + runs),
        _xor("bomb-unsized", "16 kB that are 512 MiB and say nothing", 11, unsized),
        _xor("bomb-window", "a window of 3.75 TB, of which the library would allocate what it may", 11, b"\x28\xb5\x2f\xfd\x80\xff" + struct.pack("<I", 300) + block(0, 300, RIGHT, last=True)),
        _xor("bomb-late", "the right content, and then 512 MiB of zeros", 12, opening(300) + block(0, 300, RIGHT) + runs),
        _xor("bomb-empty-blocks", "15,000 blocks of nothing before the right one: harmless, only slow", 0, opening(300) + empty + block(0, 300, RIGHT, last=True)),
        _case("bomb-overwrite-lying", "an overwrite of 512 MiB that says 19 bytes", 12, lying, ""),
        _case("bomb-overwrite-honest", "an overwrite of 512 MiB that says so", 11, honest, ""),
    ]  # fmt: skip


def _counts() -> list[Case]:
    right = changes(2, VICTIM)
    few = right[:5]
    return [
        _overwrite("count-right", "the control: a right overwrite made by hand", 0, overwrite(right)),
        _overwrite("count-more", "one change more than there are", 11, overwrite(few, count=6), LATE),
        _overwrite("count-less", "one change less than there are", 11, overwrite(few, count=4), LATE),
        _overwrite("count-zero", "no change told, five there", 11, overwrite(few, count=0), LATE),
        _overwrite("count-u32", "2^32-1 changes told", 11, overwrite(few, count=2**32 - 1), LATE),
        _overwrite("count-wraps", "a count whose size in bytes is right modulo 2^32", 11, overwrite(few, count=0x33333333 * 4 + 5), LATE),
        _overwrite("count-big-endian", "the count in the other byte order", 11, struct.pack(">I", 5) + overwrite(few)[4:], LATE),
        _overwrite("count-no-bytes", "no byte of content", 11, b""),
        _overwrite("count-three-bytes", "three bytes of content", 11, b"\0\0\0"),
        _overwrite("count-one-value", "one value for five positions, which numpy would spread", 11, overwrite(few)[:-4]),
        _overwrite("count-one-value-fits", "one value for six positions, of a size that fits five", 11, struct.pack("<7I", 6, *range(6)) + b"x", LATE),
        _overwrite("count-more-than-bytes", "more changes than the tensor has bytes", 11, overwrite((place % 300, 0) for place in range(301))),
    ]  # fmt: skip


def _positions() -> list[Case]:
    right = changes(2, VICTIM)
    return [
        _overwrite("position-one-past", "a position one past the end", 12, overwrite([*right, (300, 0)][-300:])),
        _overwrite("position-u32", "position 2^32-1", 12, overwrite([*right[:9], (2**32 - 1, 0)])),
        _overwrite("position-sign", "position 2^31: negative where it is read signed", 12, overwrite([*right[:9], (2**31, 0)])),
        _overwrite("position-unsorted", "two positions exchanged", 12, overwrite([right[1], right[0], *right[2:]])),
        _overwrite("position-descending", "all positions the other way round", 12, overwrite(right[::-1])),
        _overwrite("position-repeated", "a position twice, with the same value", 12, overwrite([right[0], *right[:200]])),
        _overwrite("position-repeated-other", "a position twice, with two values", 12, overwrite([right[0], (right[0][0], 0), *right[1:200]])),
        _overwrite("position-all-zero", "300 times position 0", 12, overwrite((0, value % 256) for value in range(300))),
        _overwrite("position-big-endian", "positions in the other byte order", 12, struct.pack("<I", 3) + struct.pack(">3I", 1, 2, 3) + b"abc"),
        _overwrite("position-wrong-value", "right positions, and one wrong value", 12, overwrite([*right[:-1], (right[-1][0], right[-1][1] ^ 1)]), MISMATCH),
        _overwrite("position-too-few", "a change left out", 12, overwrite(right[:-1]), MISMATCH),
    ]  # fmt: skip


CASES = [*_containers(), *_cuts(), *_bombs(), *_counts(), *_positions()]
