"""TERM and INT to the real `watch` process: where it stops, and what it leaves behind."""

import signal
import socket
import threading
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import SAFETY_S, eventually, version_of
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.host import Host
from tests.watch_story import large_host, wait_for_path, watching
from vime_sync.local.lock import hold
from vime_sync.local.paths import local_paths

STOPPING = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


def expect_healed(host: Host, version: int) -> None:
    """What the stop left, the next start finishes."""
    with watching(host) as watch:
        watch.wait_for_version(version, durable=True)
        assert watch.end() == 0
    host.expect_local(version)


@STOPPING
def test_at_rest_it_ends_with_0(host: Host, number: int) -> None:
    host.publish()
    with watching(host) as watch:
        watch.wait_for_version(1, durable=True)
        assert watch.end(number) == 0
        assert len(watch.told("stopped by", signal.Signals(number).name)) == 1
        assert not watch.told("Traceback")
    host.expect_local(1)


def test_while_it_waits_for_a_share_that_is_away(host: Host) -> None:
    host.shared.rename(host.root / "away")
    with watching(host, poll_interval_s=3600) as watch:
        watch.wait_for_line("share_unreachable")
        assert watch.end() == 0


@STOPPING
def test_during_a_seed_it_stops_at_a_safe_point(tmp_path: Path, number: int) -> None:
    host = large_host(tmp_path)
    with watching(host, "--threads", "1") as watch:
        wait_for_path(host.local / toolkit.STATE_DIRECTORY / "aside")
        assert watch.end(number) == 0
    assert version_of(host) in (None, 0)
    expect_healed(host, 0)


def test_during_an_apply_it_stops_at_a_safe_point(tmp_path: Path) -> None:
    host = large_host(tmp_path)
    with watching(host, "--threads", "1") as watch:
        watch.wait_for_version(0, durable=True)
        host.publish(density=0.3)
        wait_for_path(host.local / toolkit.STATE_DIRECTORY / "intent.json")
        assert watch.end() == 0
    expect_healed(host, 1)


def test_while_another_holds_the_lock(host: Host) -> None:
    host.pulled()
    with hold(local_paths(host.local), wait_s=SAFETY_S, check_stop=lambda: None), watching(host) as watch:
        watch.wait_for_line("lock_held")
        assert watch.end() == 0


def test_during_a_reload_it_waits_and_the_engine_is_not_left_paused(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake, fake.stopped_load(after_tensors=2) as gate:
        with watching(host, engines=[f"vllm={fake.url}"]) as watch:
            gate.wait()
            watch.send(signal.SIGTERM)
            # It has had the signal, and does not end: its HTTP side still answers.
            assert watch.get("/healthz")[0] == 503
            assert watch.process.poll() is None
            gate.go_on.set()
            assert watch.code() == 0
        assert not fake.generation.paused()
        assert fake.holds(host.models[1]) and fake.weight_version == "1"


def test_e07_twice_during_a_reload_leaves_the_record_that_the_next_start_finishes_from(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake:
        with fake.stopped_load(after_tensors=2) as gate, watching(host, engines=[f"vllm={fake.url}"]) as watch:
            gate.wait()

            def ended() -> bool:
                """One that comes before the last one was heard is the same one."""
                watch.send(signal.SIGTERM)
                return watch.process.poll() is not None

            eventually(ended, "its end at once")
            assert watch.code() == 128 + signal.SIGTERM
        assert fake.generation.paused()
        with watching(host, engines=[f"vllm={fake.url}"]) as watch:
            eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
            assert not fake.generation.paused()
            assert fake.holds(host.models[1])
            assert watch.end() == 0


def test_with_a_hook_that_hangs(host: Host, tmp_path: Path) -> None:
    began = tmp_path / "began"
    (tmp_path / "hanging_hook.py").write_text(
        f"import threading\n\ndef refresh(share, version):\n    open({str(began)!r}, 'w').close()\n"
        "    threading.Event().wait()\n"
    )
    environment = {"PYTHONPATH": f"{Path(__file__).parents[1]}:{tmp_path}"}
    with watching(host, "--pre-read-hook", "hanging_hook.refresh", environment=environment) as watch:
        wait_for_path(began)
        assert watch.end() == 0


def test_with_an_engine_that_does_not_answer(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake:
        hang = threading.Event()
        fault = fake.faults["/health"] = Fault(hang=hang)
        try:
            with watching(host, engines=[f"vllm={fake.url}"]) as watch:
                assert fault.reached.wait(SAFETY_S)
                assert watch.end() == 0
        finally:
            hang.set()


def test_with_a_client_that_hangs_on_its_http_side(host: Host) -> None:
    with watching(host) as watch:
        watch.wait_for_version(0)
        with socket.create_connection(("127.0.0.1", watch.port)) as connection:
            connection.sendall(b"GET /metrics HT")
            assert watch.end() == 0
