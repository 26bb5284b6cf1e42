"""FIELD_GUIDE S12, S13, S18 on a tensor of many megabytes: much of it is written before the fault at its end shows."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import toolkit
from tests.source_story import VICTIM, Setting, Story, frame_of, frame_of_blocks, in_settings, replace_frame, tell
from tests.toolkit import compress

VICTIM_BYTES = (3 << 20) + 12_345
# Enough changes that an overwrite payload is megabytes too, and its positions come in several pieces.
DENSITY = 0.2

Fault = Callable[[Story], None]
Positions = np.ndarray[tuple[int], np.dtype[np.uint32]]


def tell_large(directory: Path, setting: Setting, encoding: str) -> Story:
    return tell(directory, setting, encoding=encoding, victim_bytes=VICTIM_BYTES, density=DENSITY)


def last_byte_wrong(story: Story) -> None:
    """The digest of the whole shows it, once every block is made; no later overwrite makes it good again."""
    payload = bytearray(story.payload)
    if story.encoding == "xor":
        payload[-1] ^= 1
    else:
        versions = [toolkit.as_bytes_array(model[VICTIM].data) for model in story.models[story.bad - 1 :]]
        positions = np.flatnonzero(versions[0] != versions[1])
        lasting = np.all([version[positions] == versions[1][positions] for version in versions[1:]], axis=0)
        payload[int(np.flatnonzero(lasting)[-1]) - len(positions)] ^= 1  # the values are the payload's end
    replace_frame(story.shard, compress(bytes(payload)))


def frame_cut_near_its_end(story: Story) -> None:
    frame = frame_of(story.shard)
    replace_frame(story.shard, frame[: len(frame) * 19 // 20])


def last_block_of_the_frame_undecodable(story: Story) -> None:
    """The frame looks whole; its last block says that it is compressed, and is garbage."""
    pieces = [story.payload[start : start + 100_000] for start in range(0, len(story.payload), 100_000)]
    frame = bytearray(frame_of_blocks([*pieces[:-1], b"\xff" * 40], len(story.payload)))
    frame[-43] |= 0b100
    replace_frame(story.shard, bytes(frame))


@in_settings()
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize(
    ("fault", "identifier"),
    [
        (last_byte_wrong, "checksum_mismatch"),
        (frame_cut_near_its_end, "corrupt_payload"),
        (last_block_of_the_frame_undecodable, "corrupt_payload"),
    ],
)
def test_s12_s18_a_fault_at_the_end_of_a_large_tensor(
    fault: Fault, identifier: str, encoding: str, setting: Setting, tmp_path: Path
) -> None:
    story = tell_large(tmp_path, setting, encoding)
    fault(story)
    story.refuse(12, identifier, tensors=[VICTIM])
    story.mend_and_recover()


def repack(story: Story, change: Callable[[Positions], None], *, more: int = 0) -> None:
    """Let `change` spoil the right positions; `more`: state so many changes more than there are."""
    old, new = toolkit.as_bytes_array(story.old), toolkit.as_bytes_array(story.new)
    positions = np.flatnonzero(old != new).astype(np.uint32)
    values = new[positions]
    assert len(positions) * 5 > 2 << 20
    change(positions)
    payload = struct.pack("<I", len(positions) + more) + positions.tobytes() + values.tobytes()
    replace_frame(story.shard, compress(payload))


def last_one_past_the_end(positions: Positions) -> None:
    positions[-1] = VICTIM_BYTES


def last_two_exchanged(positions: Positions) -> None:
    positions[[-1, -2]] = positions[[-2, -1]]


def last_repeated(positions: Positions) -> None:
    positions[-1] = positions[-2]


def begun_again_half_way(positions: Positions) -> None:
    half = len(positions) // 2
    positions[half:] = positions[: len(positions) - half]


@in_settings()
@pytest.mark.parametrize(
    "change",
    [
        last_one_past_the_end,
        last_two_exchanged,
        last_repeated,
        begun_again_half_way,
    ],
)
def test_s13_hostile_positions_at_the_end_of_a_large_tensor(
    change: Callable[[Positions], None], setting: Setting, tmp_path: Path
) -> None:
    story = tell_large(tmp_path, setting, "overwrite")
    repack(story, change)
    story.refuse(12, "corrupt_payload", tensors=[VICTIM])
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.LAST)
@pytest.mark.parametrize("piece", [1 << power for power in range(12, 20)])
def test_s13_a_position_repeated_where_two_pieces_meet(piece: int, setting: Setting, tmp_path: Path) -> None:
    """Whatever power of two a reader takes at a time: each piece is in order, they together are not."""
    story = tell_large(tmp_path, setting, "overwrite")

    def change(positions: Positions) -> None:
        positions[piece] = positions[piece - 1]

    repack(story, change)
    story.refuse(12, "corrupt_payload", tensors=[VICTIM])
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("more", [-1, 1])
def test_s13_a_count_that_does_not_fit_a_large_payload(more: int, setting: Setting, tmp_path: Path) -> None:
    story = tell_large(tmp_path, setting, "overwrite")
    repack(story, lambda positions: None, more=more)
    story.refuse(11, "malformed", tensors=[VICTIM])
    story.mend_and_recover()
