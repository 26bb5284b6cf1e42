"""FIELD_GUIDE S17, S19: which files of a version directory count, and where an index may point."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.source_story import VICTIM, Setting, Story, in_settings, tell
from tests.toolkit import Tensor

LEFTOVERS: dict[str, bytes | None] = {
    "model-00007-of-00008.safetensors": None,  # the bytes of the version before, a valid shard
    "model-00002-of-00003.safetensors": b"",
    "garbage.safetensors": b"\xff" * 4096,
    "half.safetensors": (1000).to_bytes(8, "little") + b'{"a":',
    ".model.safetensors.index.json.tmp": b'{"metadata": {"version": "0000',
    "notes.txt": b"left here",
}


def leave_behind(story: Story, name: str) -> None:
    content = LEFTOVERS[name]
    if content is not None:
        (story.directory / name).write_bytes(content)
        return
    frame = toolkit.compress(b"from another run")
    frames = {tensor: Tensor("U8", (len(frame),), frame) for tensor in (VICTIM, "unknown.weight")}
    toolkit.write_safetensors(story.directory / name, frames, dict.fromkeys(frames, "00" * 16))


@in_settings()
@pytest.mark.parametrize("name", LEFTOVERS)
def test_s17_leftovers_that_the_index_does_not_name(name: str, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    leave_behind(story, name)
    story.recover()


@pytest.mark.parametrize("name", [name for name in LEFTOVERS if name.endswith(".safetensors")])
def test_s17_leftover_shards_of_a_full_version_are_not_brought_here(name: str, tmp_path: Path) -> None:
    """An engine without an index would load every shard it sees."""
    story = tell(tmp_path, Setting.ONLY)
    shutil.rmtree(story.directory)
    toolkit.publish_full(story.shared, 2, story.models[2])
    leave_behind(story, name)
    story.recover()
    assert not (story.local / name).exists()
    assert len(list(story.local.glob("*.safetensors"))) == 2


def absolute(story: Story, outside: Path) -> str:
    return str(outside / "shard.safetensors")


def one_up(story: Story, outside: Path) -> str:
    shutil.copy(outside / "shard.safetensors", story.shared / "shard.safetensors")
    return "../shard.safetensors"


def in_another_version(story: Story, outside: Path) -> str:
    shutil.copy(outside / "shard.safetensors", story.shared / "weight_v000001" / "shard.safetensors")
    return "../weight_v000001/shard.safetensors"


def up_and_back(story: Story, outside: Path) -> str:
    shutil.copy(outside / "shard.safetensors", story.directory / "shard.safetensors")
    return f"../{story.directory.name}/shard.safetensors"


def link_to_a_file_outside(story: Story, outside: Path) -> str:
    (story.directory / "shard.safetensors").symlink_to(outside / "shard.safetensors")
    return "shard.safetensors"


def link_to_a_directory_outside(story: Story, outside: Path) -> str:
    (story.directory / "sub").symlink_to(outside)
    return "sub/shard.safetensors"


def a_name_with_a_null_byte(story: Story, outside: Path) -> str:
    return "shard\0.safetensors"


def no_name(story: Story, outside: Path) -> str:
    return ""


def the_directory_itself(story: Story, outside: Path) -> str:
    return "."


PLACES = [
    absolute,
    one_up,
    in_another_version,
    up_and_back,
    link_to_a_file_outside,
    link_to_a_directory_outside,
    a_name_with_a_null_byte,
    no_name,
    the_directory_itself,
]


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("place", PLACES)
def test_s19_the_index_names_a_file_outside(
    place: Callable[[Story, Path], str], setting: Setting, tmp_path: Path
) -> None:
    """The file outside is the right shard: only its place is wrong."""
    story = tell(tmp_path, setting)
    (tmp_path / "outside").mkdir()
    shard = story.shard
    shutil.move(shard, tmp_path / "outside" / "shard.safetensors")
    named = place(story, tmp_path / "outside")

    def change(index: dict[str, Any]) -> None:
        index["weight_map"] = {
            tensor: named if file == shard.name else file for tensor, file in index["weight_map"].items()
        }

    toolkit.rewrite_index(story.directory, change)
    story.refuse(11, "malformed")
    story.mend_and_recover()


@pytest.mark.parametrize("place", [absolute, one_up, in_another_version, up_and_back])
def test_s19_the_index_of_a_full_version_names_a_file_outside(
    place: Callable[[Story, Path], str], tmp_path: Path
) -> None:
    story = tell(tmp_path, Setting.ONLY)
    shutil.rmtree(story.directory)
    toolkit.publish_full(story.shared, 2, story.models[2])
    test_name = story.shard.name
    (tmp_path / "outside").mkdir()
    shutil.move(story.shard, tmp_path / "outside" / "shard.safetensors")
    named = place(story, tmp_path / "outside")

    def change(index: dict[str, Any]) -> None:
        index["weight_map"] = {
            tensor: named if file == test_name else file for tensor, file in index["weight_map"].items()
        }

    toolkit.rewrite_index(story.directory, change)
    story.refuse(11, "malformed")
    toolkit.publish_full(story.shared, 2, story.models[2])
    story.recover()
