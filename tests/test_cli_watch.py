"""`vime-sync watch` from outside: its options, its exit codes, its log, its HTTP side, its record, its steadiness."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import SAFETY_S, eventually, spoil, version_of
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.host import Host, flip_byte
from tests.watch_story import any_watch, watching

KEY = "top-secret-key"
MARKS = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning|error): \S")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


# ---- options and exit codes


@pytest.mark.parametrize(
    "options",
    [
        ["--poll-interval", "0"],
        ["--poll-interval", "nan"],
        ["--poll-interval", "inf"],
        ["--poll-interval", "1e300"],
        ["--engine-interval", "nan"],
        ["--engine-timeout", "inf", "--engine", "vllm=http://127.0.0.1:1"],
        ["--version", "newest"],
        ["--version", "-1"],
        ["--on-new-stream", "maybe"],
        ["--pre-read-hook", "nodots"],
        ["--pre-read-hook", "no_such_module.f"],
        ["--on-engine-failure", "'"],
        ["--on-engine-failure", ""],
        ["--engine", "vllm=nowhere"],
        ["--engine", "vllm=http://127.0.0.1:1", "--engine", "vllm=http://127.0.0.1:1"],
        ["--http", "nowhere"],
        ["--http", "256.0.0.1:99999"],
        ["--ack-dir", "acks", "--host-name", "a,b"],
        ["--log-format", "xml"],
        ["--threads", "-1"],
        ["--nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_at_once(host: Host, options: list[str]) -> None:
    with any_watch(
        host, "watch", "--local", host.local, "--shared", host.shared, "--base", host.base, *options
    ) as watch:
        try:
            assert watch.process.wait(SAFETY_S) == 2
        except subprocess.TimeoutExpired:
            pytest.fail("it runs:\n" + "\n".join(watch.lines))
        watch.code()
        assert not watch.told("Traceback")
        assert watch.told("error"), watch.lines
    assert not host.local.exists()


def test_a_port_in_use_is_wrong_usage(host: Host) -> None:
    with FakeWebhook() as taken, watching(host, "--http", f"127.0.0.1:{taken.port}") as watch:
        assert watch.code() == 2
        assert watch.told("cannot listen")


def test_every_option_has_its_twin_in_the_environment(host: Host) -> None:
    host.publish()
    host.publish()
    with FakeWebhook() as hook:
        environment = {
            "VIME_SYNC_LOCAL": str(host.local),
            "VIME_SYNC_SHARED": str(host.shared),
            "VIME_SYNC_BASE": str(host.base),
            "VIME_SYNC_VERSION": "1",
            "VIME_SYNC_POLL_INTERVAL": "0.05",
            "VIME_SYNC_ENGINE": f"webhook={hook.url}/a webhook={hook.url}/b",
            "VIME_SYNC_HTTP": "127.0.0.1:0",
            "VIME_SYNC_ACK_DIR": str(host.root / "acks"),
            "VIME_SYNC_HOST_NAME": "rollout-7",
            "VIME_SYNC_LOG_FORMAT": "json",
        }
        with any_watch(host, "watch", environment=environment) as watch:
            eventually(lambda: len(hook.documents) == 2, "both webhooks")
            assert {(item["version"], item["path"]) for item in hook.documents} == {(1, str(host.local))}
            eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
            assert [path.name.partition("-")[0] for path in (host.root / "acks").iterdir()] == ["rollout"]
            assert watch.end() == 0
            assert all(json.loads(line) for line in watch.lines)


def test_share_and_base_are_remembered(host: Host) -> None:
    host.publish()
    host.pulled()
    with any_watch(host, "watch", "--local", host.local, "--poll-interval", "0.05") as watch:
        host.publish()
        watch.wait_for_version(2)
        assert watch.end() == 0


def test_without_any_share_it_is_wrong_usage(host: Host) -> None:
    with any_watch(host, "watch", "--local", host.local, "--base", host.base) as watch:
        assert watch.code() == 2
        assert watch.told("--shared")


def test_a_directory_of_others_is_23_and_stays_as_it_is(host: Host) -> None:
    host.local.mkdir()
    (host.local / "mine.safetensors").write_bytes(b"mine")
    before = toolkit.snapshot(host.local)
    with watching(host) as watch:
        assert watch.code() == 23
    assert toolkit.snapshot(host.local) == before
    with watching(host, "--adopt") as watch:
        watch.wait_for_version(0)
        assert watch.end() == 0


def test_damage_without_a_way_to_heal_is_22(host: Host) -> None:
    host.publish()
    host.pulled()
    flip_byte(host.local, "lm_head.weight")
    shutil.rmtree(host.base)
    with watching(host) as watch:
        code = watch.code()
        assert code == 22, watch.lines
        assert toolkit.vime("status", "--local", host.local).document["last_error"]["code"] == 22


def test_json_errors_are_the_last_line(host: Host) -> None:
    host.local.mkdir()
    (host.local / "mine").write_bytes(b"mine")
    with watching(host, "--log-format", "json") as watch:
        assert watch.code() == 23
        document = json.loads(watch.lines[-1])
        assert (document["schema"], document["code"]) == ("vime-sync/error/1", 23)


# ---- for weeks


def test_memory_threads_and_descriptors_are_flat_over_many_versions(host: Host) -> None:
    """Versions that change nothing, one after the other, with an engine and a record."""
    with FakeVllm(host.base) as fake:
        options = ("--ack-dir", host.root / "acks")
        with watching(host, *options, engines=[f"vllm={fake.url}"]) as watch:

            def figures() -> tuple[int, int, int]:
                descriptors = len(list(Path(f"/proc/{watch.process.pid}/fd").iterdir()))
                found = dict(line.split(":", 1) for line in watch.proc("status").splitlines() if ":" in line)
                return int(found["VmRSS"].split()[0]), int(found["Threads"]), descriptors

            def versions(first: int, last: int) -> None:
                for version in range(first, last + 1):
                    toolkit.publish_delta(host.shared, version, host.models[0], host.models[0])
                    old = toolkit.version_path(host.shared, version - 20)
                    if old.exists():
                        shutil.rmtree(old)
                told = "\n".join(watch.lines[-5:])
                eventually(lambda: fake.weight_version == str(last), f"version {last}; said:\n{told}")
                eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
                watch.wait_for_version(last, durable=True)

            for begin in range(1, 51, 10):
                versions(begin, begin + 9)
            before = figures()
            for begin in range(51, 251, 10):
                versions(begin, begin + 9)
            after = figures()
            assert after[0] - before[0] < 12 << 10, f"{before[0]} kB, then {after[0]} kB"
            assert after[1] <= before[1] + 2 and after[2] <= before[2] + 3, (before, after)
            assert version_of(host) == 250
            assert watch.end() == 0


def test_it_leaves_nothing_on_the_share(host: Host) -> None:
    host.publish()
    before = {path: path.stat().st_mtime_ns for path in (host.shared, *host.shared.rglob("*"))}
    with watching(host) as watch:
        watch.wait_for_version(1, durable=True)
        watch.wait_for_polls(5)
        assert watch.end() == 0
    assert {path: path.stat().st_mtime_ns for path in (host.shared, *host.shared.rglob("*"))} == before


def test_a_publisher_that_writes_many_files_does_not_keep_the_engines_busy(host: Host) -> None:
    """Each file of a version that is being written is a hint; questions to every engine for each are too much."""
    with FakeVllm(host.base) as fake, watching(host, poll_interval_s=1, engines=[f"vllm={fake.url}"]) as watch:
        eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
        before = len(fake.told("/health"))
        directory = toolkit.version_path(host.shared, 1)
        directory.mkdir()
        for number in range(300):
            (directory / f"model-{number:05d}-of-00300.safetensors").write_bytes(b"")
        shutil.rmtree(directory)
        host.publish()
        watch.wait_for_version(1)
        eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
        assert len(fake.told("/health")) - before < 60
        assert watch.end() == 0


def test_s18_bad_versions_do_not_pile_up(host: Host) -> None:
    host.publish()
    with watching(host) as watch:
        watch.wait_for_version(1)
        for _ in range(3):
            spoil(host.publish())
            watch.wait_for_line("checksum_mismatch")
            newest = max(host.models)
            toolkit.publish_delta(host.shared, newest, host.models[newest - 1], host.models[newest])
            watch.wait_for_version(newest)
        assert watch.end() == 0
    host.expect_local(4)
