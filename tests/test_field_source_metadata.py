"""FIELD_GUIDE S6, S9, S10: what an index says of its version, and against its shards."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.host import Host, expect_error
from tests.source_story import VICTIM, Setting, in_settings, set_metadata, tell

FIRST = "model.embed_tokens.weight"


@in_settings()
@pytest.mark.parametrize("distance", [-1, 1, 100])
def test_s06_directory_number_and_metadata_version_differ(distance: int, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    set_metadata(story, version=f"{story.bad + distance:06d}")
    story.refuse(11, "malformed", named=[str(story.bad + distance), str(story.bad)])
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("value", ["", "abc", "-00002", "0x0002", "2.0", 2, ["000002"], {}, True])
def test_s06_a_version_that_is_no_number(value: object, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    set_metadata(story, version=value)
    story.refuse(11, "malformed")
    story.mend_and_recover()


WRONG_METADATA: list[dict[str, Any]] = [
    {"delta_encoding": "xor2"},
    {"delta_encoding": "full"},
    {"delta_encoding": "XOR"},
    {"delta_encoding": ""},
    {"delta_encoding": 7},
    {"delta_encoding": ["xor"]},
    {"delta_encoding": None},
    {"compression_format": "lz4"},
    {"compression_format": "none"},
    {"compression_format": {}},
    {"compression_format": None},
    {"checksum_format": "sha256"},
    {"checksum_format": "xxh3-64"},
    {"checksum_format": 128},
    {"checksum_format": None},
    {"version": None},
    {"base_version": None},
    {"base_version": "one"},
    {"base_version": 1},
    {"tensor_parallel_layout": "interleaved"},
]


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("values", WRONG_METADATA, ids=lambda values: json.dumps(values))
def test_s09_metadata_that_we_do_not_know(values: dict[str, Any], setting: Setting, tmp_path: Path) -> None:
    """None takes the key out: what has any mark of a delta is a malformed delta, never a full version."""
    story = tell(tmp_path, setting)
    set_metadata(story, **values)
    (name,) = values
    story.refuse(11, "malformed", named=[name])
    story.mend_and_recover()


def index_is_a_list(index: dict[str, Any]) -> Any:
    return [index]


def index_is_a_number(index: dict[str, Any]) -> Any:
    return 7


def without_weight_map(index: dict[str, Any]) -> Any:
    return {"metadata": index["metadata"]}


def weight_map_is_a_list(index: dict[str, Any]) -> Any:
    return {**index, "weight_map": list(index["weight_map"])}


def weight_map_to_numbers(index: dict[str, Any]) -> Any:
    return {**index, "weight_map": {**index["weight_map"], VICTIM: 0}}


def weight_map_to_null(index: dict[str, Any]) -> Any:
    return {**index, "weight_map": None}


def metadata_is_text(index: dict[str, Any]) -> Any:
    return {**index, "metadata": "xor"}


def metadata_is_null(index: dict[str, Any]) -> Any:
    return {**index, "metadata": None}


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize(
    "change",
    [
        index_is_a_list,
        index_is_a_number,
        without_weight_map,
        weight_map_is_a_list,
        weight_map_to_numbers,
        weight_map_to_null,
        metadata_is_text,
        metadata_is_null,
    ],
)
def test_s09_an_index_of_another_shape(
    change: Callable[[dict[str, Any]], Any], setting: Setting, tmp_path: Path
) -> None:
    story = tell(tmp_path, setting)
    story.index.write_text(json.dumps(change(json.loads(story.index.read_text()))))
    story.refuse(11, "malformed", named=[toolkit.INDEX_NAME])
    story.mend_and_recover()


@in_settings()
def test_s09_the_index_names_a_tensor_that_its_shard_lacks(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    shard = story.shard.name
    toolkit.rewrite_index(story.directory, lambda index: index["weight_map"].update({"scalar": shard}))
    story.refuse(11, "malformed", named=["scalar"])
    story.mend_and_recover()


@in_settings()
def test_s09_a_shard_holds_a_tensor_that_the_index_lacks(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    toolkit.rewrite_index(story.directory, lambda index: index["weight_map"].pop(FIRST))
    story.refuse(11, "malformed", named=[FIRST])
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("checksum", [None, "", "00", "zz" * 16, "00" * 32])
def test_s09_a_digest_absent_or_of_another_kind(checksum: str | None, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)

    def change(header: dict[str, Any], data: bytearray) -> None:
        header["__metadata__"].pop(VICTIM)
        if checksum is not None:
            header["__metadata__"][VICTIM] = checksum

    toolkit.rewrite_shard(story.shard, change)
    story.refuse(11, "malformed", named=[VICTIM])
    story.mend_and_recover()


@in_settings()
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_s10_an_empty_delta_advances_the_version(encoding: str, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting, encoding=encoding, changes_nothing=True)
    assert [path.name for path in story.directory.iterdir()] == [toolkit.INDEX_NAME]
    result = story.recover()
    if setting is Setting.ONLY:
        assert (result.document["tensors_changed"], result.document["bytes_written"]) == (0, 0)
        assert toolkit.vime("status", "--local", story.local).document["local_version"] == story.bad


@pytest.mark.parametrize("key", ["-etadata", "Metadata", "metadat`"])
def test_s18_an_index_whose_metadata_has_another_name_is_no_full_version(tmp_path: Path, key: str) -> None:
    """One flipped bit: the frames of a delta would be the weights."""
    host = Host.create(tmp_path)
    directory = host.publish()
    index = directory / toolkit.INDEX_NAME
    index.write_bytes(index.read_bytes().replace(b'"metadata"', f'"{key}"'.encode(), 1))

    expect_error(host.pull(version=1), 11, "malformed")
    assert not list(host.local.glob("*.safetensors"))
    assert toolkit.vime("inspect", directory).code == 11


def test_s01_a_full_version_with_a_tensor_called_format_is_one(tmp_path: Path) -> None:
    """`format` stands in the metadata of every checkpoint."""
    host = Host.create(tmp_path, model={"format": toolkit.Tensor("U8", (4,), b"abcd")})
    host.publish_full()
    host.pulled(version=1)
    host.expect_local(1)
