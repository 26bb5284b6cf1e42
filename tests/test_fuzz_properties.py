"""Parsers and codecs over inputs that hypothesis makes up: what is right is taken, and does the right thing.

`FUZZ_TIMES=100` looks at so many times more examples, other ones each time.
"""

import json
import os
import struct
from pathlib import PurePosixPath
from typing import Any, cast

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile import parts
from vime_sync.format.codec import Bytes, OverwriteDecoder, XorDecoder
from vime_sync.format.frame import FrameWalker, content_size_of
from vime_sync.format.header import parse_header
from vime_sync.format.index import check_file_name, version_of_directory
from vime_sync.format.problems import FormatError, PayloadError
from vime_sync.format.strict_json import parse_object
from vime_sync.local.journal import Journal, Side

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
fuzz = settings(max_examples=120 * TIMES, deadline=None, database=None, derandomize=TIMES == 1)

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


class _Source:
    """A frame, given in pieces of at most so many bytes."""

    def __init__(self, frame: bytes, most: int) -> None:
        self._frame, self._most = frame, most

    def read(self, size: int, /) -> bytes:
        size = min(size, self._most)
        piece, self._frame = self._frame[:size], self._frame[size:]
        return piece


# ---- JSON, headers, names


@fuzz
@given(_VALUES)
def test_json_that_any_reader_takes_is_taken_alike(value: Any) -> None:
    raw = json.dumps(value).encode()
    strict = not any(word in raw for word in (b"NaN", b"Infinity")) and b"\\ud" not in raw
    try:
        found = parse_object(raw, "it")
    except FormatError:
        assert not isinstance(value, dict) or not strict
    else:
        assert found == value


@fuzz
@given(st.binary(max_size=200))
def test_bytes_that_are_no_json_object_are_refused(raw: bytes) -> None:
    for parse in (lambda: parse_object(raw, "it"), lambda: parse_header(raw)):
        try:
            parse()
        except FormatError:
            continue
        json.loads(raw)


@fuzz
@given(
    st.dictionaries(
        st.text(max_size=12).filter(lambda name: name != "__metadata__" and name.isprintable()),
        st.tuples(st.sampled_from(["U8", "BF16", "F32", "I64"]), st.lists(st.integers(0, 5), max_size=4)),
        max_size=8,
    )
)
def test_a_right_header_is_taken_as_it_is(tensors: dict[str, tuple[str, list[int]]]) -> None:
    widths = {"U8": 1, "BF16": 2, "F32": 4, "I64": 8}
    specs = {name: (kind, shape, int(np.prod(shape)) * widths[kind]) for name, (kind, shape) in tensors.items()}
    header = parse_header(parts.dump(parts.full_header(specs)))
    assert header.data_size_bytes == sum(size for _, _, size in specs.values())
    found = {name: (spec.dtype, list(spec.shape), spec.size_bytes) for name, spec in header.tensors.items()}
    assert found == specs


_PIECES = st.sampled_from(
    ["..", ".", "", "a", "x.safetensors", ".git", ".weight_sync", "\0", "\u202e", "\n", "C:", "~"]
)


@fuzz
@given(st.lists(_PIECES | st.text(max_size=5), max_size=6).map("/".join), st.booleans())
def test_a_file_name_that_is_taken_lies_inside(name: str, named: bool) -> None:
    name = f"{name}.safetensors" if named else name
    try:
        check_file_name(name)
    except FormatError:
        return
    assert not PurePosixPath(name).is_absolute()
    assert os.path.normpath(name) == name and name.split("/")[0] != ".."
    assert b"\0" not in os.fsencode(name)


@fuzz
@given(st.from_regex(r"(weight_v)?[0-9]{0,9}(\.tmp)?", fullmatch=True) | st.text(max_size=16))
def test_a_directory_is_a_version_only_under_its_one_name(name: str) -> None:
    version = version_of_directory(name)
    assert version is None or (version > 0 and name == f"weight_v{version:06d}")


# ---- codecs


@fuzz
@given(
    st.binary(max_size=3000),
    st.randoms(use_true_random=False),
    st.integers(1, 1500),
    st.integers(1, 64),
    st.integers(1, 9),
)
def test_a_xor_payload_leads_there_and_back(old: bytes, rng: Any, block_bytes: int, most: int, level: int) -> None:
    new = bytes(byte ^ rng.choice((0, 0, 0, rng.randrange(256))) for byte in old)
    frame = zstandard.ZstdCompressor(level=level).compress(bytes(a ^ b for a, b in zip(old, new, strict=True)))
    held = np.frombuffer(old, np.uint8).copy()
    for expected in (new, old):
        assert content_size_of(frame[:18]) == len(old)
        decoder = XorDecoder(lambda: _Source(frame, most), len(old), np.empty(block_bytes, np.uint8))
        for start in range(0, len(held), block_bytes):
            decoder.apply(held[start : start + block_bytes])
        assert held.tobytes() == expected


