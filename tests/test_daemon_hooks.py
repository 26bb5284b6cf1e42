"""What operators hang into the loop: `--pre-read-hook` before a look, `--on-engine-failure` after a failed load."""

import json
import os
import shlex
import sys
import threading
from pathlib import Path

import pytest

from tests.daemon_story import SAFETY_S, eventually, running, settings_for, small_host
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.host import Host
from vime_sync.daemon import hooks
from vime_sync.daemon.hooks import FailureCommand, HookRun, PreReadHook, load_function, parse_command
from vime_sync.engines.interface import EngineReport, EngineState
from vime_sync.engines.spec import parse_engine
from vime_sync.errors import EngineRefused, UsageError


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


# ---- the pre-read hook


class Hook:
    """Counts its calls; `body` is what one does."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []
        self.called = threading.Event()
        self.go_on = threading.Event()
        self.hangs = False
        self.raises: BaseException | None = None
        self.running = 0
        self.most_running = 0

    def __call__(self, share: str, version: int | None) -> None:
        self.calls.append((share, version))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.called.set()
        try:
            if self.hangs:
                self.go_on.wait(SAFETY_S)
            if self.raises is not None:
                raise self.raises
        finally:
            self.running -= 1


def test_it_is_told_the_share_and_the_target(host: Host) -> None:
    hook = Hook()
    host.publish()
    with running(host, pre_read=hook) as daemon:
        daemon.wait_for_version(1)
        assert hook.calls[0] == (str(host.shared), None)
    pinned = Hook()
    with running(host, pre_read=pinned, version=1) as daemon:
        daemon.wait_for_version(1)
        assert pinned.calls[0] == (str(host.shared), 1)


def test_it_is_called_before_the_look_that_depends_on_it(host: Host) -> None:
    """A share that shows new versions only once it was refreshed."""
    host.publish()
    hidden = host.root / "hidden"
    host.shared.rename(hidden)

    def refresh(share: str, version: int | None) -> None:
        if hidden.exists():
            hidden.rename(share)

    with running(host, pre_read=refresh) as daemon:
        assert daemon.wait_for(lambda: daemon.passes, "a pass") == daemon.reports
        daemon.wait_for_version(1)


def test_s20_a_slow_hook_is_not_called_in_a_loop(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time goes to looking, whatever the hook takes."""
    now = [1000.0]
    monkeypatch.setattr(hooks.time, "monotonic", lambda: now[0])
    calls = []

    def slow(share: str, version: int | None) -> None:
        calls.append(now[0])
        now[0] += 10.0

    hook = PreReadHook(slow, lambda: None)
    looks = 0
    for _ in range(1000):
        may_look, _ = hook.turn(Path("/share"), None)
        looks += may_look
        now[0] += 1.0
    assert looks == 1000
    assert len(calls) <= 1000 / 90 + 2
    assert all(later - earlier >= 90 for earlier, later in zip(calls, calls[1:], strict=False))


