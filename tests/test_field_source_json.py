"""FIELD_GUIDE S14: headers and index files that are no JSON, or too much of it: malformed, in bounded time."""

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.source_story import VICTIM, Setting, in_settings, tell

MAX_HEADER_BYTES = 100_000_000
# Far above what any of these needs, far below what quadratic work or reading it all would take.
PATIENCE_S = 5.0

MakeJson = Callable[[str], bytes]


def key_twice(text: str) -> bytes:
    """The same key with the same value: still not one document that all readers read alike."""
    at = text.index(f'"{VICTIM}"')
    value = text[at : text.index("}", at) + 1] if "dtype" in text[at:] else text[at : text.index(",", at)]
    return (text[:at] + value + ", " + text[at:]).encode()


def nested_key_twice(text: str) -> bytes:
    for word in ('"dtype": "U8"', '"delta_encoding": "xor"'):
        if word in text:
            return text.replace(word, f"{word}, {word}", 1).encode()
    raise AssertionError(text)


def not_utf8(text: str) -> bytes:
    return text.encode().replace(VICTIM.encode(), VICTIM.encode()[:-1] + b"\xff")


def utf16(text: str) -> bytes:
    return text.encode("utf-16")


def lone_surrogate(text: str) -> bytes:
    return text.replace(VICTIM, VICTIM[:-1] + r"\ud800").encode()


def deep_lists(text: str) -> bytes:
    return (text[:-1] + ', "deep": ' + "[" * 100_000 + "]" * 100_000 + "}").encode()


def deep_objects(text: str) -> bytes:
    return (text[:-1] + ', "deep": ' + '{"a":' * 100_000 + "0" + "}" * 100_000 + "}").encode()


def a_list(text: str) -> bytes:
    return f"[{text}]".encode()


def text_after_it(text: str) -> bytes:
    return (text + '{"a": 1}').encode()


def comments(text: str) -> bytes:
    return text.replace("{", "{ // tensors\n", 1).encode()


def single_quotes(text: str) -> bytes:
    return text.replace('"', "'").encode()


TEXTS = [
    key_twice,
    nested_key_twice,
    not_utf8,
    utf16,
    lone_surrogate,
    deep_lists,
    deep_objects,
    a_list,
    text_after_it,
    comments,
    single_quotes,
]


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("make", TEXTS)
def test_s14_a_header_that_is_not_the_json_it_should_be(make: MakeJson, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    header, data = toolkit.split_shard(story.shard)
    toolkit.join_shard(story.shard, make(json.dumps(header)), data)
    began = time.monotonic()
    story.refuse(11, "malformed", named=[story.shard.name])
    assert time.monotonic() - began < PATIENCE_S
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("make", TEXTS)
def test_s14_an_index_that_is_not_the_json_it_should_be(make: MakeJson, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    index = story.index
    index.write_bytes(make(json.dumps(json.loads(index.read_text()))))
    began = time.monotonic()
    story.refuse(11, "malformed", named=[toolkit.INDEX_NAME])
    assert time.monotonic() - began < PATIENCE_S
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 1 << 31, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("there", [False, True], ids=["short-file", "sparse-file"])
def test_s14_a_header_over_100_mb_is_refused_unread(there: bool, length: int, setting: Setting, tmp_path: Path) -> None:
    """The length alone decides, whether or not the file is as long as it says."""
    story = tell(tmp_path, setting)
    shard = story.shard
    with shard.open("r+b") as file:
        file.write(struct.pack("<Q", length))
        if there:
            file.truncate(min(length, 4 << 30) + 8)
    story_bytes = shard.stat().st_size
    began = time.monotonic()
    result = pull_refused(story.pull)
    assert time.monotonic() - began < PATIENCE_S
    assert result == (11, "malformed", story.bad)
    assert shard.stat().st_size == story_bytes
    story.check_local_at(story.start)
    story.mend_and_recover()


def pull_refused(pull: Callable[[], toolkit.Result]) -> tuple[int, str, int]:
    """Without the share's snapshot: a sparse file of gigabytes is not to be read here either."""
    result = pull()
    assert "Traceback" not in result.stderr
    return result.code, result.error["id"], result.error["version"]


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
def test_s14_a_header_of_one_byte(setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    toolkit.join_shard(story.shard, b"{", b"")
    story.refuse(11, "malformed", named=[story.shard.name])
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.FRESH)
def test_s14_a_header_padded_with_spaces_is_right(setting: Setting, tmp_path: Path) -> None:
    """The control: spaces after the JSON are how the format aligns its data, any number of them."""
    story = tell(tmp_path, setting)
    header, data = toolkit.split_shard(story.shard)
    toolkit.join_shard(story.shard, json.dumps(header).encode() + b" " * 5001, data)
    story.recover()
