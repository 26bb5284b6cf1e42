"""Headers with shapes beyond all bounds, links that lead round in a circle, and refs that name nothing."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.host import Host, expect_error, names_version
from tests.kill_jobs import expect_settled
from tests.kill_points import no_disk_waits
from tests.toolkit import vime

_QUICKLY_S = 10.0  # the sum of it takes minutes where a product of such shapes is worked out in full


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < _QUICKLY_S


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """At version 1, which is right."""
    host = Host.create(tmp_path, model=toolkit.make_model(tensors=3, kib=4))
    host.publish()
    host.pulled()
    return host


SHAPES: dict[str, list[int]] = {
    "a huge product": [2**62] * 20,
    "many dimensions": [2] * 100_000,
    "many huge dimensions": [2**62] * 100_000,
    "many of one": [1] * 100_000,
    "many of nothing": [0, *[2**62] * 100_000],
    "one huge": [2**64],
    "digits without end": [int("9" * 4000)],
}


def _with_shape(directory: Path, shape: list[int]) -> None:
    """The first tensor of the first shard gets this shape; its bytes stay."""

    def change(header: dict[str, Any], data: bytearray) -> None:
        name = min(name for name, entry in header.items() if name != "__metadata__" and entry["data_offsets"][1])
        header[name]["shape"] = shape

    toolkit.rewrite_shard(min(directory.glob("*.safetensors")), change)


def _passed_by(host: Host, directory: Path) -> None:
    """Version 2 is malformed for those who name it, and only a warning for the rest; 3 mends the host's stream."""
    error = expect_error(host.pull(version=2), 11, "malformed")
    assert names_version(error["message"], 2)
    assert len(error["message"]) < 2000
    expect_error(vime("inspect", directory), 11, "malformed")

    result = host.pull()
    assert (result.code, result.document.get("result")) == (0, "already_current"), result.stderr
    assert names_version(result.stderr, 2)
    standing = vime("status", "--local", host.local, "--shared", host.shared)
    assert (standing.code, standing.document["latest_version"]) == (0, 1), standing.stderr
    assert "Traceback" not in result.stderr + standing.stderr

    host.publish_full(3)
    host.pulled()
    expect_settled(host, 3)


@pytest.mark.parametrize("kind", ["full", "delta"])
@pytest.mark.parametrize("shape", SHAPES)
def test_c13_a_shape_beyond_all_bounds(shape: str, kind: str, host: Host) -> None:
    directory = host.publish_full() if kind == "full" else host.publish()
    if shape == "many of one" and kind == "full":
        _one_byte_in_many_dimensions(directory)
    else:
        _with_shape(directory, SHAPES[shape])
    _passed_by(host, directory)


def _one_byte_in_many_dimensions(directory: Path) -> None:
    """A shape that fits its one byte, and has more dimensions than any tensor."""
    for shard in directory.glob("*.safetensors"):

        def change(header: dict[str, Any], data: bytearray) -> None:
            if "one" in header:
                header["one"]["shape"] = SHAPES["many of one"]

        toolkit.rewrite_shard(shard, change)


@pytest.mark.parametrize("end", [-1, 10**30, 1e999, None, "4"])
def test_c13_an_offset_beyond_all_bounds(end: object, host: Host) -> None:
    directory = host.publish_full()

    def change(header: dict[str, Any], data: bytearray) -> None:
        name = next(name for name in header if name != "__metadata__")
        header[name]["data_offsets"][1] = end

    toolkit.rewrite_shard(min(directory.glob("*.safetensors")), change)
    _passed_by(host, directory)


# ---- links that lead round in a circle


@pytest.mark.parametrize("kind", ["full", "delta"])
def test_c14_a_shard_that_is_a_link_to_itself(kind: str, host: Host) -> None:
    directory = host.publish_full() if kind == "full" else host.publish()
    shard = min(directory.glob("*.safetensors"))
    shard.unlink()
    shard.symlink_to(shard)
    _passed_by(host, directory)


