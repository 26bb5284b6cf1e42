"""The command line and engines: documents, exit codes 30 to 32, `reload`, `wait` after a daemon, `--settings`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import toolkit
from tests.ack_hosts import put, record, serving
from tests.cli_documents import ENGINE, ERROR, HOST, PULL, RELOAD, STATUS, WAIT, expect_document, expect_fields
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.host import Host
from tests.toolkit import Result, vime, vime_plain

REFUSING = Fault(500, {"error": {"message": "no such tensor", "code": 500}})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two versions published, nothing pulled yet."""
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8))
    host.publish()
    host.publish()
    return host


@pytest.fixture
def engine(host: Host) -> Iterator[FakeVllm]:
    with FakeVllm(host.base) as engine:
        yield engine


def reload(host: Host, *engines: FakeVllm | FakeWebhook, env: dict[str, str] | None = None) -> Result:
    named = [word for engine in engines for word in ("--engine", name(engine))]
    return vime("reload", "--local", host.local, *named, env=env)


def name(engine: FakeVllm | FakeWebhook) -> str:
    return f"{'vllm' if isinstance(engine, FakeVllm) else 'webhook'}={engine.url}"


# ---- documents


def test_pull_reload_and_status_tell_of_engines_alike(host: Host, engine: FakeVllm) -> None:
    pulled = host.pulled("--engine", name(engine))
    expect_document(pulled, "pull", PULL)
    reloaded = reload(host, engine)
    assert reloaded.code == 0, reloaded.stderr
    expect_document(reloaded.document, "reload-result", RELOAD)
    status = vime("status", "--local", host.local).document
    expect_document(status, "status", STATUS)
    for document in (pulled, reloaded.document, status):
        (entry,) = document["engines"]
        expect_fields(entry, ENGINE)
        assert entry == {"url": engine.url, "kind": "vllm", "state": "at_version", "version": 2, "error": None}


def test_wait_tells_who_holds_it(tmp_path: Path) -> None:
    acks = tmp_path / "acks"
    acks.mkdir()
    put(acks, serving(record("a1", 7)), record("a2", 7))
    waited = vime("wait", "--ack-dir", acks, "--version", "7", "--hosts", "2", "--timeout", "0")
    assert waited.code == 0, waited.stderr
    expect_document(waited.document, "wait", WAIT)
    for entry in waited.document["hosts"]:
        expect_fields(entry, HOST)
    late = vime("wait", "--ack-dir", acks, "--version", "7", "--hosts", "2", "--timeout", "0", "--served")
    expect_document(late.error, "error", ERROR)
    assert (late.code, late.error["id"], late.stdout) == (10, "hosts_behind", "")
    assert "a2" in late.error["message"]


# ---- exit codes


def test_an_engine_that_is_away_is_30_after_the_result(host: Host, engine: FakeVllm) -> None:
    engine.stop()
    result = host.pull("--engine", name(engine))
    expect_document(result.document, "pull", PULL)
    expect_document(result.error, "error", ERROR)
    assert (result.code, result.error["code"], result.error["retryable"]) == (30, 30, True)
    assert (result.document["result"], result.document["version"]) == ("updated", 2)
    host.expect_local(2)
    (entry,) = result.document["engines"]
    assert (entry["state"], entry["version"]) == ("unreachable", None)


def test_an_engine_that_refuses_is_31_and_the_reason_is_its_own(host: Host, engine: FakeVllm) -> None:
    engine.faults["/collective_rpc"] = REFUSING
    result = host.pull("--engine", name(engine))
    assert (result.code, result.error["code"], result.document["version"]) == (31, 31, 2)
    (entry,) = result.document["engines"]
    assert entry["state"] == "failed"
    assert "no such tensor" in entry["error"] and "no such tensor" in result.error["message"]
    host.expect_local(2)


def test_an_engine_that_breaks_off_is_32(host: Host, engine: FakeVllm) -> None:
    engine.faults["/collective_rpc"] = Fault(close=True)
    result = host.pull("--engine", name(engine))
    assert (result.code, result.error["code"], result.document["version"]) == (32, 32, 2)
    host.expect_local(2)