def test_one_that_hangs_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the share is looked at without it, that is told once, and no second call is made beside it."""
    now = [1000.0]
    monkeypatch.setattr(hooks.time, "monotonic", lambda: now[0])
    hook = Hook()
    hook.hangs = True
    woken = threading.Event()
    runner = PreReadHook(hook, woken.set)
    try:
        assert runner.turn(Path("/share"), 7) == (False, None)
        assert runner.turn(Path("/share"), 7) == (False, None)
        now[0] += hooks.PATIENCE_S
        assert runner.turn(Path("/share"), 7) == (True, HookRun(hooks.PATIENCE_S, is_late=True))
        assert runner.turn(Path("/share"), 7) == (True, None)
        assert len(hook.calls) == 1
    finally:
        hook.go_on.set()
    assert woken.wait(SAFETY_S)

    def ended() -> bool:
        may_look, ran = runner.turn(Path("/share"), 7)
        return may_look and ran == HookRun(hooks.PATIENCE_S)

    eventually(ended, "its end")
    assert len(hook.calls) == 1


def test_s20_one_call_for_a_pass(host: Host) -> None:
    """Passes do not call it again and again: never more often than the share is looked at."""
    hook = Hook()
    with running(host, pre_read=hook) as daemon:
        for version in range(1, 4):
            host.publish()
            daemon.wait_for_version(version)
        assert 1 <= len(hook.calls) <= len(daemon.looks) + 1


@pytest.mark.parametrize("problem", [RuntimeError("no mount"), SystemExit(3), KeyboardInterrupt()])
def test_one_that_raises_is_told_once_and_harms_nothing(host: Host, problem: BaseException) -> None:
    hook = Hook()
    hook.raises = problem
    host.publish()
    with running(host, pre_read=hook) as daemon:
        daemon.wait_for_version(1)
        daemon.wait_for(lambda: len(hook.calls) >= 3, "more calls")
        assert len(daemon.messages("--pre-read-hook failed", type(problem).__name__)) == 1
        hook.raises = None
        daemon.wait_for(lambda: daemon.messages("--pre-read-hook goes well again"), "a good one")


def test_one_that_hangs_does_not_keep_it_from_stopping(host: Host) -> None:
    hook = Hook()
    hook.hangs = True
    try:
        with running(host, pre_read=hook) as daemon:
            assert hook.called.wait(SAFETY_S)
            daemon.ask_to_stop()
            daemon.join()
            assert not hook.go_on.is_set()
    finally:
        hook.go_on.set()
    assert len(hook.calls) == 1


def test_one_that_hangs_does_not_keep_engines_from_being_served(host: Host) -> None:
    """The share cannot be looked at; an engine that restarts meanwhile is brought up from what is here."""
    hook = Hook()
    host.publish()
    with FakeVllm(host.base) as fake:
        try:
            with running(host, engines=[f"vllm={fake.url}"], pre_read=hook) as daemon:
                fake.wait_for_calls("/resume", 1)
                daemon.wait_for_version(1)
                daemon.wait_for_looks(2)
                hook.called.clear()
                hook.hangs = True
                assert hook.called.wait(SAFETY_S)
                fake.restart()
                fake.wait_for_calls("/resume", 2, timeout_s=20)
        finally:
            hook.go_on.set()
        assert fake.holds(host.models[1])


def test_two_calls_never_run_at_once_also_with_new_settings(host: Host) -> None:
    hook = Hook()
    hook.hangs = True
    try:
        with running(host, pre_read=hook) as daemon:
            assert hook.called.wait(SAFETY_S)
            daemon.use(settings_for(host, pre_read=hook, version=0))
            daemon.wake.poke()
            hook.go_on.set()
            daemon.wait_for(lambda: len(hook.calls) >= 3, "more calls")
        assert hook.most_running == 1
    finally:
        hook.go_on.set()


@pytest.mark.parametrize(
    "name", ["", "os", "os.", ".getcwd", "no_such_module_here.function", "os.no_such_function", "os.sep", "os..getcwd"]
)
def test_a_hook_that_is_none_is_wrong_usage(name: str) -> None:
    with pytest.raises(UsageError):
        load_function(name)


def test_a_module_that_fails_at_import_is_wrong_usage_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hook_that_exits.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "hook_that_fails.py").write_text("1 / 0\n")
    for name in ("hook_that_fails.f", "hook_that_exits.f"):
        with pytest.raises(UsageError):
            load_function(name)


# ---- the command after a failure

ENGINE = parse_engine("vllm=http://127.0.0.1:1")
FAILURE = EngineReport(ENGINE, EngineState.FAILED, None, EngineRefused("it said no; it's \"so\"\nreally"), was_tried=True)


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
            daemon.use(settings_for(host, engines=engines, on_engine_failure=parse_command(command), poll_interval_s=0.03))
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
