"""A header that was parsed before is not parsed again; one that changed is, whatever its file's stats say."""

import os
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host
from vime_sync import checkpoint
from vime_sync.format.header import Header, parse_header


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the headers that are parsed from here on, with an empty store."""
    sizes: list[int] = []

    def counting(raw: bytes) -> Header:
        sizes.append(len(raw))
        return parse_header(raw)

    monkeypatch.setattr(checkpoint, "parse_header", counting)
    monkeypatch.setattr(checkpoint, "_PARSED", checkpoint._ParsedHeaders())
    return sizes


def test_a_pass_with_nothing_to_do_parses_no_local_header(tmp_path: Path, parsed: list[int]) -> None:
    host = Host.create(tmp_path)
    host.publish()
    host.pulled()
    parsed.clear()
    assert host.pulled()["result"] == "already_current"
    assert parsed == []


def test_a_header_that_changed_under_the_same_stats_is_parsed_anew(tmp_path: Path, parsed: list[int]) -> None:
    shard = tmp_path / "model.safetensors"
    toolkit.write_checkpoint(tmp_path, {"first": toolkit.Tensor("U8", (3,), b"abc")}, shards=1)
    names = {path.name for path in tmp_path.glob("*.safetensors")}
    (name,) = names
    shard = tmp_path / name
    before = shard.stat()
    assert set(checkpoint.read_shard(tmp_path, name).tensors) == {"first"}
    content = shard.read_bytes().replace(b'"first"', b'"other"')
    shard.write_bytes(content)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert set(checkpoint.read_shard(tmp_path, name).tensors) == {"other"}
    assert set(checkpoint.read_shard(tmp_path, name).tensors) == {"other"}
    assert len(parsed) == 2


def test_what_is_kept_is_bounded(tmp_path: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_MOST_PARSED_BYTES", 300)
    for number in range(6):
        folder = tmp_path / str(number)
        toolkit.write_checkpoint(folder, {f"tensor.{number}": toolkit.Tensor("U8", (3,), b"abc")}, shards=1)
    for _ in range(2):
        for number in range(6):
            folder = tmp_path / str(number)
            (path,) = folder.glob("*.safetensors")
            checkpoint.read_shard(folder, path.name)
    assert checkpoint._PARSED._size_bytes <= 300
    assert len(parsed) == 12  # each had to make way before it was asked for again