def test_the_worst_of_several_engines_is_the_exit_code(host: Host, engine: FakeVllm) -> None:
    with FakeVllm(host.base) as away, FakeVllm(host.base) as uncertain, FakeWebhook() as webhook:
        away.stop()
        engine.faults["/collective_rpc"] = REFUSING
        host.pulled()
        assert reload(host, away, engine, webhook).code == 31
        uncertain.faults["/collective_rpc"] = Fault(close=True)
        result = reload(host, away, uncertain, engine, webhook)
        assert (result.code, result.error["code"]) == (32, 32)
        expect_document(result.document, "reload-result", RELOAD)
        states = {entry["url"]: entry["state"] for entry in result.document["engines"]}
        assert (states[away.url], states[engine.url], states[webhook.url]) == ("unreachable", "failed", "at_version")


def test_for_people_the_engines_stand_below_the_result(host: Host, engine: FakeVllm) -> None:
    engine.faults["/collective_rpc"] = REFUSING
    places = ("--shared", host.shared, "--local", host.local, "--base", host.base)
    result = vime_plain("pull", *places, "--engine", name(engine))
    assert result.code == 31
    lines = result.stdout.splitlines()
    assert lines[0] == "version 2: updated, seeded from the base"
    assert lines[2].startswith(f"  {name(engine)}: failed, and is not resumed: ")
    error, hint = result.stderr.splitlines()
    assert error.startswith("error [engine_refused]: ") and hint.startswith("  hint: ")

    engine.faults.clear()
    again = vime_plain("reload", "--local", host.local, "--engine", name(engine))
    assert (again.code, again.stderr) == (0, "")
    version, line = again.stdout.splitlines()
    assert version == "version 2"
    assert line.startswith(f"  {name(engine)}: at version 2, loaded in ")


def test_reload_of_nothing_says_so(host: Host, engine: FakeVllm) -> None:
    result = reload(host, engine)
    assert (result.code, result.stdout) == (2, "")
    expect_document(result.error, "error", ERROR)
    assert engine.told("/collective_rpc") == []
    assert not host.local.exists()


# ---- settings


def test_the_engines_can_come_from_the_environment(host: Host, engine: FakeVllm) -> None:
    host.pulled()
    with FakeWebhook() as webhook:
        result = reload(host, env={"VIME_SYNC_ENGINE": f"{name(engine)} {name(webhook)}"})
        assert result.code == 0, result.stderr
        assert [entry["url"] for entry in result.document["engines"]] == [engine.url, webhook.url]
        assert [document["version"] for document in webhook.documents] == [2]


def test_a_settings_file_is_between_command_line_and_environment(host: Host, tmp_path: Path) -> None:
    settings = tmp_path / "host.env"
    settings.write_text(
        f"# this host\nVIME_SYNC_SHARED={host.shared}\nexport VIME_SYNC_LOCAL='{host.local}'\n"
        f"VIME_SYNC_BASE={host.base}\nVIME_SYNC_VERSION=1\nOTHER=x\n"
    )
    pull = ("--settings", settings, "pull", "--json")
    result = vime(*pull, env={"VIME_SYNC_VERSION": "0"})
    assert (result.code, result.document["version"]) == (0, 1), result.stderr
    assert vime(*pull, "--version", "2").document["version"] == 2
    host.expect_local(2)
    twin = vime("status", env={"VIME_SYNC_SETTINGS": str(settings)})
    assert (twin.code, twin.document["local_version"]) == (0, 2)


@pytest.mark.parametrize("line", ["VIME_SYNC_VERSION", "VIME_SYNC_ENGINE=vllm=http://a:1 vllm=http://b:1", "A='x"])
def test_a_bad_line_of_a_settings_file_is_wrong_usage(line: str, host: Host, tmp_path: Path) -> None:
    settings = tmp_path / "host.env"
    settings.write_text(f"VIME_SYNC_LOCAL={host.local}\n{line}\n")
    result = vime("--settings", settings, "pull", "--json")
    assert (result.code, result.error["id"]) == (2, "usage")
    assert "line 2" in result.error["message"]
