"""FIELD_GUIDE S7, S8: tensors that stand twice, that the local checkpoint lacks, or has in another size."""

from pathlib import Path

import pytest

from tests import toolkit
from tests.source_story import (
    VICTIM,
    Setting,
    Story,
    edit_frames,
    frame_of,
    in_settings,
    replace_frame,
    set_metadata,
    tell,
)


def copy_into_the_other_shard(story: Story, *, frame: bytes | None = None, checksum: str | None = None) -> None:
    """A replicated parameter: the victim stands in both shards of the broken version."""
    holder = story.shard
    (other,) = [path for path in story.directory.glob("*.safetensors") if path != holder]
    header, _ = toolkit.split_shard(holder)
    right_checksum = header["__metadata__"][VICTIM]
    replace_frame(other, frame_of(holder) if frame is None else frame, checksum=checksum or right_checksum)


@in_settings()
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_s07_the_same_tensor_in_two_shards_is_used_once(encoding: str, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting, encoding=encoding)
    copy_into_the_other_shard(story)
    story.recover()


@in_settings()
def test_s07_another_payload_in_the_second_shard(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    frame = bytearray(frame_of(story.shard))
    frame[-1] ^= 1  # as long as the first one
    copy_into_the_other_shard(story, frame=bytes(frame))
    story.refuse(11, "malformed", named=[VICTIM])
    story.mend_and_recover()


@in_settings()
def test_s07_another_digest_in_the_second_shard(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    copy_into_the_other_shard(story, checksum=toolkit.digest(story.old))
    story.refuse(11, "malformed", named=[VICTIM])
    story.mend_and_recover()


def add_unknown_tensor(story: Story) -> None:
    """Tied weights: the trainer has a tensor that the served checkpoint lacks."""
    data = b"new bytes"
    edit_frames(story.shard, {"zzz.tied_lm_head.weight": (toolkit.compress(data), toolkit.digest(data))})
    shard = story.shard.name
    toolkit.rewrite_index(story.directory, lambda index: index["weight_map"].update({"zzz.tied_lm_head.weight": shard}))


@in_settings()
def test_s08_a_tensor_that_the_local_checkpoint_does_not_have(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    add_unknown_tensor(story)
    story.refuse(13, "lineage_mismatch", tensors=["zzz.tied_lm_head.weight"])
    story.mend_and_recover()


@in_settings()
@pytest.mark.parametrize("difference", [-1, 1, 4096])
def test_s08_a_tensor_of_another_size(difference: int, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    resized = (story.new + bytes(4096))[: len(story.new) + difference]
    payload = (story.payload + bytes(4096))[: len(resized)]
    replace_frame(story.shard, toolkit.compress(payload), checksum=toolkit.digest(resized))
    story.refuse(13, "lineage_mismatch", tensors=[VICTIM])
    story.mend_and_recover()


@in_settings()
def test_s08_a_change_to_a_tensor_without_bytes(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    edit_frames(story.shard, {"empty": (toolkit.compress(b"x"), toolkit.digest(b"x"))})
    shard = story.shard.name
    toolkit.rewrite_index(story.directory, lambda index: index["weight_map"].update({"empty": shard}))
    story.refuse(13, "lineage_mismatch", tensors=["empty"])
    story.mend_and_recover()


@in_settings()
@pytest.mark.parametrize("distance", [-2, 0, 1])
def test_s08_a_base_version_that_is_not_the_one_before(distance: int, setting: Setting, tmp_path: Path) -> None:
    """Not a row of its own in the guide: the contract's lineage refusals (13)."""
    story = tell(tmp_path, setting)
    claimed = story.bad + distance
    set_metadata(story, base_version=f"{claimed:06d}")
    story.refuse(13, "lineage_mismatch", named=[str(claimed), str(story.bad - 1)])
    story.mend_and_recover()
