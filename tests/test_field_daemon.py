"""Rows of the field guide, with the real `watch` process: the share, versions, engines, others on the host."""

import shutil
import threading
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import SAFETY_S, eventually, running, spoil, version_of
from tests.fake_vllm import FakeVllm
from tests.host import Host
from tests.watch_story import reloads, wait_ready, watching
from vime_sync import fsio
from vime_sync.local.lock import hold
from vime_sync.local.paths import local_paths


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


# ---- the share


def test_s04_a_shard_that_is_cut_is_waited_for(host: Host) -> None:
    host.publish()
    with watching(host) as watch:
        watch.wait_for_version(1)
        shard = next(host.publish().glob("*.safetensors"))
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-1])
        eventually(lambda: watch.metrics().get("vime_sync_unusable_versions{id=not_ready}") == 1, "the metric")
        watch.wait_for_polls(5)
        assert version_of(host) == 1 and watch.get("/healthz")[0] == 200
        shard.write_bytes(whole)
        watch.wait_for_version(2)
        assert watch.end() == 0
    host.expect_local(2)


def test_s15_a_trainer_that_prunes_is_no_trouble(host: Host) -> None:
    for _ in range(4):
        host.publish()
    with watching(host) as watch:
        watch.wait_for_version(4, durable=True)
        for version in range(1, 4):
            shutil.rmtree(toolkit.version_path(host.shared, version))
        host.publish()
        watch.wait_for_version(5)
        assert not watch.told("error")
        assert watch.end() == 0
    host.expect_local(5)


