"""`--on-engine-failure`: an operator's command after a load that failed for good, such as a service restart."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.daemon_story import eventually, running, settings_for, small_host
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.host import Host
from vime_sync.daemon import hooks
from vime_sync.daemon.hooks import FailureCommand, parse_command
from vime_sync.engines.interface import EngineReport, EngineState
from vime_sync.engines.spec import parse_engine
from vime_sync.errors import EngineRefused, UsageError


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


ENGINE = parse_engine("vllm=http://127.0.0.1:1")
FAILURE = EngineReport(
    ENGINE, EngineState.FAILED, None, EngineRefused('it said no; it\'s "so"\nreally'), was_tried=True
)


def recorder(tmp_path: Path, code: int = 0) -> tuple[str, Path]:
    """A command that writes its environment, one line of JSON for each run."""
    script, record = tmp_path / "record.py", tmp_path / "record.jsonl"
    script.write_text(
        "import json, os, sys\n"
        f"with open({str(record)!r}, 'a') as file:\n"
        "    file.write(json.dumps([dict(os.environ), sys.argv[1:]]) + '\\n')\n"
        f"sys.exit({code})\n"
    )
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} 'two words'", record


def runs(record: Path) -> list[tuple[dict[str, str], list[str]]]:
    if not record.exists():
        return []
    return [tuple(json.loads(line)) for line in record.read_text().splitlines()]


def test_it_runs_once_with_its_variables_and_without_the_key(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIME_SYNC_ENGINE_API_KEY", "top-secret")
    command, record = recorder(tmp_path)
    host.publish()
    with FakeVllm(host.base) as fake, FakeVllm(host.base) as other:
        fake.faults["/collective_rpc"] = Fault(500, {"error": {"message": "no room on the card"}})
        with running(
            host, engines=[f"vllm={fake.url}", f"vllm={other.url}"], on_engine_failure=parse_command(command)
        ) as daemon:
            daemon.wait_for(lambda: daemon.messages("--on-engine-failure for", "ended with 0"), "its end")
            daemon.wait_for_looks(20)
            assert len(runs(record)) == 1
            environment, arguments = runs(record)[0]
            assert arguments == ["two words"]
            assert environment["VIME_SYNC_FAILED_ENGINE"] == f"vllm={fake.url}"
            assert environment["VIME_SYNC_FAILED_URL"] == fake.url
            assert "no room on the card" in environment["VIME_SYNC_FAILED_ERROR"]
            assert "top-secret" not in json.dumps(runs(record))
            assert other.holds(host.models[1])
            # The next version fails there too: that is another failure.
            host.publish()
            daemon.wait_for(lambda: len(runs(record)) == 2, "a second run")


def test_it_brings_a_failed_engine_back(host: Host, tmp_path: Path) -> None:
    """As it is meant: the command restarts the engine, and the fresh one is brought to the version."""
    command, record = recorder(tmp_path)
    host.publish()
    with FakeVllm(host.base) as fake:
        fault = fake.faults["/collective_rpc"] = Fault(500, {"error": {"message": "broken"}})
        with running(host, engines=[f"vllm={fake.url}"], on_engine_failure=parse_command(command)) as daemon:
            daemon.wait_for(lambda: daemon.messages("ended with 0"), "the command's end")
            fault.times = 0
            fake.restart()
            daemon.wait_for(lambda: daemon.teller.board.snapshot.is_ready, "ready")
            assert fake.holds(host.models[1]) and not fake.generation.paused()
        assert len(runs(record)) == 1


def test_one_that_runs_for_long_does_not_block_the_loop_and_ends_with_it(host: Host, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = tmp_path / "long.py"
    script.write_text(
        f"import os, time\nopen({str(pid_file)!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid_file)!r} + '.new', {str(pid_file)!r})\ntime.sleep(3600)\n"
    )
    host.publish()
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(500, {"error": {"message": "broken"}}, times=2)
        command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
        with running(host, engines=[f"vllm={fake.url}"], on_engine_failure=parse_command(command)) as daemon:
            pid = int(eventually(lambda: pid_file.exists() and pid_file.read_text(), "the command"))
            host.publish()
            daemon.wait_for_version(2)
            daemon.wait_for_looks(5)
            assert Path(f"/proc/{pid}").exists()
    eventually(lambda: not _is_alive(pid), "the command's end with the daemon's")


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_new_settings_do_not_end_a_command_that_restarts_an_engine(host: Host, tmp_path: Path) -> None:
    """A service restart cut in the middle is worse than none."""
    begun, finish, done = (tmp_path / name for name in ("begun", "finish", "done"))
    os.mkfifo(finish)
    script = tmp_path / "restart.py"
    script.write_text(
        f"open({str(begun)!r}, 'w').close()\nopen({str(finish)!r}).read()\nopen({str(done)!r}, 'w').close()\n"
    )
    host.publish()
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(500, {"error": {"message": "broken"}})
        command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
        engines = [f"vllm={fake.url}"]
        with running(host, engines=engines, on_engine_failure=parse_command(command)) as daemon:
            eventually(begun.exists, "the command")
            seen = len(daemon.passes)
            daemon.use(
                settings_for(host, engines=engines, on_engine_failure=parse_command(command), poll_interval_s=0.03)
            )
            daemon.wait_for(lambda: len(daemon.passes) > seen, "a pass with the new settings")
            try:
                descriptor = os.open(finish, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                pytest.fail("the command was ended by the new settings")
            os.close(descriptor)
            eventually(done.exists, "its regular end", timeout_s=10)


@pytest.mark.parametrize("command", ["'", "", "   ", "''", "program \0 with nul"])
def test_a_command_that_is_none_is_wrong_usage(command: str) -> None:
    with pytest.raises(UsageError):
        parse_command(command)


def started(command: str, environment: dict[str, str] | None = None) -> tuple[FailureCommand, list[tuple[str, str]]]:
    """What runs for a failure, and what is said about it."""
    said: list[tuple[str, str]] = []
    runner = FailureCommand(lambda level, message: said.append((level, message)))
    runner.run(parse_command(command), FAILURE, dict(os.environ) if environment is None else environment)
    return runner, said


@pytest.mark.parametrize("command", ["/no/such/program", "/", "/etc/hostname"])
def test_a_command_that_cannot_be_started_is_told_and_harms_nothing(command: str) -> None:
    runner, said = started(command)
    assert [level for level, _ in said] == ["error"]
    runner.stop()


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    command, record = recorder(tmp_path, code=7)
    _, said = started(command, {})
    assert eventually(lambda: list(said), "its end") == [("error", f"--on-engine-failure for {ENGINE} ended with 7")]
    assert runs(record)[0][0]["VIME_SYNC_FAILED_ERROR"] == 'it said no; it\'s "so"\nreally'


def test_for_one_engine_only_one_runs_at_a_time(tmp_path: Path) -> None:
    finish, record = tmp_path / "finish", tmp_path / "began"
    os.mkfifo(finish)
    script = tmp_path / "script.py"
    script.write_text(f"open({str(record)!r}, 'a').write('x')\nopen({str(finish)!r}).read()\n")
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
    runner, said = started(command)
    eventually(lambda: record.exists() and record.read_text(), "the first")
    for _ in range(5):
        runner.run(parse_command(command), FAILURE, {})
    with finish.open("w"):
        pass
    eventually(lambda: len(said), "its end")
    assert (record.read_text(), len(said)) == ("x", 1)


def test_one_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_COMMAND_TIMEOUT_S", 0.1)
    runner, said = started("sleep 3600")
    assert "was ended after" in eventually(lambda: list(said), "its end")[0][1]
    runner.stop()


def test_a_stop_at_once_after_the_start_ends_it_too() -> None:
    runner, said = started("sleep 3600")
    runner.stop()
    eventually(lambda: list(said), "its end")
    runner.stop()
