"""Rows of the field guide about engines, with the real `watch` process or its loop in a thread."""

import shutil
import signal
import threading
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import SAFETY_S, eventually, running, settings_for
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.host import Host
from tests.watch_story import reloads, wait_ready, watching
from vime_sync.daemon import engine_care
from vime_sync.engines.spec import EngineSettings


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


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
    with (
        FakeVllm(host.base, dev_mode=False) as sealed,
        FakeVllm(host.base) as fake,
        running(host, engines=[f"vllm={sealed.url}", f"vllm={fake.url}"]) as daemon,
    ):
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
            engines = [f"vllm={hanging.url}", f"vllm={fake.url}"]
            with running(host, engines=engines, engine_settings=EngineSettings(look_timeout_s=0.5)) as daemon:
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
