"""Signals to the real `watch` process: where it stops, what it leaves behind, what it reads again."""

import signal
import threading
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import SAFETY_S, WatchProcess, any_watch, eventually, version_of, watching
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.host import Host

STOPPING = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


def large_host(root: Path) -> Host:
    """One whose passes take long enough for a signal to come in the middle."""
    return Host.create(root, model=toolkit.make_model(seed=5, tensors=40, kib=32 << 10), shards=4)


def wait_for_path(path: Path) -> None:
    eventually(path.exists, str(path))


def expect_healed(host: Host, version: int) -> None:
    """What the stop left, the next start finishes."""
    with watching(host) as watch:
        watch.wait_for_version(version, durable=True)
        assert watch.end() == 0
    host.expect_local(version)


# ---- TERM and INT


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
    from vime_sync.local.lock import hold
    from vime_sync.local.paths import local_paths

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
            watch.send(signal.SIGTERM)
            watch.get("/healthz")
            watch.send(signal.SIGTERM)
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
    import socket

    with watching(host) as watch:
        watch.wait_for_version(0)
        with socket.create_connection(("127.0.0.1", watch.port)) as connection:
            connection.sendall(b"GET /metrics HT")
            assert watch.end() == 0


# ---- HUP


def settings_file(host: Host, **values: object) -> Path:
    path = host.root / "settings"
    given = {"LOCAL": host.local, "SHARED": host.shared, "BASE": host.base, "POLL_INTERVAL": 0.05, **values}
    fresh = path.with_name("settings.new")
    fresh.write_text("".join(f"VIME_SYNC_{name}='{value}'\n" for name, value in given.items()))
    fresh.replace(path)
    return path


def hup(watch: WatchProcess, count: int = 1) -> None:
    watch.send(signal.SIGHUP)
    watch.wait_for_line("settings were read again", count=count)


def test_hup_takes_another_engine_interval_and_version(host: Host) -> None:
    for _ in range(2):
        host.publish()
    with FakeVllm(host.base) as first, FakeVllm(host.base) as second:
        path = settings_file(host, ENGINE=f"vllm={first.url}", HTTP="127.0.0.1:0")
        with any_watch(host, "--settings", path, "watch") as watch:
            eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
            settings_file(host, ENGINE=f"vllm={first.url} vllm={second.url}", HTTP="127.0.0.1:0", VERSION=1)
            hup(watch)
            eventually(lambda: first.weight_version == second.weight_version == "1", "both at version 1")
            eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
            assert first.holds(host.models[1]) and second.holds(host.models[1])
            # And away with one: it is not reloaded any more, and nobody asks for it.
            settings_file(host, ENGINE=f"vllm={second.url}", HTTP="127.0.0.1:0")
            hup(watch, count=2)
            eventually(lambda: second.weight_version == "2" and not second.generation.paused(), "version 2")
            assert first.weight_version == "1"
            eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
            assert watch.get(f"/healthz/127.0.0.1:{first.port}")[0] == 404
            assert watch.end() == 0


@pytest.mark.parametrize(
    "broken",
    [
        {"POLL_INTERVAL": "often"},
        {"VERSION": "-1"},
        {"ENGINE": "vllm=nowhere"},
        {"ON_NEW_STREAM": "maybe"},
        {"PRE_READ_HOOK": "no_such_module.f"},
        {"ENGINE_API_KEY_FILE": "/no/such/file"},
        {"LOG_FORMAT": "xml"},
        {"THREADS": "100000"},
        {"ON_ENGINE_FAILURE": "'\"'\"'"},
    ],
    ids=lambda broken: next(iter(broken)),
)
def test_hup_with_broken_settings_keeps_the_old_ones(host: Host, broken: dict[str, str]) -> None:
    path = settings_file(host)
    with any_watch(host, "--settings", path, "watch") as watch:
        watch.wait_for_version(0, durable=True)
        settings_file(host, **broken)
        watch.send(signal.SIGHUP)
        watch.wait_for_line("error", "settings were read again, and are not used")
        host.publish()
        watch.wait_for_version(1)
        settings_file(host)
        hup(watch, count=2)
        assert watch.end() == 0


def test_hup_with_a_file_that_is_gone_keeps_the_old_settings(host: Host) -> None:
    path = settings_file(host)
    with any_watch(host, "--settings", path, "watch") as watch:
        watch.wait_for_version(0, durable=True)
        path.unlink()
        watch.send(signal.SIGHUP)
        watch.wait_for_line("not used")
        host.publish()
        watch.wait_for_version(1)
        assert watch.end() == 0


def test_hup_does_not_move_local_or_its_http_side(host: Host) -> None:
    path = settings_file(host, HTTP="127.0.0.1:0")
    with any_watch(host, "--settings", path, "watch") as watch:
        watch.wait_for_version(0, durable=True)
        port = watch.port
        settings_file(host, HTTP="127.0.0.1:1", LOCAL=host.root / "elsewhere")
        hup(watch)
        assert watch.told("another --local needs a restart") and watch.told("another --http needs a restart")
        host.publish()
        watch.wait_for_version(1)
        assert watch.port == port and watch.get("/healthz")[0] == 200
        assert not (host.root / "elsewhere").exists()
        assert watch.end() == 0


def test_hup_during_a_pass_is_taken_after_it(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake, fake.stopped_load(after_tensors=2) as gate:
        path = settings_file(host, ENGINE=f"vllm={fake.url}")
        with any_watch(host, "--settings", path, "watch") as watch:
            gate.wait()
            settings_file(host, VERSION=0)
            watch.send(signal.SIGHUP)
            gate.go_on.set()
            watch.wait_for_line("settings were read again")
            watch.wait_for_version(0)
            assert not fake.generation.paused()
            assert watch.end() == 0


def test_many_signals_at_once_are_no_trouble(host: Host) -> None:
    host.publish()
    path = settings_file(host, HTTP="127.0.0.1:0")
    with any_watch(host, "--settings", path, "watch") as watch:
        watch.wait_for_version(1, durable=True)
        for _ in range(200):
            watch.send(signal.SIGHUP)
            watch.send(signal.SIGUSR1)
        watch.wait_for_line("settings were read again")
        watch.wait_for_line("at rest")
        host.publish()
        watch.wait_for_version(2)
        assert watch.end() == 0
        assert not watch.told("Traceback")


# ---- USR1


def test_usr1_at_rest(host: Host) -> None:
    with watching(host, poll_interval_s=3600) as watch:
        watch.wait_for_version(0, durable=True)
        watch.send(signal.SIGUSR1)
        watch.wait_for_line("at rest")
        assert watch.end() == 0


def test_usr1_during_a_reload_says_so(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake, fake.stopped_load(after_tensors=2) as gate:
        with watching(host, engines=[f"vllm={fake.url}"]) as watch:
            gate.wait()
            watch.send(signal.SIGUSR1)
            watch.wait_for_line("reload")
            gate.go_on.set()
            assert watch.end() == 0


def test_usr1_during_a_long_seed_tells_how_far_it_is(tmp_path: Path) -> None:
    host = large_host(tmp_path)
    with watching(host, "--threads", "1") as watch:
        wait_for_path(host.local / toolkit.STATE_DIRECTORY / "aside")
        watch.send(signal.SIGUSR1)
        line = watch.wait_for_line("bytes")
        assert " of " in line and "done" in line
        watch.wait_for_version(0)
        assert watch.end() == 0
