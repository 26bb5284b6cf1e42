"""FIELD_GUIDE S13, S18: payloads that decode but cannot be right: hostile positions, and bits that flipped."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import toolkit
from tests.source_story import (
    VICTIM,
    Setting,
    Story,
    check_refusal,
    edit_frames,
    frame_of,
    in_settings,
    replace_frame,
    tell,
)

# Only decoding shows them, and a flipped bit (S18) makes them just as well as a bad publisher.
POSITIONS_REFUSED = (12, "corrupt_payload")

MakePayload = Callable[[Story], bytes]


def changes_of(story: Story) -> tuple[list[int], list[int]]:
    """The victim's right positions and new bytes; several of them."""
    old, new = toolkit.as_bytes_array(story.old), toolkit.as_bytes_array(story.new)
    positions = [int(position) for position in np.flatnonzero(old != new)]
    assert len(positions) > 4
    return positions, [story.new[position] for position in positions]


def pack(positions: list[int], values: list[int], count: int | None = None) -> bytes:
    stated = len(positions) if count is None else count
    return struct.pack(f"<I{len(positions)}I", stated, *positions) + bytes(values)


def unsorted(story: Story) -> bytes:
    """Every change is right: only the order is not."""
    positions, values = changes_of(story)
    return pack(positions[::-1], values[::-1])


def two_exchanged(story: Story) -> bytes:
    positions, values = changes_of(story)
    positions[-1], positions[-2] = positions[-2], positions[-1]
    values[-1], values[-2] = values[-2], values[-1]
    return pack(positions, values)


def repeated_with_the_same_value(story: Story) -> bytes:
    positions, values = changes_of(story)
    return pack([*positions, positions[-1]], [*values, values[-1]])


def repeated_with_another_value(story: Story) -> bytes:
    positions, values = changes_of(story)
    return pack([positions[0], *positions], [values[0] ^ 1, *values])


def one_past_the_end(story: Story) -> bytes:
    positions, values = changes_of(story)
    return pack([*positions, len(story.new)], [*values, 0])


def far_past_the_end(story: Story) -> bytes:
    positions, values = changes_of(story)
    return pack([*positions, 0xFFFFFFFF], [*values, 0])


@in_settings()
@pytest.mark.parametrize(
    "make",
    [
        unsorted,
        two_exchanged,
        repeated_with_the_same_value,
        repeated_with_another_value,
        one_past_the_end,
        far_past_the_end,
    ],
)
def test_s13_positions_unsorted_repeated_or_out_of_range(make: MakePayload, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting, encoding="overwrite")
    replace_frame(story.shard, toolkit.compress(make(story)))
    story.refuse(*POSITIONS_REFUSED, tensors=[VICTIM])
    story.mend_and_recover()


def count_one_more(story: Story) -> bytes:
    positions, values = changes_of(story)
    return pack(positions, values, count=len(positions) + 1)


def count_one_less(story: Story) -> bytes:
    positions, values = changes_of(story)
    return pack(positions, values, count=len(positions) - 1)


def count_of_nothing(story: Story) -> bytes:
    positions, values = changes_of(story)
    return pack(positions, values, count=0)


def count_huge(story: Story) -> bytes:
    positions, values = changes_of(story)
    return pack(positions, values, count=0xFFFFFFFF)


def one_value_for_all_positions(story: Story) -> bytes:
    """numpy would broadcast it."""
    positions, values = changes_of(story)
    return pack(positions, values[:1])


def one_value_for_all_positions_in_a_size_that_fits(story: Story) -> bytes:
    """4 + 4 * 6 + 1 bytes are also the size of five whole changes."""
    positions, values = changes_of(story)
    payload = pack((positions * 6)[:6], values[:1])
    assert (len(payload) - 4) % 5 == 0
    return payload


def more_changes_than_bytes(story: Story) -> bytes:
    size = len(story.new)
    return pack([*range(size), size - 1], [*story.new, story.new[-1]])


def no_count(story: Story) -> bytes:
    return b"\0\0\0"


@in_settings()
@pytest.mark.parametrize(
    "make",
    [
        count_one_more,
        count_one_less,
        count_of_nothing,
        count_huge,
        one_value_for_all_positions,
        one_value_for_all_positions_in_a_size_that_fits,
        more_changes_than_bytes,
        no_count,
    ],
)
def test_s13_a_count_that_does_not_fit(make: MakePayload, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting, encoding="overwrite")
    replace_frame(story.shard, toolkit.compress(make(story)))
    story.refuse(11, "malformed", tensors=[VICTIM])
    story.mend_and_recover()


