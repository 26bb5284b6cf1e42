"""`--pre-read-hook`: an operator's function before each look at the share."""

import itertools
import threading
from pathlib import Path

import pytest

from tests.daemon_story import SAFETY_S, eventually, running, settings_for, small_host
from tests.fake_vllm import FakeVllm
from tests.host import Host
from vime_sync.daemon import hooks
from vime_sync.daemon.hooks import HookRun, PreReadHook, load_function
from vime_sync.errors import UsageError


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
    monkeypatch.setattr("vime_sync.daemon.hooks.time.monotonic", lambda: now[0])
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
    assert all(later - earlier >= 90 for earlier, later in itertools.pairwise(calls))


def test_one_that_hangs_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the share is looked at without it, that is told once, and no second call is made beside it."""
    now = [1000.0]
    monkeypatch.setattr("vime_sync.daemon.hooks.time.monotonic", lambda: now[0])
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
            daemon.wait_for_turns(5)
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
