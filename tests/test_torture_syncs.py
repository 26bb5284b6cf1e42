"""FIELD_GUIDE H3: the order in which things are made to last, looked at while every job runs, and safeguards that only
one chain of accidents needs.

A sweep of power losses finds a sync that is missing when the dice fall right. Here it is found at once: at the moment
that a sync is for, nothing that it is for may still be unsynced.
"""

import errno
import os
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.disk_model import DiskModel, Loss
from tests.host import Host, flip_byte
from tests.kill_jobs import HEADER_BYTES, JOBS, bring_fresh, create, expect_no_lie, expect_settled
from tests.kill_points import (
    PULL_THREADS,
    KillSwitch,
    Matching,
    kill,
    no_disk_waits,
    observing,
    operations,
    reboot,
    run_until_killed,
    shard_writes,
    tracing,
)
from tests.kill_power import overwrite
from vime_sync import fsio

_RECORD = re.compile(r"/\.weight_sync/((intent|owner|state)\.json|digests/\d{6,}-[0-9a-f]+\.json)$")
_FILES_FIRST = ("repair_shard", "identify")  # files that are mended get a state of their own, which says: not durable
_BUILT = re.compile(r"/aside/(shard|file)-\d+$")
_KIB = 256


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _of_records(unsynced: list[str]) -> list[str]:
    """Records and digest tables, their contents or their names."""
    return [path for path in unsynced if _RECORD.search(path)]


def _of_data(unsynced: list[str]) -> list[str]:
    return [path for path in unsynced if path.endswith(".safetensors") and "/aside/" not in path]


class _Watch:
    """An observer that looks at what is unsynced when live bytes change and when a version is committed."""

    def __init__(self, disk: DiskModel, local: Path, *, durable: bool, once: bool = True) -> None:
        """`once`: the first state that is written is the commit."""
        self._disk, self._local, self._durable, self._once = disk, local, durable, once
        self.wrong: list[str] = []
        self.changes = 0

    def __call__(self, operation: str, path: Path) -> None:
        live = path.is_relative_to(self._local) and toolkit.STATE_DIRECTORY not in path.relative_to(self._local).parts
        if live and operation in ("write", "rename", "unlink"):
            self.changes += 1
            self._expect(_of_records(self._disk.unsynced), f"{operation} of {path.name}")
            if operation == "rename" and self._durable and self._once:
                built = [name for name in self._disk.unsynced_contents if _BUILT.search(name)]
                self._expect(built, f"rename to {path.name}")
        if operation == "create" and path.name == "intent.json.new":
            self._expect(_of_records(self._disk.unsynced), "the intent")
        if operation == "create" and path.name == "state.json.new":
            self._expect(
                [name for name in _of_records(self._disk.unsynced) if not name.endswith("/state.json")], "the state"
            )
            self._expect(_of_data(self._disk.unsynced_names), "the commit")
            if self._durable and self._once:
                self._expect(_of_data(self._disk.unsynced), "the commit")

    def _expect(self, unsynced: list[str], moment: str) -> None:
        if unsynced:
            self.wrong.append(f"before {moment}: {unsynced}")


@pytest.mark.parametrize("durable", [False, True], ids=["behind", "durable"])
@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if not job.cramped])
def test_h03_what_must_last_first_lasts_first(name: str, durable: bool, tmp_path: Path) -> None:
    job = JOBS[name]
    host = create(tmp_path / "host", job, kib=_KIB)
    bring_fresh(host, job)
    with DiskModel(host.local, tmp_path / "limbo") as disk:
        watch = _Watch(disk, host.local, durable=durable, once=name not in _FILES_FIRST)
        with observing(watch):
            result = host.pull(*(["--durable"] if durable else []), *PULL_THREADS, version=job.target)
        assert result.code == job.code, result.stderr
        left = disk.unsynced
    assert watch.changes > 0
    assert not watch.wrong, watch.wrong
    # At the end all of the version lasts, and that no intent is there.
    assert not [path for path in _of_records(left) if "/digests/" not in path], left  # old tables may come back
    if job.code == 0:
        assert not _of_data(left), left


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_h08_a_copy_that_takes_a_links_place_lasts_before_the_pass_begins(kind: str, tmp_path: Path) -> None:
    host = create(tmp_path / "host", JOBS["apply"], kib=_KIB)
    bring_fresh(host, JOBS["apply"])
    shard = sorted(host.local.glob("*.safetensors"))[0]
    elsewhere = tmp_path / "elsewhere"
    shard.rename(elsewhere)
    if kind == "symbolic":
        shard.symlink_to(elsewhere)
    else:
        os.link(elsewhere, shard)
    seen: list[list[str]] = []
    with DiskModel(host.local, tmp_path / "limbo") as disk:

        def watch(operation: str, path: Path) -> None:
            if operation == "create" and path.name == "intent.json.new":
                seen.append(_of_data(disk.unsynced))

        with observing(watch):
            host.pulled(*PULL_THREADS)
    assert seen == [[]]
    host.expect_local(2)


def test_h03_the_name_of_a_directory_whose_maker_was_killed_lasts_too(tmp_path: Path) -> None:
    host = Host.create(tmp_path / "host", model=toolkit.make_model(tensors=2, kib=64))
    host.publish()

    def names_of_the_parent(operation: str, path: Path) -> bool:
        return operation == "sync_directory" and path == host.local.parent

    with DiskModel(host.local, tmp_path / "limbo", own_name=True) as disk:
        kill(lambda: host.pull(*PULL_THREADS), 0, names_of_the_parent)
        host.pulled("--durable", *PULL_THREADS)
        disk.crash(Loss.DROPPED, random.Random(1))
    host.expect_local(1)