def test_s18_the_engine_keeps_the_old_version_and_gets_the_republished_one(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake, watching(host, engines=[f"vllm={fake.url}"]) as watch:
        wait_ready(watch, 1)
        spoil(host.publish())
        watch.wait_for_line("checksum_mismatch")
        watch.wait_for_polls(5)
        assert fake.holds(host.models[1]) and reloads(fake) == 1
        assert toolkit.vime("status", "--local", host.local).document["last_error"]["code"] == 12
        toolkit.publish_delta(host.shared, 2, host.models[1], host.models[2])
        wait_ready(watch, 2)
        assert fake.holds(host.models[2])
        assert toolkit.vime("status", "--local", host.local).document["last_error"] is None
        assert watch.end() == 0


def test_s20_a_slow_hook_costs_a_tenth_of_the_time_and_no_version(host: Host, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    (tmp_path / "slow_hook.py").write_text(
        f"import os\n\ndef refresh(share, version):\n    open({str(calls)!r}, 'a').write('x')\n    os.listdir(share)\n"
    )
    environment = {"PYTHONPATH": f"{Path(__file__).parents[1]}:{tmp_path}"}
    with watching(host, "--pre-read-hook", "slow_hook.refresh", environment=environment) as watch:
        for version in range(1, 4):
            host.publish()
            watch.wait_for_version(version)
        metrics = watch.metrics()
        assert len(calls.read_text()) <= metrics["vime_sync_polls_total"] + 1
        assert metrics["vime_sync_phase_seconds_count{phase=hook}"] >= 1
        assert watch.end() == 0


# ---- versions


def publish_at_once(host: Host, count: int) -> None:
    """Made elsewhere, then renamed into the share, the lowest last: before that the others are of no use."""
    trainer = Host(host.root / "trainer", host.models)
    newest = max(host.models)
    trainer.shared.mkdir(parents=True, exist_ok=True)
    for _ in range(count):
        trainer.publish()
    for version in range(newest + count, newest, -1):
        toolkit.version_path(trainer.shared, version).rename(toolkit.version_path(host.shared, version))


def test_v06_v07_five_versions_at_once_are_one_reload_and_a_newer_one_comes_at_once(host: Host) -> None:
    with FakeVllm(host.base) as fake, watching(host, engines=[f"vllm={fake.url}"]) as watch:
        wait_ready(watch, 0)
        before = reloads(fake)
        publish_at_once(host, 5)
        wait_ready(watch, 5)
        assert reloads(fake) == before + 1 and fake.holds(host.models[5])
        # The next ones come while version 6 is being loaded; nothing is lost, and nothing is loaded in between.
        with fake.stopped_load(after_tensors=1) as gate:
            host.publish()
            gate.wait()
            publish_at_once(host, 3)
            gate.go_on.set()
        wait_ready(watch, 9)
        assert reloads(fake) == before + 3 and fake.holds(host.models[9])
        assert watch.end() == 0


def test_v01_an_operators_rollback_stays_while_it_is_pinned(host: Host) -> None:
    for _ in range(3):
        host.publish()
    with FakeVllm(host.base) as fake:
        with watching(host, engines=[f"vllm={fake.url}"]) as watch:
            wait_ready(watch, 3)
            assert watch.end() == 0
        with watching(host, "--version", "1", engines=[f"vllm={fake.url}"]) as watch:
            wait_ready(watch, 1)
            assert fake.holds(host.models[1]) and fake.weight_version == "1"
            watch.wait_for_line("rolled back from version 3")
            host.publish()
            watch.wait_for_polls(5)
            assert version_of(host) == 1
            assert watch.end() == 0
        with watching(host, engines=[f"vllm={fake.url}"]) as watch:
            wait_ready(watch, 4)
            assert watch.end() == 0


def test_v02_on_new_stream_fail_ends_with_13_and_the_engine_keeps_what_it_has(host: Host) -> None:
    for _ in range(2):
        host.publish()
    with FakeVllm(host.base) as fake:
        with watching(host, "--on-new-stream", "fail", engines=[f"vllm={fake.url}"]) as watch:
            wait_ready(watch, 2)
            shutil.rmtree(toolkit.version_path(host.shared, 2))
            toolkit.publish_delta(host.shared, 1, host.models[0], toolkit.step(host.models[0], 99))
            assert watch.code() == 13
            assert watch.told("new_stream")
        assert fake.holds(host.models[2]) and not fake.generation.paused()
        assert toolkit.vime("status", "--local", host.local).document["last_error"]["id"] == "new_stream"
    host.expect_local(2)


# ---- the host


def test_h12_two_daemons_on_one_local_load_each_version_once(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        engines = [f"vllm={fake.url}"]
        with watching(host, engines=engines) as first, watching(host, engines=engines) as second:
            wait_ready(first, 0)
            wait_ready(second, 0)
            before = reloads(fake)
            for version in range(1, 6):
                host.publish()
                for watch in (first, second):
                    wait_ready(watch, version)
            assert reloads(fake) == before + 5
            assert fake.holds(host.models[5])
            assert (first.end(), second.end()) == (0, 0)
    host.expect_local(5)


def test_h12_a_pull_beside_a_daemon(host: Host) -> None:
    """It waits its turn, and what it did is taken as it is: the pinned daemon goes back to its own version."""
    for _ in range(3):
        host.publish()
    with watching(host) as watch:
        watch.wait_for_version(3, durable=True)
        result = host.pull("--wait", "60", version=1)
        assert result.code == 0, result.stderr
        watch.wait_for_version(3)
        watch.wait_for_polls(3)
        assert watch.end() == 0
    host.expect_local(3)


def test_h12_what_was_told_of_an_engine_is_not_told_again_when_the_lock_is_held(host: Host) -> None:
    """A pass that did not come to the engines has nothing to say about them."""
    host.publish()
    with FakeVllm(host.base) as fake, running(host, engines=[f"vllm={fake.url}"], engine_interval_s=3600) as daemon:
        daemon.wait_for_version(1)
        daemon.wait_for(lambda: daemon.teller.board.snapshot.document.get("durable"), "the sync")
        told = len(daemon.messages("loaded version 1"))
        with hold(local_paths(host.local), wait_s=SAFETY_S, check_stop=lambda: None):
            host.publish()
            daemon.wait_for_error("lock_held")
            daemon.wait_for_looks(3)
            assert len(daemon.messages("loaded version 1")) == told
        daemon.wait_for_version(2)


def test_h18_no_more_threads_are_at_work_than_were_given(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = threading.Lock()
    writers: set[int] = set()

    def note(operation: str, path: Path) -> None:
        if operation == "write" and path.suffix == ".safetensors":
            with guard:
                writers.add(threading.get_ident())

    monkeypatch.setattr(fsio, "observer", note)
    host.publish()
    with running(host, threads=1) as daemon:
        daemon.wait_for_version(1)
        writers.clear()
        host.publish()
        daemon.wait_for_version(2)
        assert len(writers) == 1
