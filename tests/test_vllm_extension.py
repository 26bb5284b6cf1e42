"""The worker extension's `pull_weights`: one rank of a host does the work, the others wait and find it done."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.extension_story import (
    Fleet,
    arguments,
    call,
    expect_loaded,
    gated,
    make_worker,
    pull_threads,
    spoil,
    states,
)
from tests.host import Host, expect_error
from tests.kill_peer import peer_lock
from tests.kill_points import no_disk_waits


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


# ---- waited for


def test_all_ranks_pull_at_once_and_one_does_the_work(host: Host) -> None:
    fleet = Fleet.on([host], ranks_per_host=4)
    answers = fleet.call("pull_weights", source_dir=str(host.shared), target_version=1)

    assert states(answers) == [(True, True, 1)] * 4
    assert sorted(answer["result"] for answer in answers) == ["already_current"] * 3 + ["updated"]
    assert len({answer["lineage"] for answer in answers}) == 1
    host.expect_local(1)
    for worker in fleet.workers:
        expect_loaded(worker, host.models[0])  # a pull alone loads nothing


@pytest.mark.parametrize(("target", "version"), [(2, 2), ("2", 2), ("000001", 1), ("latest", 2), (0, 0)])
def test_a_target_is_a_number_a_text_or_the_latest(target: Any, version: int, host: Host) -> None:
    worker = make_worker(host.base)
    answer = call(worker, "pull_weights", str(host.local), str(host.shared), target)
    assert (answer["success"], answer["weight_version"]) == (True, str(version)), answer
    host.expect_local(version)


def test_pulled_again_it_is_done_already_and_a_lower_target_rolls_back(host: Host) -> None:
    worker = make_worker(host.base)
    results = [call(worker, "pull_weights", **arguments(host, version))["result"] for version in (2, 2, 1)]
    assert results == ["updated", "already_current", "rolled_back"]
    host.expect_local(1)


def test_with_reload_it_loads_what_it_pulled(host: Host) -> None:
    worker = make_worker(host.base)
    answer = call(worker, "pull_weights", **arguments(host, 2, reload=True))
    assert (answer["success"], answer["version"], answer["touched"]) == (True, 2, True)
    expect_loaded(worker, host.models[2])


def test_the_engines_own_model_stays_the_base_after_a_reload(host: Host) -> None:
    worker = make_worker(host.base)
    assert call(worker, "pull_weights", **arguments(host, 1, reload=True))["success"]
    assert worker.model_config.model == str(host.local)

    shutil.rmtree(host.local)
    assert call(worker, "pull_weights", **arguments(host, 2))["success"]
    host.expect_local(2)


def test_an_engine_that_was_started_from_local_goes_by_what_local_remembers(host: Host) -> None:
    host.pulled(version=1)
    worker = make_worker(host.local)
    for version in (2, 0):
        assert call(worker, "pull_weights", **arguments(host, version))["success"]
        host.expect_local(version)


@pytest.mark.parametrize("revision", [None, "main", "f00d"])
def test_an_engine_that_was_started_by_a_hub_name_has_its_snapshot_as_base(
    revision: str | None, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tmp_path / "hub" / "models--some--model"
    (entry / "snapshots").mkdir(parents=True)
    (entry / "snapshots" / "f00d").symlink_to(host.base)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("f00d")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    worker = make_worker(host.base)
    worker.model_config.model, worker.model_config.revision = "some/model", revision

    assert call(worker, "pull_weights", **arguments(host, 1))["success"]
    host.expect_local(1)


def test_s18_a_bad_delta_is_told_and_local_is_whole_at_its_old_version(host: Host) -> None:
    fleet = Fleet.on([host])
    fleet.call("pull_weights", source_dir=str(host.shared), target_version=1)
    spoil(host, 2)
    answers = fleet.call("pull_weights", source_dir=str(host.shared), target_version=2)
    assert states(answers) == [(False, True, 1)] * 2
    assert {answer["error"] for answer in answers} == {"checksum_mismatch"}
    host.expect_local(1)


def test_h12_a_lock_that_is_held_too_long_is_told_with_its_holder(host: Host) -> None:
    worker = make_worker(host.base)
    call(worker, "pull_weights", **arguments(host, 1))
    with peer_lock(host.local):
        answer = call(worker, "pull_weights", **arguments(host, 2, wait_s=0.2))
    assert (answer["success"], answer["error"], answer["retryable"], answer["version"]) == (False, "lock_held", True, 1)
    assert "process" in answer["message"]
    assert call(worker, "pull_weights", **arguments(host, 2))["success"]
    host.expect_local(2)


def test_a_version_that_never_comes_is_told(host: Host) -> None:
    answer = call(make_worker(host.base), "pull_weights", **arguments(host, 9, version_wait_s=0))
    assert (answer["success"], answer["error"], answer["version"]) == (False, "version_missing", None)


def test_h21_a_worker_that_is_told_to_end_keeps_the_lock_while_anything_writes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine ends its worker by an exception in the thread that was called."""
    host.pulled(version=1)
    worker = make_worker(host.base)
    called, join = threading.current_thread(), threading.Thread.join
    with gated(host.local) as gate:

        def told_to_end(thread: threading.Thread, timeout: float | None = None) -> None:
            if threading.current_thread() is not called:
                join(thread, timeout)
                return
            gate.wait_until_reached()
            raise SystemExit

        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(threading.Thread, "join", told_to_end)
            call(worker, "pull_weights", **arguments(host, 2))
        (writer,) = pull_threads()
        assert writer.daemon
        expect_error(host.pull(), 20, "lock_held")
    host.expect_local(2)
