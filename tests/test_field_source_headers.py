"""FIELD_GUIDE S14: safetensors headers that do not describe their data are malformed, before any byte of it is used."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.source_story import VICTIM, Setting, in_settings, tell

Change = Callable[[dict[str, Any], bytearray], None]


def last_tensor(header: dict[str, Any]) -> dict[str, Any]:
    """The victim's entry; its data ends the file."""
    entry: dict[str, Any] = header[VICTIM]
    return entry


def overlap(header: dict[str, Any], data: bytearray) -> None:
    begin, end = last_tensor(header)["data_offsets"]
    last_tensor(header).update(shape=[end - begin + 1], data_offsets=[begin - 1, end])


def all_in_the_same_place(header: dict[str, Any], data: bytearray) -> None:
    size = min(entry["shape"][0] for name, entry in header.items() if name != "__metadata__")
    for name in header.keys() - {"__metadata__"}:
        header[name].update(shape=[size], data_offsets=[0, size])
    del data[size:]


def hole_before_the_last(header: dict[str, Any], data: bytearray) -> None:
    begin, end = last_tensor(header)["data_offsets"]
    last_tensor(header)["data_offsets"] = [begin + 3, end + 3]
    data[begin:begin] = b"gap"


def hole_at_the_start(header: dict[str, Any], data: bytearray) -> None:
    for name in header.keys() - {"__metadata__"}:
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = [begin + 8, end + 8]
    data[0:0] = b"not ours"


def bytes_after_the_end(header: dict[str, Any], data: bytearray) -> None:
    data += b"more"


def end_before_begin(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["data_offsets"].reverse()


def offsets_not_as_long_as_the_shape(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["shape"][0] -= 1


def negative_begin(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["data_offsets"][0] = -1


def negative_sizes_that_multiply_well(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["shape"] = [-1, -last_tensor(header)["shape"][0]]


def offsets_of_three(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["data_offsets"].append(0)


def offsets_as_text(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["data_offsets"] = [str(offset) for offset in last_tensor(header)["data_offsets"]]


def offsets_as_fractions(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["data_offsets"] = [float(offset) for offset in last_tensor(header)["data_offsets"]]


def offsets_missing(header: dict[str, Any], data: bytearray) -> None:
    del last_tensor(header)["data_offsets"]


def shape_of_truth_values(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["shape"].append(True)


def shape_that_overflows_64_bits(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["shape"] = [1 << 62, 1 << 62]


def shape_beyond_all_numbers(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["shape"] = [10**4000]


def shape_of_nan(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["shape"] = [float("nan")]


def shape_missing(header: dict[str, Any], data: bytearray) -> None:
    del last_tensor(header)["shape"]


def shape_of_two_dimensions(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["shape"].append(1)


def dtype_not_bytes(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["dtype"] = "I8"


def dtype_unknown(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["dtype"] = "Q8_0"


def dtype_null(header: dict[str, Any], data: bytearray) -> None:
    last_tensor(header)["dtype"] = None


def entry_is_a_list(header: dict[str, Any], data: bytearray) -> None:
    header[VICTIM] = ["U8", last_tensor(header)["shape"], last_tensor(header)["data_offsets"]]


def metadata_of_numbers(header: dict[str, Any], data: bytearray) -> None:
    header["__metadata__"][VICTIM] = 7


def metadata_is_a_list(header: dict[str, Any], data: bytearray) -> None:
    header["__metadata__"] = list(header["__metadata__"].items())


def metadata_missing(header: dict[str, Any], data: bytearray) -> None:
    del header["__metadata__"]


CHANGES: list[Change] = [
    overlap,
    all_in_the_same_place,
    hole_before_the_last,
    hole_at_the_start,
    bytes_after_the_end,
    end_before_begin,
    offsets_not_as_long_as_the_shape,
    negative_begin,
    negative_sizes_that_multiply_well,
    offsets_of_three,
    offsets_as_text,
    offsets_as_fractions,
    offsets_missing,
    shape_of_truth_values,
    shape_that_overflows_64_bits,
    shape_beyond_all_numbers,
    shape_of_nan,
    shape_missing,
    shape_of_two_dimensions,
    dtype_not_bytes,
    dtype_unknown,
    dtype_null,
    entry_is_a_list,
    metadata_of_numbers,
    metadata_is_a_list,
    metadata_missing,
]
# What is wrong with a header as such, in a full version's shard as well as in a delta's.
FULL_CHANGES = [
    change for change in CHANGES if change not in (shape_of_two_dimensions, dtype_not_bytes, metadata_missing)
]


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("change", CHANGES)
def test_s14_a_header_that_does_not_describe_its_data(change: Change, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    toolkit.rewrite_shard(story.shard, change)
    story.refuse(11, "malformed", named=[story.shard.name])
    story.mend_and_recover()


@pytest.mark.parametrize("change", FULL_CHANGES)
def test_s14_a_full_version_with_such_a_header(change: Change, tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.ONLY)
    shutil.rmtree(story.directory)
    only_bytes = {
        name: toolkit.Tensor("U8", (len(tensor.data),), tensor.data)
        for name, tensor in story.models[2].items()
        if tensor.data
    }
    toolkit.publish_full(story.shared, 2, only_bytes, shards=2)
    # one dtype throughout: the library then orders a file by name, and the victim ends it
    toolkit.rewrite_shard(story.shard, change)
    story.refuse(11, "malformed", named=[story.shard.name])
    toolkit.publish_full(story.shared, 2, story.models[2])
    story.recover()
