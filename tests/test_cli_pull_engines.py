"""`pull` and `reload` with engines, as programs and people see them: documents, exit codes, settings, no secrets."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.engine_story import SAFETY_S, meanwhile, posts, reached, small_host, spec_of
from tests.fake_engine import FakeServer, Fault
from tests.fake_http import Answer
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.host import Host, expect_error
from tests.toolkit import Result, vime, vime_plain

KEY = "sk-VERY-SECRET"
BOOM = Fault(status=500, body={"error": {"message": "boom", "type": "x", "param": None, "code": 500}})


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


def spec(fake: FakeServer) -> str:
    return str(spec_of(fake))


def run(command: str, host: Host, *options: str | Path, env: dict[str, str] | None = None) -> Result:
    return vime(command, "--local", host.local, *options, env=env)


# ---- documents and exit codes


def test_the_pull_document_tells_of_each_engine(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake, FakeWebhook() as hook:
        document = host.pulled("--engine", spec(fake), "--engine", f"webhook={hook.url}/told?token={KEY}")
        assert (document["schema"], document["result"], document["version"]) == ("vime-sync/pull/1", "updated", 2)
        common: dict[str, Any] = {"state": "at_version", "version": 2, "error": None}
        assert [{**engine, "kind": None} for engine in document["engines"]] == [
            {"url": fake.url, "kind": None, **common},
            {"url": f"{hook.url}/told", "kind": None, **common},
        ]
        assert document["seconds"]["reload"] > 0
        assert document["seconds"]["total"] >= document["seconds"]["reload"]


def test_the_reload_document(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        result = run("reload", host, "--engine", spec(fake))
        assert result.code == 0 and result.error == {}
        assert result.document["version"] == 1
        assert [(engine["url"], engine["state"]) for engine in result.document["engines"]] == [(fake.url, "at_version")]


@pytest.mark.parametrize("command", ["pull", "reload"])
@pytest.mark.parametrize("worst", [30, 31, 32])
def test_the_worst_trouble_is_the_exit_code_and_the_document_is_there_all_the_same(
    host: Host, worst: int, command: str
) -> None:
    with FakeVllm(host.base) as down, FakeVllm(host.base) as refusing, FakeVllm(host.base, ranks=2) as torn:
        down.stop()
        refusing.faults["/collective_rpc"] = BOOM
        torn.rank_failures[1] = "no memory"
        engines = [torn, refusing, down][32 - worst :]
        for order in (engines, engines[::-1]):
            for fake in (refusing, torn):
                fake.restart()
            result = run(command, host, env={"VIME_SYNC_ENGINE": " ".join(map(spec, order))})
            assert (result.code, result.error["code"]) == (worst, worst)
            assert (
                result.error["id"]
                == {
                    30: "engine_unreachable",
                    31: "engine_refused",
                    32: "engine_out_of_step",
                }[worst]
            )
            states = {engine["url"]: engine["state"] for engine in result.document["engines"]}
            assert states == {
                fake.url: {down: "unreachable", refusing: "failed", torn: "failed"}[fake] for fake in order
            }
            assert [engine["url"] for engine in result.document["engines"]] == [fake.url for fake in order]


def test_lines_for_people(host: Host) -> None:
    with FakeVllm(host.base) as fake, FakeVllm(host.base) as down, FakeVllm(host.base, dev_mode=False) as plain:
        down.stop()
        engines = [option for engine in (fake, down, plain) for option in ("--engine", spec(engine))]
        result = vime_plain("pull", "--local", host.local, *engines)
        assert result.code == 31
        lines = result.stdout.splitlines()
        assert lines[0] == "version 1: already current" and len(lines) == 4
        assert lines[1].startswith(f"  {spec(fake)}: at version 1, loaded in ")
        assert lines[2].startswith(f"  {spec(down)}: unreachable") and "Connection refused" in lines[2]
        # It serves what it served: nobody is to think that it stands still.
        assert "development endpoints" in lines[3] and "not resumed" not in lines[3]
        assert "error [engine_not_ready]" in result.stderr and "VLLM_SERVER_DEV_MODE=1" in result.stderr


def test_a_reason_of_an_engine_cannot_steer_a_terminal(host: Host) -> None:
    reason = "bad\x1b[2J\x07\nsecond line\u202e" + "x" * 10_000
    with FakeWebhook(reply=Answer(500, {"error": reason})) as hook:
        result = vime_plain("reload", "--local", host.local, "--engine", spec(hook))
        assert result.code == 31
        shown = result.stdout + result.stderr
        assert all(line.isprintable() for line in shown.splitlines()) and len(shown) < 3000
        assert not any(line.startswith("second line") for line in shown.splitlines())


def test_engines_are_served_although_the_share_is_in_trouble(host: Host) -> None:
    """It is the share's error that is told: LOCAL is whole at its version, and so are the engines."""
    toolkit.version_path(host.shared, 3).mkdir()
    with FakeVllm(host.base) as fake:
        expect_error(host.pull("--engine", spec(fake), version=3), 10, "not_ready")
        assert fake.holds(host.models[1])
        fake.restart()
        host.shared.rename(host.root / "unmounted")
        assert host.pull("--engine", spec(fake)).code == 10
        assert fake.holds(host.models[1])


