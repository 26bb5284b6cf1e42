"""FIELD_GUIDE H5: rot in any file that we wrote, and shards that are gone, cut or replaced, are found and mended."""

import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, flip_byte, names_version
from tests.kill_jobs import expect_settled, hide_touch, models
from tests.kill_points import no_disk_waits


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two versions; the first tensor and the small files never change."""
    host = Host.create(tmp_path, model=models(1536))
    names = list(host.models[0])
    host.publish(only=names[1:])
    host.publish(encoding="overwrite", only=names[1:])
    host.pulled()
    return host


def _rot(host: Host, tensor: str) -> None:
    """A bit flips on the disk: no stat tells."""
    flip_byte(host.local, tensor)
    hide_touch(host.local, *(path.name for path in host.local.glob("*.safetensors")))


@pytest.mark.parametrize("tensor", ["first", "model.norm.weight", "scalar", "one"])
def test_h05_verify_finds_rot_and_the_next_pull_heals_that_tensor(tensor: str, host: Host) -> None:
    name = next(iter(host.models[0])) if tensor == "first" else tensor
    _rot(host, name)
    assert host.pulled()["result"] == "already_current", "no stat changed: a pull alone does not see it"

    verify = toolkit.vime("verify", "--local", host.local)
    assert (verify.code, verify.error["tensors"]) == (22, [name])
    status = toolkit.vime("status", "--local", host.local).document
    assert (status["local_version"], status["state"]) == (2, "damaged")

    document = host.pulled()
    assert (document["result"], document["version"]) == ("updated", 2)
    assert (document["tensors_repaired"], document["seeded_from"], document["new_stream"]) == (1, None, False)
    assert document["bytes_written"] <= len(host.models[2][name].data)
    expect_settled(host, 2)


def test_h05_rot_found_by_the_next_delta_is_healed_on_the_way(host: Host) -> None:
    _rot(host, "model.norm.weight")
    host.publish()
    document = host.pulled()
    assert (document["version"], document["tensors_repaired"]) == (3, 1)
    expect_settled(host, 3)


def _flip_in(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x01
    with path.open("r+b") as file:
        file.write(content)


@pytest.mark.parametrize("silently", [True, False])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", toolkit.INDEX_NAME, "model-00001-of-00002.safetensors"]
)
def test_h05_rot_outside_the_tensors_is_found_and_healed(name: str, silently: bool, host: Host) -> None:
    """The small files and a shard's header (its 21st byte); with changed stats no `verify` is needed."""
    path = host.local / name
    right = path.read_bytes()
    _flip_in(path, min(20, len(right) - 3))
    if silently:
        hide_touch(host.local, name)
        verify = toolkit.vime("verify", "--local", host.local)
        assert verify.code == 22
        assert name in verify.error["message"]
    document = host.pulled()
    assert (document["result"], document["version"], document["seeded_from"]) == ("updated", 2, None)
    assert document["tensors_repaired"] >= 1
    assert path.read_bytes() == right
    expect_settled(host, 2)


@pytest.mark.parametrize("with_delta", [False, True])
@pytest.mark.parametrize(
    "fate", ["deleted", "cut", "empty", "replaced by another", "replaced by an equal", "a directory"]
)
def test_h05_a_shard_that_is_gone_cut_or_replaced_is_healed(fate: str, with_delta: bool, host: Host) -> None:
    path = host.local / "model-00001-of-00002.safetensors"
    content = path.read_bytes()
    path.unlink()
    if fate == "cut":
        path.write_bytes(content[:-5000])
    elif fate == "empty":
        path.write_bytes(b"")
    elif fate == "replaced by another":
        shutil.copy(host.base / "model-00002-of-00002.safetensors", path)
    elif fate == "replaced by an equal":
        path.write_bytes(content)
    elif fate == "a directory":
        path.mkdir()
    if with_delta:
        host.publish()

    result = host.pull()

    if fate == "a directory" and result.code in (21, 22, 23):
        return  # somebody made it on purpose; refusing to remove it is right too
    assert result.code == 0, result.stderr
    if fate == "replaced by an equal" and not with_delta:
        assert result.document["bytes_written"] == 0
    expect_settled(host, 3 if with_delta else 2)


def test_h05_healed_from_the_nearest_anchor(tmp_path: Path) -> None:
    """A full version is nearer than the base, which is gone; so are the deltas before it."""
    host = Host.create(tmp_path, model=models(1536))
    host.publish()
    host.publish_full()
    host.publish()
    host.pulled()
    shutil.rmtree(host.base)
    shutil.rmtree(toolkit.version_path(host.shared, 1))
    name = next(iter(host.models[0]))
    _rot(host, name)
    assert toolkit.vime("verify", "--local", host.local).code == 22
    assert host.pulled()["tensors_repaired"] == 1
    expect_settled(host, 3)


@pytest.mark.parametrize("missing", ["base", "delta"])
def test_h05_without_a_path_22_names_the_version_that_would_help(missing: str, host: Host) -> None:
    name = "model.norm.weight"
    _rot(host, name)
    assert toolkit.vime("verify", "--local", host.local).code == 22
    away = host.root / "away"
    lost = host.base if missing == "base" else toolkit.version_path(host.shared, 1)
    lost.rename(away)
    before = toolkit.snapshot(host.local)

    result = host.pull()

    helpful = 0 if missing == "base" else 1
    assert (result.code, result.error["id"], result.error["version"]) == (22, "damaged", helpful), result.stderr
    assert names_version(result.error["message"] + " " + result.error["hint"], helpful)
    assert toolkit.snapshot(host.local) == before
    assert toolkit.vime("status", "--local", host.local).document["state"] == "damaged"
    away.rename(lost)
    assert host.pulled()["tensors_repaired"] == 1
    expect_settled(host, 2)


def test_h05_rot_in_a_marked_tensor_spreads_no_further(host: Host) -> None:
    """Marks are kept over several looks, and a second rot before the heal is found as well."""
    _rot(host, "scalar")
    assert toolkit.vime("verify", "--local", host.local).code == 22
    _rot(host, "one")
    verify = toolkit.vime("verify", "--local", host.local)
    assert (verify.code, sorted(verify.error["tensors"])) == (22, ["one", "scalar"])
    assert host.pulled()["tensors_repaired"] == 2
    expect_settled(host, 2)