def _overwritten(payload: bytes, old: bytes, block_bytes: int, keep_bytes: int, most: int) -> Bytes:
    frame = parts.frame(payload)
    held = np.frombuffer(old, np.uint8).copy()
    decoder = OverwriteDecoder(lambda: _Source(frame, most), len(payload), len(old), keep_bytes)
    for start in range(0, len(held), block_bytes):
        places, values = decoder.window(start, min(start + block_bytes, len(held)))
        held[start : start + block_bytes][places] = values
    return cast("Bytes", held)


@fuzz
@given(
    st.binary(min_size=1, max_size=2000),
    st.dictionaries(st.integers(0, 1999), st.integers(0, 255), max_size=200),
    st.integers(1, 700),
    st.sampled_from([0, 1 << 20]),
    st.integers(1, 64),
)
def test_an_overwrite_payload_sets_what_it_says(
    old: bytes, changes: dict[int, int], block_bytes: int, keep_bytes: int, most: int
) -> None:
    pairs = sorted((place, value) for place, value in changes.items() if place < len(old))
    expected = bytearray(old)
    for place, value in pairs:
        expected[place] = value
    assert _overwritten(parts.overwrite(pairs), old, block_bytes, keep_bytes, most).tobytes() == bytes(expected)


@fuzz
@given(
    st.lists(st.integers(0, 40) | st.integers(0, 2**32 - 1), max_size=30),
    st.integers(1, 40),
    st.sampled_from([0, 1 << 20]),
)
def test_positions_are_taken_only_ascending_and_inside(places: list[int], size_bytes: int, keep_bytes: int) -> None:
    right = places == sorted(set(places)) and all(place < size_bytes for place in places)
    try:
        _overwritten(parts.overwrite((place, 7) for place in places), bytes(size_bytes), 16, keep_bytes, 8)
    except (FormatError, PayloadError):
        assert not right
    else:
        assert right


@fuzz
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 300)), min_size=1, max_size=12),
    st.binary(max_size=8),
    st.integers(1, 40),
)
def test_a_frame_made_of_any_blocks_is_one_frame_and_with_more_behind_it_is_not(
    blocks: list[tuple[int, int]], behind: bytes, most: int
) -> None:
    body = b"".join(
        parts.block(kind, size, b"x" if kind == 1 else bytes(size), last=number == len(blocks))
        for number, (kind, size) in enumerate(blocks, start=1)
    )
    frame = parts.opening(1000) + body + behind
    walker = FrameWalker(len(frame))
    walker.feed(frame[:18])
    for place in range(18, len(frame), most):
        walker.feed(frame[place : place + most])
    if behind:
        with pytest.raises(FormatError, match="follow"):
            walker.finish()
    else:
        walker.finish()


# ---- the block record

_RECORD_BYTES = 40


@fuzz
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(list(Side))), max_size=20),
    st.binary(max_size=100) | st.integers(0, 800),
    st.integers(0, 10**6),
)
def test_of_a_journal_the_whole_records_count_up_to_the_first_that_is_not(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[int, int, Side]], tail: bytes | int, flip: int
) -> None:
    """Garbage behind it, a cut, or one flipped bit: what stood before is known as it was."""
    path = tmp_path_factory.mktemp("journal") / "journal"
    counts = [4, 4, 4]
    journal = Journal(path, counts, fresh=True)
    for tensor, block, side in records:
        journal.record(tensor, block, side, 1, 2)
    journal.close()
    raw = bytearray(path.read_bytes())
    assert len(raw) == _RECORD_BYTES * len(records)
    whole = len(records)
    if isinstance(tail, bytes):
        raw += tail
    elif raw and flip % 2:
        raw[flip % len(raw)] ^= 1 << flip % 8
        whole = flip % len(raw) // _RECORD_BYTES
    else:
        raw = raw[:tail]
        whole = min(whole, tail // _RECORD_BYTES)
    path.write_bytes(raw)
    again = Journal(path, counts, fresh=False)
    again.close()
    for tensor in range(len(counts)):
        mine = [(block, side) for number, block, side in records[:whole] if number == tensor]
        assert again.begun(tensor) is bool(mine)
        for block in range(4):
            assert again.side(tensor, block) is dict(mine).get(block, Side.OLD)


@fuzz
@given(st.binary(max_size=400), st.lists(st.integers(0, 5), max_size=4))
def test_a_journal_of_garbage_says_nothing(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, counts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    path.write_bytes(raw)
    journal = Journal(path, counts, fresh=False)
    journal.close()
    assert not any(journal.begun(tensor) for tensor in range(len(counts)))


def test_the_parts_are_right() -> None:
    """The control: the hand-made frames are what the library reads."""
    payload = parts.overwrite([(3, 4), (5, 6)])
    assert zstandard.ZstdDecompressor().decompress(parts.frame(payload)) == payload
    assert payload == struct.pack("<III", 2, 3, 5) + bytes([4, 6])
