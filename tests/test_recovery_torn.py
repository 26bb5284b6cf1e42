"""FIELD_GUIDE H1: the block that a kill tears in the middle of its write is settled on the spot.

Of the write that the kill struck a prefix arrived: at page boundaries, at odd ones, one byte, all but one byte.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, JOBS, Job, bring_fresh, create, expect_settled, expect_whole, stated_version
from tests.kill_points import count_operations, kill_tearing, no_disk_waits, shard_writes, tracing

_PAGE = 4096

TEARS: dict[str, Callable[[int], int]] = {
    "nothing": lambda size: 0,
    "one_byte": lambda size: min(1, size),
    "one_page": lambda size: min(_PAGE, size),
    "half_in_pages": lambda size: size // 2 // _PAGE * _PAGE,
    "odd": lambda size: size * 2 // 3 | 1 if size > 2 else 0,
    "last_page_missing": lambda size: (size - 1) // _PAGE * _PAGE,
    "all_but_one_byte": lambda size: max(0, size - 1),
    "all": lambda size: size,
}

TORN_JOBS = [
    "apply", "apply_overwrite", "folded", "undo", "replacement_in_place", "rollback", "rollback_overwrite", "repair",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _writes(host: Host, job: Job) -> int:
    """How many writes into live shards the undisturbed job does."""
    bring_fresh(host, job)
    return count_operations(lambda: job.run(host), shard_writes(host.local))


def _heal(host: Host, job: Job, point: int = 0) -> None:
    with tracing() as trace:
        result = job.run(host)
    assert result.code == job.code, result.stderr
    assert stated_version(host.local) == job.end
    if job.anchor_free:
        assert trace.bytes_from(host.base) < HEADER_BYTES
    expect_settled(host, job.end, look_again=point % 4 == 0)


_FEW = ("one_byte", "odd", "last_page_missing", "all")


@pytest.mark.parametrize(
    ("name", "tear"),
    [(name, tear) for name in TORN_JOBS for tear in (TEARS if name in ("apply", "folded") else _FEW)],
)
def test_h01_a_torn_block_is_settled(name: str, tear: str, tmp_path: Path) -> None:
    job = JOBS[name]
    host = create(tmp_path, job)
    total = _writes(host, job)
    assert total > 2
    for point in range(total):
        bring_fresh(host, job)
        assert kill_tearing(lambda: job.run(host), host.local, point, TEARS[tear])
        assert name == "repair" or stated_version(host.local) is None
        try:
            _heal(host, job, point)
        except BaseException:
            print(f"{name}: write {point} of {total} torn: {tear}")
            raise


@pytest.mark.parametrize("tear", ["one_byte", "odd", "half_in_pages", "all"])
@pytest.mark.parametrize("name", ["apply", "apply_overwrite", "folded", "undo", "rollback"])
def test_h01_a_torn_block_is_settled_from_local_bytes_alone(name: str, tear: str, tmp_path: Path) -> None:
    """The share shows nothing any more and the base is gone: forward or back, the result is whole."""
    job = JOBS[name]
    host = create(tmp_path / "host", job)
    total = _writes(host, job)
    shared, base = tmp_path / "shared", tmp_path / "base"
    for point in range(total):
        bring_fresh(host, job)
        assert kill_tearing(lambda: job.run(host), host.local, point, TEARS[tear])
        host.shared.rename(shared)
        host.base.rename(base)
        host.shared.mkdir()
        try:
            assert host.pull().code in (0, 10) if job.start == 0 else host.pull().code == 10
            assert expect_whole(host) in {job.start, job.end}
        except BaseException:
            print(f"{name}: write {point} of {total} torn: {tear}, share emptied, base gone")
            raise
        host.shared.rmdir()
        shared.rename(host.shared)
        base.rename(host.base)


@pytest.mark.parametrize("name", ["apply", "folded", "rollback"])
def test_h01_recovery_that_is_torn_itself_heals(name: str, tmp_path: Path) -> None:
    """The first write of each recovery is torn again, up to three times over; then one is let through."""
    job = JOBS[name]
    host = create(tmp_path, job)
    for point in range(_writes(host, job) - 1):
        bring_fresh(host, job)
        assert kill_tearing(lambda: job.run(host), host.local, point, TEARS["odd"])
        for tear in ("one_page", "one_byte", "odd"):
            if not kill_tearing(lambda: job.run(host), host.local, 0, TEARS[tear]):
                break  # nothing was left to write
        try:
            _heal(host, job, point)
        except BaseException:
            print(f"{name}: write {point} torn, and the first write of three recoveries")
            raise


def test_h01_a_torn_block_of_a_seeded_full_version_needs_no_anchor(tmp_path: Path) -> None:
    """The anchor below the delta is a full version on the share: it is not read either."""
    job = replace(JOBS["apply"], start=2, end=3)
    host = Host.create(tmp_path, model=toolkit.make_model(tensors=3, kib=3072))
    host.publish()
    full = host.publish_full()
    host.publish()
    for point in range(4):
        shutil.rmtree(host.local, ignore_errors=True)
        host.pulled(version=2)
        assert kill_tearing(lambda: job.run(host), host.local, point, TEARS["odd"])
        with tracing() as trace:
            assert job.run(host).code == 0
        assert trace.bytes_from(host.base) + trace.bytes_from(full) < HEADER_BYTES
        expect_settled(host, 3)


# ---- the story of the field guide's row, as an operator sees it


def test_h01_the_healing_pull_says_what_it_did(tmp_path: Path) -> None:
    job = JOBS["apply"]
    host = create(tmp_path, job)
    total = _writes(host, job)
    bring_fresh(host, job)
    assert kill_tearing(lambda: job.run(host), host.local, total // 2, TEARS["odd"])
    status = toolkit.vime("status", "--local", host.local)
    assert (status.document["local_version"], status.document["state"]) == (None, "updating")
    verify = toolkit.vime("verify", "--local", host.local)
    assert verify.code == 22

    document = host.pulled()

    # Bytes changed and the version too: that is no "already current", although only recovery did it.
    assert (document["result"], document["version"], document["new_stream"]) == ("updated", 2, False)
    assert document["seeded_from"] is None
    model = sum(len(tensor.data) for tensor in host.models[0].values())
    assert 0 < document["bytes_written"] < model
    assert 0 < document["bytes_read"] < 3 * model
    status = toolkit.vime("status", "--local", host.local)
    assert (status.document["local_version"], status.document["state"]) == (2, "ready")


@pytest.mark.parametrize("version", [1, 2])
def test_h01_the_healing_pull_may_ask_for_the_old_version_or_the_new(version: int, tmp_path: Path) -> None:
    job = JOBS["apply"]
    host = create(tmp_path, job)
    total = _writes(host, job)
    for point in range(total):
        bring_fresh(host, job)
        assert kill_tearing(lambda: job.run(host), host.local, point, TEARS["odd"])
        with tracing() as trace:
            document = host.pulled(version=version)
        assert document["version"] == version
        assert trace.bytes_from(host.base) < HEADER_BYTES
        host.expect_local(version)


def test_h01_verify_between_two_versions_does_not_bless_the_bytes(tmp_path: Path) -> None:
    job = JOBS["apply"]
    host = create(tmp_path, job)
    bring_fresh(host, job)
    assert kill_tearing(lambda: job.run(host), host.local, 1, TEARS["odd"])
    before = toolkit.snapshot(host.local)
    assert toolkit.vime("verify", "--local", host.local).code == 22
    assert toolkit.snapshot(host.local) == before
    assert stated_version(host.local) is None
    _heal(host, job)
