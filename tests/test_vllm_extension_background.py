"""The worker extension pulls behind the serving: started, polled, on several hosts, and cut short."""

import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.extension_story import (
    TIMEOUT_S,
    Fleet,
    Gate,
    arguments,
    call,
    expect_loaded,
    gated,
    join_pulls,
    make_worker,
    pull_threads,
    sibling,
    spoil,
    states,
)
from tests.host import Host
from tests.kill_peer import peer_lock
from tests.kill_points import no_disk_waits, observing, operations, shard_writes
from vime_sync.errors import VersionMissing
from vime_sync.reconcile import reconcile
from vime_sync.vllm_extension import pulling


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Versions 1 and 2 are published; LOCAL does not exist."""
    host = Host.create(tmp_path, model=toolkit.make_model(tensors=3, kib=16))
    host.publish()
    host.publish()
    return host


def test_a_pull_goes_on_behind_the_serving_and_is_polled(host: Host) -> None:
    host.pulled(version=1)
    fleet = Fleet.on([host], ranks_per_host=3)
    with gated(host.local) as gate:
        started = fleet.call("vime_sync_start_pull", source_dir=str(host.shared), target_version=2)
        assert [(answer["success"], answer["done"]) for answer in started] == [(True, False)] * 3
        gate.wait_until_reached()
        # It is in the middle of its writing, and the ranks answer: nothing whole is here, nothing was loaded.
        assert states(fleet.call("vime_sync_poll")) == [(True, False, None)] * 3
        assert states(fleet.call("vime_sync_report")) == [(True, True, None)] * 3
    assert states(fleet.settle()) == [(True, True, 2)] * 3
    host.expect_local(2)
    for worker in fleet.workers:
        expect_loaded(worker, host.models[0])
    assert not pull_threads()


def test_a_second_start_joins_the_first_and_another_version_comes_after_it(host: Host) -> None:
    host.pulled(version=0)
    worker = make_worker(host.base)
    with gated(host.local) as gate:
        for version in (1, 1, 2):
            answer = call(worker, "vime_sync_start_pull", **arguments(host, version))
            assert (answer["success"], answer["done"]) == (True, False)
            gate.wait_until_reached()
            assert len(pull_threads()) == 1
    answer = call(worker, "vime_sync_poll", local_checkpoint_dir=str(host.local))
    assert (answer["success"], answer["done"], answer["version"]) == (True, True, 2)
    host.expect_local(2)


def test_a_start_that_waits_for_the_lock_gives_way_to_another_version(host: Host) -> None:
    host.pulled(version=0)
    worker = make_worker(host.base)
    with peer_lock(host.local):
        call(worker, "vime_sync_start_pull", **arguments(host, 1))
        call(worker, "vime_sync_start_pull", **arguments(host, 2, wait_s=0.2))
        join_pulls()
        answer = call(worker, "vime_sync_poll", local_checkpoint_dir=str(host.local))
    assert (answer["success"], answer["done"], answer["error"]) == (False, True, "lock_held")
    host.expect_local(0)


def test_a_pull_that_fails_behind_the_serving_says_why_and_can_be_started_again(host: Host) -> None:
    host.pulled(version=1)
    good = toolkit.version_path(host.shared, 2)
    shutil.copytree(good, host.root / "good")
    spoil(host, 2)
    fleet = Fleet.on([host], ranks_per_host=1)
    for error, version in (("checksum_mismatch", 1), (None, 2)):
        fleet.call("vime_sync_start_pull", source_dir=str(host.shared), target_version=2)
        (answer,) = fleet.settle()
        assert (answer["success"], answer["error"], answer["version"]) == (error is None, error, version)
        host.expect_local(version)
        shutil.copytree(host.root / "good", good, dirs_exist_ok=True)


def test_where_no_pull_was_started_a_poll_tells_what_local_holds(host: Host) -> None:
    worker = make_worker(host.base)
    answer = call(worker, "vime_sync_poll", nonce="p", local_checkpoint_dir=str(host.local))
    assert (answer["success"], answer["done"], answer["version"], answer["lineage"]) == (True, True, None, None)
    host.pulled()
    assert call(worker, "vime_sync_poll", nonce="p", local_checkpoint_dir=str(host.local))["version"] == 2


def test_a_poll_never_calls_done_what_was_changed_since(host: Host) -> None:
    fleet = Fleet.on([host], ranks_per_host=1)
    fleet.call("vime_sync_start_pull", source_dir=str(host.shared), target_version=2)
    fleet.settle()
    host.pulled(version=1)
    assert states(fleet.settle()) == [(False, True, 1)]


def test_a_version_that_this_host_sees_late_is_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = threading.Event()

    def watched(*args: Any) -> Any:
        try:
            return reconcile(*args)
        except VersionMissing:
            missed.set()
            raise

    monkeypatch.setattr(pulling, "reconcile", watched)
    worker = make_worker(host.base)
    call(worker, "vime_sync_start_pull", **arguments(host, 3))
    assert missed.wait(TIMEOUT_S)
    assert not call(worker, "vime_sync_poll", local_checkpoint_dir=str(host.local))["done"]
    host.publish()
    join_pulls()
    assert call(worker, "vime_sync_poll", local_checkpoint_dir=str(host.local))["version"] == 3
    host.expect_local(3)


def test_a_rank_that_waits_is_done_when_another_one_has_committed_what_is_wanted(host: Host) -> None:
    """Although that one still holds the lock, to make it durable; or the leader does, over the whole reload."""
    twin = sibling(host, "twin")
    twin.pulled(version=2)
    worker = make_worker(host.base)
    lineage = call(worker, "vime_sync_report", nonce="t", local_checkpoint_dir=str(twin.local))["lineage"]
    host.pulled(version=1)
    writing, syncing = Gate(shard_writes(host.local)), Gate(operations("sync", ".safetensors"))

    def gates(operation: str, path: Path) -> None:
        writing(operation, path)
        syncing(operation, path)

    with observing(gates), ThreadPoolExecutor(1) as others:
        try:
            pulled = others.submit(host.pulled, version=2)
            writing.wait_until_reached()
            assert not call(worker, "vime_sync_start_pull", **arguments(host, 2, lineage=lineage))["done"]
            writing.open()
            syncing.wait_until_reached()
            join_pulls()
            assert not pulled.done()
            answer = call(worker, "vime_sync_poll", nonce="t", local_checkpoint_dir=str(host.local))
            assert (answer["success"], answer["done"], answer["version"]) == (True, True, 2)
        finally:
            writing.open()
            syncing.open()
    assert pulled.result()["version"] == 2


# ---- several hosts


def test_a_leader_brings_the_other_hosts_to_its_weights_while_it_holds_its_own_lock(host: Host) -> None:
    other = sibling(host, "other")
    other.pulled(version=1)
    host.pulled(version=2)
    fleet = Fleet.on([host, other])
    with peer_lock(host.local):
        lineage = fleet.call("vime_sync_report")[0]["lineage"]
        lacking = [answer["lineage"] != lineage for answer in fleet.call("vime_sync_report")]
        assert lacking == [False, False, True, True]

        wanted = {"target_version": 2, "lineage": lineage}
        # The leader's base is not on the other hosts: there the engine's own model is.
        started = fleet.call(
            "vime_sync_start_pull", source_dir=str(host.shared), base_dir=str(host.root / "leaders"), **wanted
        )
        assert [answer["done"] for answer in started[:2]] == [True, True]
        assert states(fleet.settle()) == [(True, True, 2)] * 4

        answers = fleet.call("vime_sync_reload", **wanted)
    assert states(answers) == [(True, True, 2)] * 4
    assert {answer["lineage"] for answer in answers} == {lineage}
    for worker in fleet.workers:
        expect_loaded(worker, host.models[2])
    other.expect_local(2)


def test_v03_a_host_that_comes_to_other_weights_under_the_same_number_says_so(host: Host) -> None:
    worker = make_worker(host.base)
    call(worker, "vime_sync_start_pull", **arguments(host, 2, lineage="0" * 32))
    join_pulls()
    answer = call(worker, "vime_sync_poll", local_checkpoint_dir=str(host.local))
    assert (answer["success"], answer["error"], answer["version"]) == (False, "other_weights", 2)


# ---- killed in the middle

_WORKER = """
import sys, threading
from tests.extension_story import call, make_worker
from tests.kill_points import shard_writes
from pathlib import Path
from vime_sync import fsio
base, shared, local = sys.argv[1:]
matching = shard_writes(Path(local))
seen = 0
def stop(operation, path):
    global seen
    if matching(operation, path):
        seen += 1
        if seen == 2:
            print("writing", flush=True)
            threading.Event().wait()
fsio.observer = stop
worker = make_worker(base)
call(worker, "vime_sync_start_pull", nonce=1, local_checkpoint_dir=local, source_dir=shared, target_version=2)
print(sys.stdin.readline())
"""


@pytest.mark.parametrize("killed", [True, False])
def test_h01_a_worker_that_ends_in_the_middle_of_a_pull_hangs_nobody_and_the_next_one_heals(
    killed: bool, host: Host
) -> None:
    host.pulled(version=1)
    with subprocess.Popen(
        [sys.executable, "-c", _WORKER, str(host.base), str(host.shared), str(host.local)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "writing\n"
            if not killed:  # it is told to end, and the pull's thread does not keep it
                process.stdin.close()
                process.wait(TIMEOUT_S)
        finally:
            process.kill()
    worker = make_worker(host.base)
    assert call(worker, "vime_sync_report", nonce=2, local_checkpoint_dir=str(host.local))["version"] is None
    assert call(worker, "pull_weights", **arguments(host, 2))["success"]
    host.expect_local(2)