@in_settings()
def test_s13_an_overwrite_of_every_byte_and_of_none_is_right(setting: Setting, tmp_path: Path) -> None:
    """The bounds themselves are allowed: all positions of a tensor, and a payload that changes nothing."""
    story = tell(tmp_path, setting, encoding="overwrite")
    everything = pack(list(range(len(story.new))), list(story.new))
    replace_frame(story.shard, toolkit.compress(everything))
    story.recover()


@in_settings(Setting.ONLY, Setting.FRESH)
def test_s13_an_overwrite_without_changes_leaves_the_tensor(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting, encoding="overwrite")
    story.models[story.bad][VICTIM] = story.models[story.bad - 1][VICTIM]
    replace_frame(story.shard, toolkit.compress(pack([], [])), checksum=toolkit.digest(story.old))
    story.recover()


def flip_in_the_frame(story: Story) -> None:
    """A bit of the compressed bytes on the share; the file stays as long."""
    frame = bytearray(frame_of(story.shard))
    frame[len(frame) * 3 // 4] ^= 0x10
    replace_frame(story.shard, bytes(frame))


def flip_in_the_content(story: Story) -> None:
    """Decodes well, to bytes that are wrong in one bit."""
    wrong = bytearray(story.new)
    changed = int(np.flatnonzero(toolkit.as_bytes_array(story.old) != toolkit.as_bytes_array(story.new))[-1])
    wrong[changed] ^= 0x80
    replace_frame(story.shard, toolkit.compress(toolkit.encode_delta(story.old, bytes(wrong), story.encoding)))


def flip_in_the_digest(story: Story) -> None:
    right = toolkit.digest(story.new, story.checksum)
    flipped = f"{int(right, 16) ^ 1:0{len(right)}x}"
    replace_frame(story.shard, frame_of(story.shard), checksum=flipped)


FLIPS: list[tuple[Callable[[Story], None], tuple[str, ...]]] = [
    (flip_in_the_frame, ("checksum_mismatch", "corrupt_payload")),
    (flip_in_the_content, ("checksum_mismatch",)),
    (flip_in_the_digest, ("checksum_mismatch",)),
]


@in_settings()
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("checksum", ["xxh3-128", "blake3", "adler32"])
@pytest.mark.parametrize(("flip", "identifiers"), FLIPS, ids=[flip[0].__name__ for flip in FLIPS])
def test_s18_a_flipped_bit_is_refused_and_heals_when_it_is_published_right(
    flip: Callable[[Story], None],
    identifiers: tuple[str, ...],
    checksum: str,
    encoding: str,
    setting: Setting,
    tmp_path: Path,
) -> None:
    story = tell(tmp_path, setting, encoding=encoding, checksum=checksum)
    flip(story)
    if flip is flip_in_the_digest and setting is Setting.MIDDLE:
        # Only this version's own digest is wrong; a pass through it is proved by the target's.
        refused = check_refusal(story.pull(story.bad), 12, identifiers)
        assert refused.error["version"] == story.bad
        story.check_local_at(story.start)
        story.recover()
        return
    story.refuse(12, identifiers, tensors=[VICTIM])
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
def test_s18_mended_in_place_with_the_old_size(setting: Setting, tmp_path: Path) -> None:
    """The publisher rewrites only the shard's bytes: same name, same size, same inode."""
    story = tell(tmp_path, setting)
    shard, right = story.shard, story.shard.read_bytes()
    flip_in_the_frame(story)
    assert shard.stat().st_size == len(right)
    story.refuse(12, ("checksum_mismatch", "corrupt_payload"), tensors=[VICTIM])
    shard.write_bytes(right)
    story.recover()


def test_s18_the_versions_below_a_flipped_bit_stay_in_reach(tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.LAST)
    flip_in_the_content(story)
    story.refuse(12, "checksum_mismatch", tensors=[VICTIM])
    assert story.pull(5).code == 0
    story.check_local_at(5)
    result = story.pull("latest")
    assert (result.code, result.error["id"], result.error["version"]) == (12, "checksum_mismatch", 6)
    story.check_local_at(5)


@in_settings(Setting.MIDDLE, Setting.LAST)
def test_s18_a_flipped_bit_in_the_largest_tensor(setting: Setting, tmp_path: Path) -> None:
    """The other end: the first tensor that is written, while others are in work beside it."""
    story = tell(tmp_path, setting)
    largest = max(story.models[0], key=lambda name: len(story.models[0][name].data))
    (shard,) = [path for path in story.directory.glob("*.safetensors") if largest in toolkit.split_shard(path)[0]]
    old, new = (story.models[version][largest].data for version in (story.bad - 1, story.bad))
    payload = bytearray(toolkit.encode_delta(old, new, story.encoding))
    payload[-1] ^= 1
    edit_frames(shard, {largest: (toolkit.compress(bytes(payload)), toolkit.digest(new))})
    story.refuse(12, "checksum_mismatch", tensors=[largest])
    story.mend_and_recover()