def test_h01_no_state_stands_beside_bytes_that_go_back_after_a_commit_that_failed(tmp_path: Path) -> None:
    """The state was renamed into place, its directory could not be synced; and the undo of that is killed."""
    job = JOBS["apply"]
    host = create(tmp_path / "host", job, kib=2560)
    committed = False

    def fail(operation: str, path: Path) -> None:
        nonlocal committed
        if operation == "rename" and path.name == "state.json":
            committed = True
        elif committed and operation == "sync_directory":
            committed = False
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    undone = _writes_after_a_failed_commit(host.local)
    kills = 0
    for at in range(20):
        bring_fresh(host, job)
        committed = False
        switch = KillSwitch(at, undone(), also=fail)
        if run_until_killed(lambda: host.pull(*PULL_THREADS), switch) is not None:
            break
        kills += 1
        expect_no_lie(host)
        host.pulled(*PULL_THREADS)
        host.expect_local(2)
    assert kills > 0


def _writes_after_a_failed_commit(local: Path) -> Callable[[], Matching]:
    writes = shard_writes(local)

    def fresh() -> Matching:
        renamed = False

        def matching(operation: str, path: Path) -> bool:
            nonlocal renamed
            renamed = renamed or (operation == "rename" and path.name == "state.json")
            return renamed and writes(operation, path)

        return matching

    return fresh


def test_h02_a_record_that_was_torn_itself_says_nothing(tmp_path: Path) -> None:
    """The run was killed in the middle of writing a record: its block was not begun."""
    job = JOBS["apply"]
    host = create(tmp_path / "host", job, kib=2560)
    bring_fresh(host, job)
    kill(lambda: job.run(host), 1, shard_writes(host.local))
    journal = host.local / toolkit.STATE_DIRECTORY / "journal"
    records = journal.read_bytes()
    whole = len(records) // 2  # two blocks were recorded, the first of them was written
    last = bytearray(records[whole:])
    last[16:32] = struct.pack("<QQ", 1, 2)  # what the block held before, and what it was to hold
    journal.write_bytes(records[:whole] + bytes(last))

    with tracing() as trace:
        host.pulled(*PULL_THREADS)

    assert trace.bytes_from(host.base) < HEADER_BYTES
    expect_settled(host, 2)


def test_h05_what_goes_back_to_other_bytes_than_it_had_is_found_wrong(tmp_path: Path) -> None:
    """It rots while the pass that is undone is under way."""
    job = JOBS["undo"]
    host = create(tmp_path / "host", job, kib=_KIB)
    bring_fresh(host, job)
    name = next(iter(host.models[0]))
    withdrawn = 0

    def rot(operation: str, path: Path) -> None:
        nonlocal withdrawn
        if operation == "unlink" and path.name == "state.json":
            withdrawn += 1
            if withdrawn == 2:  # the pass has failed and is about to be undone
                flip_byte(host.local, name)

    with observing(rot):
        result = job.run(host)
    assert result.code == 12, result.stderr
    assert withdrawn >= 2
    status = toolkit.vime("status", "--local", host.local).document
    assert status["state"] != "ready" or toolkit.read_checkpoint(host.local) == host.models[1]
    host.pulled(*PULL_THREADS, version=1)
    host.expect_local(1)


def test_h03_an_error_of_a_sync_is_not_lost_between_two_files(tmp_path: Path) -> None:
    """Of two files the first one's sync fails, once: the version is not called durable."""
    host = create(tmp_path / "host", JOBS["apply"], kib=_KIB)
    bring_fresh(host, JOBS["apply"])
    first = operations("sync", "model-00001-of-00002.safetensors")
    failed: list[Path] = []

    def fail(operation: str, path: Path) -> None:
        if not failed and first(operation, path):
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with observing(fail):
        assert host.pull(*PULL_THREADS).code == 21
    assert failed
    assert toolkit.vime("status", "--local", host.local).document["durable"] is False
    host.pulled(*PULL_THREADS)
    host.expect_local(2)


def test_the_model_sees_what_is_not_synced(tmp_path: Path) -> None:
    """These tests can fail: a run whose syncs do nothing is full of what is unsynced."""
    host = create(tmp_path / "host", JOBS["apply"], kib=_KIB)
    bring_fresh(host, JOBS["apply"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsio.File, "sync", lambda file: None)
        with DiskModel(host.local, tmp_path / "limbo") as disk:
            patch.setattr(fsio.File, "sync", lambda file: None)
            watch = _Watch(disk, host.local, durable=False)
            with observing(watch):
                host.pulled(*PULL_THREADS)
            assert _of_data(disk.unsynced)
    assert watch.wrong


@pytest.mark.parametrize("name", ["seed", "replacement"])
def test_h03_what_was_built_before_a_power_loss_is_hashed_after_its_names_changed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that was built and not synced a page is lost; its size and time say nothing of it."""
    job = JOBS[name]
    host = create(tmp_path / "host", job, kib=_KIB)
    bring_fresh(host, job)
    kill(lambda: job.run(host), 0, operations("rename", ".safetensors"))
    for built in (host.local / toolkit.STATE_DIRECTORY / "aside").glob("shard-?????"):
        times = (built.stat().st_atime_ns, built.stat().st_mtime_ns)
        middle = built.stat().st_size // 2
        overwrite(built, middle, bytes(byte ^ 0xFF for byte in built.read_bytes()[middle : middle + 64]))
        os.utime(built, ns=times)
    reboot(monkeypatch)

    assert job.run(host).code == job.code

    expect_settled(host, job.end)
