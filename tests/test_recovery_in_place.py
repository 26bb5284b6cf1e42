"""A full version without room for a second checkpoint is written over the first one, tensor by tensor, forward only."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests import toolkit
from tests.host import Host, names_version
from tests.kill_jobs import JOBS, SPARE_BYTES, bring_fresh, create, expect_settled, expect_whole, models, stated_version
from tests.kill_points import PULL_THREADS, count_operations, kill_tearing, no_disk_waits, shard_writes
from tests.toolkit import Tensor
from vime_sync import fsio


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """LOCAL at version 1; version 2 is full."""
    host = Host.create(tmp_path, model=models(2560))
    host.publish()
    host.pulled()
    host.publish_full(extra_files={"config.json": b'{"new": true}', "tokenizer.json": b"{}"})
    return host


@pytest.fixture
def _no_room(host: Host) -> Iterator[None]:
    assert host.local.is_dir()  # there was room for the first one
    with mock.patch.object(fsio, "free_bytes", lambda directory: SPARE_BYTES + (1 << 20)):
        yield


def _inodes(local: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in local.glob("*.safetensors")}


@pytest.mark.usefixtures("_no_room")
def test_h06_a_full_version_without_room_is_written_in_place_and_says_so(host: Host) -> None:
    before = _inodes(host.local)
    result = host.pull(*PULL_THREADS)
    assert result.code == 0, result.stderr
    document = result.document
    assert (document["result"], document["version"], document["new_stream"]) == ("updated", 2, False)
    assert _inodes(host.local) == before
    assert "room" in result.stderr or "place" in result.stderr, "it says that there is no way back"
    assert (host.local / "config.json").read_bytes() == b'{"new": true}'
    expect_settled(host, 2)


@pytest.mark.usefixtures("_no_room")
def test_h06_tensors_that_are_the_same_are_not_written(host: Host) -> None:
    name = "model.norm.weight"
    host.models[2] = toolkit.step(host.models[1], 9, only=[name])
    toolkit.publish_full(host.shared, 2, host.models[2])
    document = host.pulled(*PULL_THREADS)
    assert document["bytes_written"] <= len(host.models[2][name].data) + 64 * 1024
    expect_settled(host, 2)


@pytest.mark.usefixtures("_no_room")
def test_h06_another_layout_without_room_is_21_and_nothing_changed(host: Host) -> None:
    """A tensor of another shape does not fit into the files that are here."""
    model = dict(host.models[1])
    model["scalar"] = Tensor("F32", (2,), bytes(8))
    host.models[2] = model
    toolkit.publish_full(host.shared, 2, model)
    before = toolkit.snapshot(host.local)
    result = host.pull(*PULL_THREADS)
    assert (result.code, result.error["id"]) == (21, "local_io"), result.stderr
    assert toolkit.snapshot(host.local) == before
    host.expect_local(1)


@pytest.mark.usefixtures("_no_room")
def test_h06_other_shard_names_without_room_still_fit(host: Host) -> None:
    """The local layout stays: what counts are names, dtypes and shapes of the tensors."""
    toolkit.publish_full(host.shared, 2, host.models[2], shards=3)
    before = _inodes(host.local)
    result = host.pull(*PULL_THREADS)
    assert result.code in (0, 21), result.stderr
    host.expect_local(2 if result.code == 0 else 1)
    if result.code == 0:
        assert _inodes(host.local) == before
        expect_settled(host, 2)


def test_h01_cut_short_with_its_source_gone_it_says_which_version_would_help(tmp_path: Path) -> None:
    """Forward only: what is not whole is never called ready, and the version itself or a later one heals it."""
    job = JOBS["replacement_in_place"]
    host = create(tmp_path / "host", job)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host), shard_writes(host.local))
    shutil.copytree(host.shared, tmp_path / "published")
    host.models[3] = toolkit.step(host.models[2], 3)
    for point in range(0, total, 2):
        bring_fresh(host, job)
        assert kill_tearing(lambda: job.run(host), host.local, point, lambda size: size // 2)
        shutil.rmtree(toolkit.version_path(host.shared, 2))
        result = host.pull(version=2)
        assert result.code in (10, 22), result.stderr
        assert names_version(result.error["message"] + " " + result.error["hint"], 2)
        if toolkit.vime("status", "--local", host.local).document["state"] == "ready":
            assert expect_whole(host) == 1  # rebuilt from the base and the delta, which are still there
        if point % 4:
            toolkit.publish_full(host.shared, 3, host.models[3])
            assert host.pulled(*PULL_THREADS)["version"] == 3
            host.expect_local(3)
            shutil.rmtree(toolkit.version_path(host.shared, 3))
            shutil.copytree(tmp_path / "published", host.shared, dirs_exist_ok=True)
        else:
            shutil.copytree(tmp_path / "published", host.shared, dirs_exist_ok=True)
            assert host.pulled(*PULL_THREADS)["version"] == 2
            expect_settled(host, 2)


def test_v01_cut_short_it_can_still_go_back_by_an_anchor(tmp_path: Path) -> None:
    job = JOBS["replacement_in_place"]
    host = create(tmp_path, job)
    bring_fresh(host, job)
    assert kill_tearing(lambda: job.run(host), host.local, 1, lambda size: size // 2)
    assert stated_version(host.local) is None
    assert host.pulled(*PULL_THREADS, version=1)["version"] == 1
    expect_settled(host, 1)
