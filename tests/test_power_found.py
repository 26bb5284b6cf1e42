"""What the power-loss model found, each told as the shortest story that shows it."""

import contextlib
import errno
import gc
import os
import random
from pathlib import Path

import pytest

from tests import toolkit
from tests.disk_model import DiskModel, Loss
from tests.host import Host, expect_error, flip_byte
from tests.kill_jobs import expect_no_lie, expect_settled, models, spoil_digest
from tests.kill_points import PULL_THREADS, Matching, kill, no_disk_waits, observing, reboot
from tests.kill_power import bring_undurable


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _create(root: Path, versions: int = 2) -> Host:
    host = Host.create(root, model=models(256))
    for _ in range(versions):
        host.publish()
    return host


def _state_written_after(shard: str) -> Matching:
    """The first write of a state once that shard was renamed into place."""
    in_place = False

    def matching(operation: str, path: Path) -> bool:
        nonlocal in_place
        in_place = in_place or (operation == "rename" and path.name == shard)
        return in_place and operation == "create" and path.name == "state.json.new"

    return matching


@pytest.mark.parametrize("command", ["pull", "verify"])
def test_h03_a_file_that_was_put_back_and_not_synced_is_not_called_durable(command: str, tmp_path: Path) -> None:
    """A lost shard was mended and the run killed before it said so: the file is right in the page cache only."""
    host = _create(tmp_path / "host")
    host.pulled(*PULL_THREADS)
    shard = "model-00001-of-00002.safetensors"
    (host.local / shard).unlink()
    with DiskModel(host.local, tmp_path / "limbo") as disk:
        kill(lambda: host.pull(*PULL_THREADS), 0, _state_written_after(shard))
        if command == "verify":
            assert toolkit.vime("verify", "--local", host.local).code == 0
        host.pulled(*PULL_THREADS)
        assert toolkit.vime("status", "--local", host.local).document["durable"] is True
        disk.crash(Loss.DROPPED, random.Random(1))
        host.expect_local(2)


@pytest.mark.parametrize("deeper", [False, True])
def test_h03_a_fresh_seed_called_durable_keeps_its_name(deeper: bool, tmp_path: Path) -> None:
    """LOCAL itself is a name in a directory."""
    host = _create(tmp_path / "host")
    local = host.local / "deeper" if deeper else host.local
    with DiskModel(host.local, tmp_path / "limbo", own_name=True) as disk:
        assert toolkit.pull(host.shared, local, "--durable", *PULL_THREADS, base=host.base).code == 0
        disk.crash(Loss.DROPPED, random.Random(1))
    host.expect_local(2, local)


def test_h05_a_bad_publication_of_a_rotten_tensor_is_the_publishers_fault(tmp_path: Path) -> None:
    host = _create(tmp_path)
    spoil_digest(toolkit.version_path(host.shared, 2), "one")
    host.pulled(version=1)
    flip_byte(host.local, "one")
    assert toolkit.vime("verify", "--local", host.local).code == 22

    error = expect_error(host.pull(), 12, "checksum_mismatch")

    assert error["tensors"] == ["one"]


def test_h05_what_is_rotten_is_mended_also_below_a_bad_publication(tmp_path: Path) -> None:
    """Refused is refused, and the old version is whole all the same."""
    host = _create(tmp_path)
    spoil_digest(toolkit.version_path(host.shared, 2), "one")
    host.pulled(version=1)
    flip_byte(host.local, "lm_head.weight")
    assert toolkit.vime("verify", "--local", host.local).code == 22

    expect_error(host.pull(), 12, "checksum_mismatch")

    host.expect_local(1)
    assert toolkit.vime("status", "--local", host.local).document["state"] == "ready"


def test_s20_rotten_tensors_are_no_sign_of_another_base(tmp_path: Path) -> None:
    host = _create(tmp_path)
    spoil_digest(toolkit.version_path(host.shared, 2), "one")
    host.pulled(version=1)
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"):
        flip_byte(host.local, name)
    assert toolkit.vime("verify", "--local", host.local).code == 22

    expect_error(host.pull(), 12, "checksum_mismatch")


def test_h03_what_a_power_loss_may_have_touched_is_not_called_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = _create(tmp_path)
    host.pulled(version=1)
    bring_undurable(host, 2)
    reboot(monkeypatch)

    assert toolkit.vime("status", "--local", host.local).document["state"] != "ready"
    assert toolkit.vime("status", "--local", host.local, "--check").code == 3

    host.pulled()
    expect_settled(host, 2)


def _open_files(below: Path) -> list[str]:
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            links.append(str(descriptor.readlink()))
    return sorted(link for link in links if link.startswith(f"{below}/"))


@pytest.mark.parametrize("name", ["1.frames", "2.frames", "1.old", "2.old", "journal"])
def test_h06_a_job_that_cannot_be_begun_leaves_no_descriptors_open(name: str, tmp_path: Path) -> None:
    """A daemon tries again and again."""
    host = _create(tmp_path)
    host.pulled(version=0)
    gc.disable()  # a frame of the traceback would else be found and closed in time
    try:

        def full(operation: str, path: Path) -> None:
            if operation == "create" and path.name == name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        with observing(full):
            expect_error(host.pull(), 21, "local_io")
        assert _open_files(host.local) == []
    finally:
        gc.enable()
    host.pulled()
    host.expect_local(2)


def test_h04_bytes_of_unknown_standing_are_settled_below_a_bad_version(tmp_path: Path) -> None:
    """A run that met a bad version lost its records: neither the newest nor an older version may be out of reach."""
    host = _create(tmp_path)
    host.pulled(version=2)
    spoil_digest(toolkit.version_path(host.shared, 2), "one")
    (host.local / toolkit.STATE_DIRECTORY / "state.json").unlink()
    flip_byte(host.local, "lm_head.weight")

    expect_error(host.pull(), 12, "checksum_mismatch")
    expect_no_lie(host)
    host.pulled(version=1)
    host.expect_local(1)
