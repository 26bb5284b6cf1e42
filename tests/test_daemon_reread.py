"""HUP and USR1 to the real `watch` process: what it reads again, and what it says of its progress."""

import signal
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import eventually
from tests.fake_vllm import FakeVllm
from tests.host import Host
from tests.watch_story import WatchProcess, any_watch, large_host, wait_for_path, watching


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


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
    with (
        FakeVllm(host.base) as fake,
        fake.stopped_load(after_tensors=2) as gate,
        watching(host, engines=[f"vllm={fake.url}"]) as watch,
    ):
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
