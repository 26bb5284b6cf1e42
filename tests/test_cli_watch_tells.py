"""What `vime-sync watch` tells: its HTTP side, `status`, its log, and its record for trainers."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.daemon_story import eventually
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.host import Host
from tests.watch_story import watching

KEY = "top-secret-key"
MARKS = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning|error): \S")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


# ---- what it tells


def test_healthz_status_and_metrics_of_a_running_process(host: Host) -> None:
    host.publish()
    with (
        FakeVllm(host.base) as fake,
        fake.stopped_load(after_tensors=2) as gate,
        watching(host, engines=[f"vllm={fake.url}"]) as watch,
    ):
        gate.wait()
        status, body = watch.get("/healthz")
        assert status == 503 and json.loads(body)["reason"]
        gate.go_on.set()
        eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
        host.publish()
        eventually(lambda: json.loads(watch.get("/status")[1])["local_version"] == 2, "version 2 in /status")
        eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
        document = json.loads(watch.get("/status")[1])
        assert (document["schema"], document["state"], document["behind"]) == ("vime-sync/status/1", "ready", 0)
        assert document["latest_version"] == 2
        (engine,) = document["engines"]
        assert (engine["url"], engine["state"], engine["version"]) == (fake.url, "at_version", 2)
        metrics = watch.metrics()
        assert metrics["vime_sync_local_version"] == metrics["vime_sync_latest_version"] == 2
        assert metrics["vime_sync_ready"] == 1 and metrics["vime_sync_versions_behind"] == 0
        assert metrics[f"vime_sync_engine_reload_seconds_count{{engine=127.0.0.1:{fake.port}}}"] == 2
        assert metrics["vime_sync_passes_total{result=updated}"] == 2
        assert watch.end() == 0


def test_a_bad_version_is_in_the_metrics_and_the_host_stays_healthy(host: Host) -> None:
    host.publish()
    with watching(host) as watch:
        watch.wait_for_version(1)
        toolkit.rewrite_index(host.publish(), lambda index: index["metadata"].update(version="000009"))
        eventually(lambda: watch.metrics().get("vime_sync_unusable_versions{id=malformed}") == 1, "the metric")
        assert watch.get("/healthz")[0] == 200
        eventually(lambda: json.loads(watch.get("/status")[1])["last_error"], "last_error")
        assert json.loads(watch.get("/status")[1])["last_error"]["id"] == "malformed"
        shutil.rmtree(toolkit.version_path(host.shared, 2))
        eventually(lambda: watch.metrics().get("vime_sync_unusable_versions{id=malformed}") == 0, "the metric")
        eventually(lambda: json.loads(watch.get("/status")[1])["last_error"] is None, "no error")
        assert watch.end() == 0


def test_last_error_is_set_and_cleared_in_status(host: Host) -> None:
    host.publish()
    with watching(host) as watch:
        watch.wait_for_version(1)
        away = host.root / "away"
        host.shared.rename(away)

        def last_error() -> object:
            found: object = toolkit.vime("status", "--local", host.local).document["last_error"]
            return found

        error = eventually(last_error, "last_error")
        assert isinstance(error, dict) and (error["code"], error["id"]) == (10, "share_unreachable")
        away.rename(host.shared)
        eventually(lambda: last_error() is None, "last_error cleared")
        assert watch.end() == 0


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_one_line_for_each_event_and_no_secret(host: Host, log_format: str) -> None:
    host.publish()
    environment = {"VIME_SYNC_ENGINE_API_KEY": KEY}
    with FakeVllm(host.base, api_key=KEY) as fake, FakeWebhook() as hook:
        fake.faults["/resume"] = Fault(500, {"error": {"message": "two\nlines \x1b[31mred"}}, times=2)
        engines = [f"vllm={fake.url}", f"webhook={hook.url}/hook?token={KEY}"]
        options = ("--log-format", log_format, "--on-engine-failure", "true", "--ack-dir", host.root / "acks")
        with watching(host, *options, engines=engines, environment=environment) as watch:
            watch.wait_for_line("version 1", "updated")
            watch.wait_for_line("on-engine-failure", "ended with 0")
            away = host.root / "away"
            host.shared.rename(away)
            watch.wait_for_line("share_unreachable")
            away.rename(host.shared)
            watch.wait_for_line("passes go well again")
            watch.wait_for_polls(20)
            told = watch.get("/status")[1] + watch.get("/metrics")[1] + watch.get("/healthz")[1]
            assert watch.end() == 0
    for line in watch.lines:
        if log_format == "json":
            document = json.loads(line)
            assert {"time", "level", "message"} <= document.keys()
        else:
            assert MARKS.match(line), line
        assert "\x1b" not in line
    assert len(watch.told("share_unreachable")) == 1, "the same trouble is told once"
    acks = b"".join(path.read_bytes() for path in (host.root / "acks").iterdir())
    state = b"".join(path.read_bytes() for path in host.local.rglob("*.json"))
    assert KEY.encode() not in told + acks + state + "\n".join(watch.lines).encode()


def test_quiet_tells_errors_only(host: Host) -> None:
    with watching(host, "--quiet") as watch:
        watch.wait_for_version(0, durable=True)
        assert watch.lines == []
        host.shared.rename(host.root / "away")
        watch.wait_for_line("share_unreachable")
        assert all("error" in line for line in watch.lines)
        assert watch.end() == 0


# ---- its record for trainers


def acks_in(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in directory.glob("*.json")] if directory.is_dir() else []


def test_the_record_is_written_updated_and_withdrawn(host: Host) -> None:
    acks = host.root / "acks"
    with FakeVllm(host.base) as fake:
        options = ("--ack-dir", acks, "--host-name", "gpu-1")
        with watching(host, *options, engines=[f"vllm={fake.url}"]):
            for version in range(3):
                if version:
                    host.publish()
                eventually(
                    lambda wanted=version: (
                        [  # type: ignore[misc]
                            (ack["host"], ack["version"], ack["durable"], ack["engines"][0]["version"])
                            for ack in acks_in(acks)
                        ]
                        == [("gpu-1", wanted, True, wanted)]
                    ),
                    f"the record of version {version}",
                )
            waited = toolkit.vime("wait", "--ack-dir", acks, "--version", "2", "--hosts", "gpu-1", "--timeout", "0")
            assert waited.code == 0, waited.stderr
            # A fresh disk under the same name, and no way to seed it: nobody may count on this host.
            host.base.rename(host.root / "no-base")
            host.shared.rename(host.root / "away")
            host.local.rename(host.root / "no-local")
            eventually(lambda: acks_in(acks) == [], "no record")


def test_an_ack_directory_out_of_reach_does_not_end_it(host: Host) -> None:
    host.publish()
    acks = host.root / "mount" / "acks"
    with watching(host, "--ack-dir", acks) as watch:
        watch.wait_for_line("--ack-dir", "is not there")
        host.publish()
        watch.wait_for_version(2)
        assert watch.get("/healthz")[0] == 200
        acks.parent.mkdir()
        host.publish()
        eventually(lambda: [ack["version"] for ack in acks_in(acks)] == [3], "the record")
        assert len(watch.told("is not there")) == 1
        assert watch.end() == 0
