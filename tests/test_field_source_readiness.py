"""FIELD_GUIDE S1-S5: versions that are still being written. Not ready is exit 10, and no reason to touch a byte."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.source_story import Setting, Story, in_settings, tell

Fault = Callable[[Story], None]


@in_settings()
def test_s01_delta_shards_without_their_index_are_not_ready(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    index = story.index.read_bytes()
    story.index.unlink()
    story.refuse(10, "not_ready", named=[toolkit.INDEX_NAME])
    story.index.write_bytes(index)  # the publisher writes it last
    story.recover()


def test_s01_latest_stops_before_a_delta_without_index_and_says_so(tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.LAST)
    story.index.unlink()
    result = story.pull("latest")
    assert (result.code, result.document["version"]) == (0, 5), result.stderr
    assert "weight_v000006" in result.stderr or "version 6" in result.stderr
    story.check_local_at(5)
    again = story.pull("latest")
    assert (again.code, again.document["result"]) == (0, "already_current")
    story.mend()
    assert story.pull("latest").document["version"] == 6
    story.check_local_at(6)


def empty(story: Story) -> None:
    shutil.rmtree(story.directory)
    story.directory.mkdir()


def only_config(story: Story) -> None:
    empty(story)
    (story.directory / "config.json").write_bytes(toolkit.DEFAULT_EXTRA_FILES["config.json"])


def config_and_tokenizer(story: Story) -> None:
    only_config(story)
    (story.directory / "tokenizer.json").write_bytes(toolkit.DEFAULT_EXTRA_FILES["tokenizer.json"])
    (story.directory / "onnx").mkdir()


@in_settings()
@pytest.mark.parametrize("fault", [empty, only_config, config_and_tokenizer])
def test_s02_a_directory_without_weights_is_not_ready(fault: Fault, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    fault(story)
    story.refuse(10, "not_ready")
    story.mend_and_recover()


@in_settings()
def test_s03_a_shard_that_the_index_names_is_not_visible_yet(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    shard, content = story.shard, story.shard.read_bytes()
    shard.unlink()
    story.refuse(10, "not_ready", named=[shard.name])
    shard.write_bytes(content)
    story.recover()


def cut_last_byte(content: bytes) -> bytes:
    return content[:-1]


def cut_in_the_data(content: bytes) -> bytes:
    return content[: len(content) - len(content) // 8]


def cut_after_the_header(content: bytes) -> bytes:
    return content[: 8 + int.from_bytes(content[:8], "little")]


def cut_in_the_header(content: bytes) -> bytes:
    return content[:100]


def cut_in_the_length(content: bytes) -> bytes:
    return content[:5]


def cut_to_nothing(content: bytes) -> bytes:
    return b""


def preallocated(content: bytes) -> bytes:
    """As long as it will be, and nothing written yet."""
    return bytes(len(content))


CUTS = [
    preallocated,
    cut_last_byte,
    cut_in_the_data,
    cut_after_the_header,
    cut_in_the_header,
    cut_in_the_length,
    cut_to_nothing,
]


@in_settings()
@pytest.mark.parametrize("cut", CUTS)
def test_s04_a_shard_shorter_than_its_header_says(
    cut: Callable[[bytes], bytes], setting: Setting, tmp_path: Path
) -> None:
    story = tell(tmp_path, setting)
    shard, content = story.shard, story.shard.read_bytes()
    shard.write_bytes(cut(content))
    story.refuse(10, "not_ready", named=[shard.name])
    shard.write_bytes(content)
    story.recover()


def at_one_before_a_full_version(directory: Path) -> Story:
    """A host at version 1; version 2 is to be published as a full one."""
    story = tell(directory, Setting.ONLY)
    shutil.rmtree(story.directory)
    return story


def shards_under_temporary_names(story: Story) -> None:
    for path in story.directory.glob("*.safetensors"):
        path.rename(path.with_name("." + path.name + ".tmp1234"))
    story.index.unlink()


def some_shards_renamed_no_index(story: Story) -> None:
    story.index.unlink()


def half_an_index(story: Story) -> None:
    content = story.index.read_bytes()
    story.index.write_bytes(content[: len(content) // 2])


def no_byte_of_the_index(story: Story) -> None:
    story.index.write_bytes(b"")


def index_under_a_temporary_name(story: Story) -> None:
    story.index.rename(story.index.with_name(toolkit.INDEX_NAME + ".tmp"))


def index_first_and_a_shard_missing(story: Story) -> None:
    story.shard.unlink()


def a_shard_half_written(story: Story) -> None:
    shard = story.shard
    shard.write_bytes(cut_in_the_data(shard.read_bytes()))


@pytest.mark.parametrize(
    "fault",
    [
        shards_under_temporary_names,
        some_shards_renamed_no_index,
        half_an_index,
        no_byte_of_the_index,
        index_under_a_temporary_name,
        index_first_and_a_shard_missing,
        a_shard_half_written,
    ],
)
def test_s05_a_full_version_being_written_is_not_ready(fault: Fault, tmp_path: Path) -> None:
    story = at_one_before_a_full_version(tmp_path)
    toolkit.publish_full(story.shared, 2, story.models[2], shards=3)
    fault(story)
    story.refuse(10, "not_ready")
    toolkit.publish_full(story.shared, 2, story.models[2], shards=3)
    assert story.recover().document["seeded_from"] == 2


@pytest.mark.parametrize("fault", [half_an_index, index_under_a_temporary_name, a_shard_half_written])
def test_s05_a_fresh_host_before_a_full_version_being_written(fault: Fault, tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.FRESH)
    shutil.rmtree(story.directory)
    toolkit.publish_full(story.shared, 6, story.models[6])
    fault(story)
    story.refuse(10, "not_ready")
    toolkit.publish_full(story.shared, 6, story.models[6])
    story.recover()


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
def test_s05_half_an_index_of_a_delta_is_not_ready(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    half_an_index(story)
    story.refuse(10, "not_ready", named=[toolkit.INDEX_NAME])
    story.mend_and_recover()


def without_a_tensor(model: toolkit.Model) -> toolkit.Model:
    return {name: tensor for name, tensor in model.items() if name != "lm_head.weight"}


def with_another_shape(model: toolkit.Model) -> toolkit.Model:
    rows, columns = model["lm_head.weight"].shape
    changed = toolkit.Tensor("F8_E4M3", (columns, rows), model["lm_head.weight"].data)
    return {**model, "lm_head.weight": changed}


def with_another_dtype(model: toolkit.Model) -> toolkit.Model:
    tensor = model["lm_head.weight"]
    return {**model, "lm_head.weight": toolkit.Tensor("U8", tensor.shape, tensor.data)}


def with_a_tensor_more(model: toolkit.Model) -> toolkit.Model:
    return {**model, "new.weight": toolkit.Tensor("U8", (3,), b"abc")}


@pytest.mark.parametrize("change", [without_a_tensor, with_another_shape, with_another_dtype, with_a_tensor_more])
def test_s05_a_lone_file_without_index_must_be_the_whole_model(
    change: Callable[[toolkit.Model], toolkit.Model], tmp_path: Path
) -> None:
    story = at_one_before_a_full_version(tmp_path)
    toolkit.publish_full(story.shared, 2, change(story.models[2]), shards=1, index=False)
    story.refuse(10, "not_ready")
    toolkit.publish_full(story.shared, 2, story.models[2], shards=1, index=False)
    assert story.recover().document["seeded_from"] == 2


def test_s05_shards_of_many_without_index_are_not_a_full_version(tmp_path: Path) -> None:
    story = at_one_before_a_full_version(tmp_path)
    toolkit.publish_full(story.shared, 2, story.models[2], shards=2, index=False)
    story.refuse(10, "not_ready", named=[toolkit.INDEX_NAME])
    toolkit.publish_full(story.shared, 2, story.models[2], shards=2)
    story.recover()


@pytest.mark.parametrize("fresh", [False, True], ids=["over-version-1", "fresh-host"])
def test_s05_a_shard_touched_while_it_is_read_is_not_taken(fresh: bool, tmp_path: Path) -> None:
    """Stats must be equal before the first byte and after the last: a writer keeps at one shard all the time."""
    story = at_one_before_a_full_version(tmp_path)
    if fresh:
        shutil.rmtree(story.local)
    before = toolkit.snapshot(story.local)
    toolkit.publish_full(story.shared, 2, story.models[2])
    shard, finished = story.shard, threading.Event()

    def keep_writing() -> None:
        moment = 0
        while not finished.is_set():
            moment += 1
            os.utime(shard, ns=(moment, moment))

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        result = story.pull()
    finally:
        finished.set()
        writer.join()
    assert result.code == 10, result.stderr
    assert result.error["id"] in ("not_ready", "stream_changed") and result.error["version"] == 2
    assert toolkit.snapshot(story.local) == before
    assert story.pull().code == 0
    story.check_local_at(2)


def test_s05_latest_goes_on_to_the_newest_ready_version_below(tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.LAST)
    shutil.rmtree(story.directory)
    toolkit.publish_full(story.shared, 6, story.models[6])
    half_an_index(story)
    result = story.pull("latest")
    assert (result.code, result.document["version"]) == (0, 5), result.stderr
    assert json.loads(result.stdout)["result"] == "updated"
    story.check_local_at(5)