def test_a_dry_run_tells_no_engine(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake:
        document = host.pulled("--dry-run", "--engine", spec(fake))
        assert (document["result"], document["engines"]) == ("planned", [])
        assert fake.calls == []


def test_no_engine_is_told_while_another_process_has_the_lock(host: Host) -> None:
    with FakeVllm(host.base) as fake, FakeVllm(host.base) as other:
        fake.faults["/pause"] = fault = Fault(hang=threading.Event())
        with meanwhile(host.pull, "--engine", spec(fake)) as pulling:
            reached(fault.reached)
            for command in ("pull", "reload"):
                expect_error(run(command, host, "--engine", spec(other)), 20, "lock_held")
            assert posts(other) == [] and len(posts(fake)) == 1
            assert fault.hang is not None
            fault.hang.set()
        assert pulling.result().code == 0


def test_reload_of_nothing(tmp_path: Path) -> None:
    host = Host.create(tmp_path)
    with FakeVllm(host.base) as fake:
        for directory in (host.root / "nothing", host.local, host.local / toolkit.STATE_DIRECTORY):
            directory.mkdir()
            result = run("reload", host, "--engine", spec(fake))
            assert result.code in (2, 23) and result.stdout == "", result.stderr
        assert posts(fake) == []


# ---- settings


@pytest.mark.parametrize("value", [None, "", "  "])
def test_reload_without_an_engine_is_wrong_usage(host: Host, value: str | None) -> None:
    expect_error(run("reload", host, env={} if value is None else {"VIME_SYNC_ENGINE": value}), 2, "usage")


@pytest.mark.parametrize(
    "options",
    [
        ("--engine", "vllm=nonsense"),
        ("--engine", "vllm=http://h", "--engine-timeout", "0"),
        ("--engine", "vllm=http://h", "--engine-timeout", "-1"),
        ("--engine", "vllm=http://h", "--engine-timeout", "nan"),
        ("--engine", "vllm=http://h", "--pause-mode", "maybe"),
        ("--engine", "vllm=http://h", "--vllm-extension", "maybe"),
        ("--engine", "vllm=http://h", "--engine-api-key-file", "/no/such/file"),
        ("--engine", "vllm=http://h", "--engine-ca-file", "/no/such/file"),
        ("--engine", "vllm=http://h", "--engine", "vllm=http://h/"),
    ],
)
@pytest.mark.parametrize("command", ["pull", "reload"])
def test_wrong_settings_are_told_before_anything_is_done(host: Host, command: str, options: tuple[str, ...]) -> None:
    host.publish()
    expect_error(run(command, host, *options), 2, "usage")
    host.expect_local(1)


@pytest.mark.parametrize("seconds", ["inf", "1e12", "1e300"])
def test_a_timeout_as_long_as_you_like(host: Host, seconds: str) -> None:
    with FakeVllm(host.base) as fake:
        result = run("reload", host, "--engine", spec(fake), "--engine-timeout", seconds)
        assert result.code in (0, 2), result.stderr
        assert fake.holds(host.models[1]) == (result.code == 0)


def test_the_timeout_bounds_a_step(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = fault = Fault(hang=threading.Event())
        with meanwhile(run, "pull", host, "--engine", spec(fake), "--engine-timeout", "1") as pulling:
            try:
                assert pulling.result(SAFETY_S).code == 32
            finally:
                assert fault.hang is not None
                fault.hang.set()


@pytest.mark.parametrize("content", [KEY, f"{KEY}\n", f"  {KEY}\r\n"])
def test_the_key_comes_from_the_environment_or_a_file(host: Host, tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with FakeVllm(host.base, api_key=KEY) as fake:
        options = ("--engine", spec(fake), "--probe")
        assert run("reload", host, *options, "--engine-api-key-file", file).code == 0
        assert run("reload", host, *options, env={"VIME_SYNC_ENGINE_API_KEY": content}).code == 0
        wrong = {"VIME_SYNC_ENGINE_API_KEY": "another"}
        assert run("reload", host, *options, "--engine-api-key-file", file, env=wrong).code == 0
        assert run("reload", host, *options, env=wrong).code != 0


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff\xfe", b"k\x00y", "schl\u00fcssel".encode()])
def test_a_key_that_is_none_is_wrong_usage_and_not_shown(host: Host, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    error = expect_error(run("reload", host, "--engine", "vllm=http://h", "--engine-api-key-file", file), 2, "usage")
    assert "two" not in error["message"] and "lines" not in error["message"]


def test_the_key_is_in_no_output(host: Host) -> None:
    """The engine repeats it, as some do."""
    env = {"VIME_SYNC_ENGINE_API_KEY": KEY}
    with FakeVllm(host.base, api_key=KEY) as fake:
        fake.faults["/collective_rpc"] = Fault(status=500, body={"error": f"Bearer {KEY} is wrong"})
        for options in (("--json",), ("--verbose",), ("--log-format", "json", "--verbose")):
            arguments = ("--local", host.local, "--engine", spec(fake), *options)
            for command in ("reload", "pull"):
                result = vime_plain(command, *arguments, env=env)
                assert result.code == 31 and "is wrong" in result.stderr
                assert KEY not in result.stdout + result.stderr
        for command in ("status", "pull", "reload"):
            assert KEY not in vime_plain(command, "--help", env=env).stdout