@pytest.mark.parametrize("kind", ["full", "delta"])
def test_c14_an_index_that_is_a_link_to_itself(kind: str, host: Host) -> None:
    directory = host.publish_full() if kind == "full" else host.publish()
    index = directory / toolkit.INDEX_NAME
    index.unlink()
    index.symlink_to(index)
    _passed_by(host, directory)


@pytest.mark.parametrize("kind", ["full", "delta"])
def test_c14_a_leftover_that_is_a_link_to_itself_or_back_up(kind: str, host: Host) -> None:
    directory = host.publish_full() if kind == "full" else host.publish()
    (directory / "loop").symlink_to(directory / "loop")
    (directory / "up").symlink_to(directory)
    (host.shared / "weight_v000009").symlink_to(host.shared / "weight_v000009")
    result = host.pull()
    assert (result.code, result.document.get("version")) == (0, 2), result.stderr
    expect_settled(host, 2)


@pytest.mark.parametrize(
    ("option", "codes"), [("--shared", (2, 10)), ("--base", (2,)), ("--local", (2, 21))], ids=lambda value: str(value)
)
def test_c14_a_directory_that_is_a_link_to_itself(option: str, codes: tuple[int, ...], host: Host) -> None:
    loop = host.root / "loop"
    loop.symlink_to(loop)
    places = {"--shared": host.shared, "--base": host.base, "--local": host.root / "fresh", option: loop}
    for version in ("latest", "0"):
        for below in ("", "inner"):
            given = {**places, option: loop / below}
            options = [part for name, place in given.items() for part in (name, str(place))]
            result = vime("pull", *options, "--version", version)
            assert result.code in codes or (option == "--shared" and version == "0" and result.code == 0)
            assert "Traceback" not in result.stderr
            assert str(loop) in result.error.get("message", str(loop))


@pytest.mark.parametrize("command", ["status", "verify", "inspect"])
def test_c14_other_commands_on_a_link_to_itself(command: str, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for place in (loop, loop / "inner"):
        result = vime(command, *(["--local", str(place)] if command != "inspect" else [str(place)]))
        assert result.code in (2, 10, 11, 21), result.stderr
        assert "Traceback" not in result.stderr


# ---- a cache entry as base


REFS: dict[str, Callable[[Path], object]] = {
    "not UTF-8": lambda main: main.write_bytes(b"\xff\xfe\x80"),
    "NUL": lambda main: main.write_bytes(b"5f0b\0" * 8),
    "empty": lambda main: main.write_bytes(b""),
    "a way out": lambda main: main.write_bytes(b"../../../base"),
    "an absolute path": lambda main: main.write_bytes(b"/etc"),
    "very long": lambda main: main.write_bytes(b"a" * 100_000),
    "a directory": lambda main: main.mkdir(),
    "a link to itself": lambda main: main.symlink_to(main),
}


@pytest.mark.parametrize("ref", REFS)
def test_c17_a_cache_entry_whose_ref_names_no_snapshot(ref: str, host: Host) -> None:
    entry = host.root / "models--org--name"
    (entry / "refs").mkdir(parents=True)
    toolkit.write_checkpoint(entry / "snapshots" / "5f0b02c", host.models[0])
    REFS[ref](entry / "refs" / "main")

    result = toolkit.pull(host.shared, host.root / "fresh", base=entry, version=0)

    assert "Traceback" not in result.stderr
    error = expect_error(result, 2, "usage")
    assert str(entry) in error["message"]
    assert not (host.root / "fresh").exists()


@pytest.mark.parametrize("ref", [ref for ref in REFS if ref != "a link to itself"])
def test_c17_a_checkpoint_that_happens_to_have_such_a_ref(ref: str, host: Host) -> None:
    """A directory with weights of its own is the base, whatever lies in its `refs`."""
    (host.base / "refs").mkdir()
    REFS[ref](host.base / "refs" / "main")

    result = toolkit.pull(host.shared, host.root / "fresh", base=host.base)

    assert "Traceback" not in result.stderr
    assert result.code == 0, result.stderr
    host.expect_local(1, host.root / "fresh")
    assert result.document["seeded_from"] == 0
