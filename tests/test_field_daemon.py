"""Rows of the field guide, with the real `watch` process: the share, versions, engines, others on the host."""

import json
import signal
import shutil
import threading
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import SAFETY_S, WatchProcess, eventually, running, settings_for, version_of, watching
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.host import Host
from tests.test_daemon_loop import spoil
from vime_sync import fsio
from vime_sync.daemon import engine_care
from vime_sync.local.lock import hold
from vime_sync.local.paths import local_paths


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


def reloads(fake: FakeVllm) -> int:
    return len(fake.told("/collective_rpc"))


def wait_ready(watch: WatchProcess, version: int) -> None:
    def ready() -> bool:
        if watch.get("/healthz")[0] != 200:
            return False
        document = json.loads(watch.get("/status")[1])
        return bool(document["local_version"] == version)

    eventually(ready, f"ready at version {version}; said:\n" + "\n".join(watch.lines[-15:]))


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
    """Elsewhere first, then renamed into the share one after the other, the lowest last: all are seen or none of use."""
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
            assert watch.told("rolled back from version 3")
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
    with FakeVllm(host.base) as fake:
        with running(host, engines=[f"vllm={fake.url}"], engine_interval_s=3600) as daemon:
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


# ---- engines


def test_e01_an_engine_that_is_down_is_loaded_when_it_comes(host: Host) -> None:
    host.publish()
    fake = FakeVllm(host.base)
    with fake:
        fake.stop()
        with watching(host, engines=[f"vllm={fake.url}"]) as watch:
            watch.wait_for_version(1)
            eventually(lambda: b"unreachable" in watch.get("/healthz")[1], "told as unreachable")
            assert watch.get("/healthz")[0] == 503
            fake.start()
            wait_ready(watch, 1)
            assert fake.holds(host.models[1]) and reloads(fake) == 1
            assert watch.end() == 0


def test_e02_an_engine_that_restarted_is_loaded_again(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake, watching(host, engines=[f"vllm={fake.url}"]) as watch:
        wait_ready(watch, 1)
        for count in range(2, 4):
            fake.restart()
            eventually(lambda wanted=count: reloads(fake) == wanted, "a reload")  # type: ignore[misc]
            wait_ready(watch, 1)
            assert fake.holds(host.models[1])
        assert watch.end() == 0


def test_e07_killed_between_pause_and_resume_is_finished_at_the_next_start(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake:
        engines = [f"vllm={fake.url}"]
        with fake.stopped_load(after_tensors=2) as gate, watching(host, engines=engines) as watch:
            gate.wait()
            assert watch.end(signal.SIGKILL) == -signal.SIGKILL
        assert fake.generation.paused()
        with watching(host, engines=engines) as watch:
            wait_ready(watch, 1)
            assert not fake.generation.paused() and fake.holds(host.models[1])
            assert watch.end() == 0


def test_e07_while_the_share_is_away_too(host: Host) -> None:
    """The bytes are here: the engine need not wait for a share."""
    host.publish()
    with FakeVllm(host.base) as fake:
        engines = [f"vllm={fake.url}"]
        with fake.stopped_load(after_tensors=2) as gate, watching(host, engines=engines) as watch:
            gate.wait()
            watch.end(signal.SIGKILL)
        host.shared.rename(host.root / "away")
        with watching(host, engines=engines) as watch:
            watch.wait_for_line("share_unreachable")
            eventually(lambda: not fake.generation.paused() and fake.holds(host.models[1]), "the engine served")
            fake.restart()
            eventually(lambda: fake.weight_version == "1" and fake.holds(host.models[1]), "served again")
            assert watch.end() == 0


def test_e08_one_engine_that_is_not_ready_does_not_hide_another_that_restarts(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the one is left alone."""
    monkeypatch.setattr(engine_care, "grown_s", lambda failures, cap_s: 1e9)
    host.publish()
    with FakeVllm(host.base, dev_mode=False) as sealed, FakeVllm(host.base) as fake:
        with running(host, engines=[f"vllm={sealed.url}", f"vllm={fake.url}"]) as daemon:
            daemon.wait_for_version(1)
            daemon.wait_for(lambda: daemon.messages("VLLM_SERVER_DEV_MODE") or daemon.messages("development"), "why")
            eventually(lambda: fake.holds(host.models[1]), "the good one served")
            daemon.wait_for_looks(5)
            fake.restart()
            eventually(lambda: fake.weight_version == "1" and fake.holds(host.models[1]), "served again", timeout_s=20)
            daemon.wait_for_looks(2)


def test_e08_one_engine_that_hangs_does_not_hold_up_the_other(host: Host) -> None:
    with FakeVllm(host.base) as hanging, FakeVllm(host.base) as fake:
        hang = threading.Event()
        fault = hanging.faults["/health"] = Fault(hang=hang)
        try:
            with running(host, engines=[f"vllm={hanging.url}", f"vllm={fake.url}"]) as daemon:
                assert fault.reached.wait(SAFETY_S)
                eventually(lambda: fake.holds(host.models[0]), "version 0")
                for version in range(1, 4):
                    host.publish()
                    eventually(lambda wanted=version: fake.weight_version == str(wanted), "served")  # type: ignore[misc]
                assert not hang.is_set()
                daemon.ask_to_stop()
        finally:
            hang.set()


def test_e08_a_failed_engine_is_reported_and_the_other_is_ready(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as broken, FakeVllm(host.base) as fake:
        broken.faults["/collective_rpc"] = Fault(500, {"error": {"message": "shapes differ"}})
        with watching(host, engines=[f"vllm={broken.url}", f"vllm={fake.url}"]) as watch:
            watch.wait_for_version(1)
            eventually(lambda: watch.get(f"/healthz/127.0.0.1:{fake.port}")[0] == 200, "the good one ready")
            status, body = watch.get(f"/healthz/127.0.0.1:{broken.port}")
            assert status == 503 and b"shapes differ" in body
            assert watch.get("/healthz")[0] == 503
            watch.wait_for_polls(10)
            assert reloads(broken) == 2, "once more, and then not again"
            assert broken.generation.paused()
            assert watch.metrics()[f"vime_sync_engine_state{{engine=127.0.0.1:{broken.port},state=failed}}"] == 1
            assert watch.end() == 0


def test_e12_the_right_number_of_an_old_stream_is_not_believed(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake, watching(host, engines=[f"vllm={fake.url}"]) as watch:
        wait_ready(watch, 1)
        fresh = toolkit.step(host.models[0], 77)
        shutil.rmtree(toolkit.version_path(host.shared, 1))
        toolkit.publish_delta(host.shared, 1, host.models[0], fresh)
        eventually(lambda: fake.holds(fresh), "the new stream's version 1")
        assert fake.weight_version == "1"
        assert watch.end() == 0


def test_new_settings_with_the_same_engines_reload_nothing(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake:
        engines = [f"vllm={fake.url}"]
        with running(host, engines=engines) as daemon:
            daemon.wait_for(lambda: daemon.teller.board.snapshot.is_ready, "ready")
            passes = len(daemon.passes)
            daemon.use(settings_for(host, engines=engines, poll_interval_s=0.03))
            daemon.wait_for(lambda: len(daemon.passes) > passes, "a pass with the new settings")
            daemon.wait_for(lambda: daemon.teller.board.snapshot.is_ready, "ready")
            daemon.wait_for_looks(5)
            assert reloads(fake) == 1
