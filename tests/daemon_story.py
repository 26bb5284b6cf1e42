"""The daemon as a thread of the test: each pass, each look at the share and each line of its log is recorded.

`running` runs the `Daemon` that the command runs; waits are for what was recorded, never for a time. Nothing of it
outlives its block. (`tests.watch_story` has the real process.)
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests import toolkit
from tests.host import Host
from vime_sync.daemon.board import Board
from vime_sync.daemon.loop import Daemon
from vime_sync.daemon.metrics import Metrics
from vime_sync.daemon.notify import Notifier
from vime_sync.daemon.progress import Progress
from vime_sync.daemon.settings import WatchSettings
from vime_sync.daemon.telling import Teller
from vime_sync.daemon.wake import Wake
from vime_sync.engines.spec import parse_engines
from vime_sync.errors import Interrupted, SyncError
from vime_sync.local.paths import local_paths
from vime_sync.materialize.context import StopFlag
from vime_sync.reconcile import Report

SAFETY_S = 30.0
ROOT = Path(__file__).parents[1]
Found = TypeVar("Found")


def eventually(look: Callable[[], Found], what: str, *, timeout_s: float = SAFETY_S) -> Found:
    """What `look` gives once it is true; for what no event tells of."""
    pause, deadline = threading.Event(), time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        pause.wait(0.01)
    raise AssertionError(f"it never came: {what}")


def small_host(root: Path, *, kib: int = 16) -> Host:
    return Host.create(root, model=toolkit.make_model(seed=3, kib=kib))


def state_of(host: Host) -> dict[str, Any]:
    """Our part of LOCAL's state; {} while there is none."""
    try:
        document = json.loads((host.local / toolkit.STATE_DIRECTORY / "state.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    ours: dict[str, Any] = document["vime_sync"]
    return ours


def version_of(host: Host) -> int | None:
    version: int | None = state_of(host).get("version")
    return version


def spoil(directory: Path) -> None:
    """One bit of a published delta: every header still fits, the bytes do not."""
    shard = next(directory.glob("*.safetensors"))
    toolkit.rewrite_shard(shard, lambda header, data: data.__setitem__(len(data) - 1, data[-1] ^ 1))


# ---- a thread


class _Recorder(Teller):
    """A teller that also keeps how each pass ended."""

    def __init__(self, daemon: "RunningDaemon") -> None:
        super().__init__(daemon, Board(), _CountingMetrics(daemon), Notifier())
        self._daemon = daemon

    def passed(self, settings: WatchSettings, report: Report) -> None:
        super().passed(settings, report)
        self._daemon.record(self._daemon.passes, report)

    def failed(self, settings: WatchSettings, problem: SyncError) -> None:
        super().failed(settings, problem)
        self._daemon.record(self._daemon.passes, problem)


class _CountingMetrics(Metrics):
    def __init__(self, daemon: "RunningDaemon") -> None:
        super().__init__()
        self._daemon = daemon

    def polled(self) -> None:
        super().polled()
        self._daemon.record(self._daemon.looks, None)


class RunningDaemon:
    """`passes`: a report or an error for each, in order; `looks` and `turns` of the loop: one entry for each."""

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.passes: list[Report | SyncError] = []
        self.looks: list[None] = []
        self.turns: list[None] = []
        self.said: list[tuple[str, str, dict[str, Any]]] = []
        self.ending: BaseException | None = None
        self.may_end = False
        self._changed = threading.Condition()
        self._fresh: WatchSettings | None = None
        self._stop, self.wake = StopFlag(), Wake()
        self.teller = _Recorder(self)
        progress = Progress(self.teller.notifier, lambda text: self.event("info", text))
        self._daemon = Daemon(settings, self._stop, self.wake, self.teller, progress, self._take)
        self._thread = threading.Thread(target=self._run, name="daemon", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._daemon.run()
        except BaseException as ending:
            self.ending = ending
        with self._changed:
            self._changed.notify_all()

    def _take(self) -> WatchSettings | None:
        """Asked for at the beginning of each turn."""
        fresh, self._fresh = self._fresh, None
        self.record(self.turns, None)
        return fresh

    def event(self, level: str, message: str, fields: Mapping[str, Any] | None = None) -> None:
        """Its log."""
        self.record(self.said, (level, message, dict(fields or {})))

    def record(self, kept: list[Found], item: Found) -> None:
        with self._changed:
            kept.append(item)
            self._changed.notify_all()

    def wait_for(self, look: Callable[[], Found], what: str) -> Found:
        """What `look` gives once it is true; asked whenever the daemon did something."""
        with self._changed:
            self._changed.wait_for(lambda: look() or not self._thread.is_alive(), SAFETY_S)
            found = look()
        told = "\n".join(f"{level}: {message}" for level, message, _ in self.said[-20:])
        assert found, f"it never came: {what}; ended by {self.ending!r}; said:\n{told}"
        return found

    def wait_for_looks(self, count: int) -> None:
        """Until it has looked at the share so many times more, begun and ended."""
        wanted = len(self.looks) + count + 1
        self.wait_for(lambda: len(self.looks) >= wanted, f"{count} more looks at the share")

    def wait_for_turns(self, count: int) -> None:
        """As `wait_for_looks`, also where the share is not looked at."""
        wanted = len(self.turns) + count + 1
        self.wait_for(lambda: len(self.turns) >= wanted, f"{count} more turns")

    def wait_for_version(self, version: int) -> Report:
        """The report of the first pass that ended there."""
        return self.wait_for(lambda: [item for item in self.reports if item.version == version], f"version {version}")[
            0
        ]

    def wait_for_error(self, error_id: str) -> SyncError:
        return self.wait_for(lambda: [item for item in self.errors if item.id == error_id], f"an error {error_id}")[0]

    @property
    def reports(self) -> list[Report]:
        return [item for item in self.passes if isinstance(item, Report)]

    @property
    def errors(self) -> list[SyncError]:
        return [item for item in self.passes if isinstance(item, SyncError)]

    def messages(self, *parts: str) -> list[str]:
        return [message for _, message, _ in list(self.said) if all(part in message for part in parts)]

    def use(self, settings: WatchSettings) -> None:
        """As signal HUP does."""
        self._fresh = settings
        self.wake.poke()

    def ask_to_stop(self) -> None:
        self._stop.signal_name = "SIGTERM"
        self._stop.signal_number = int(signal.SIGTERM)
        self.wake.poke()

    def join(self) -> None:
        self._thread.join(SAFETY_S)
        assert not self._thread.is_alive(), "the daemon does not end"

    def ended(self) -> SyncError:
        """The error that it ended with by itself."""
        self.may_end = True
        self.join()
        assert isinstance(self.ending, SyncError), self.ending
        return self.ending


def settings_for(host: Host, *, engines: Sequence[str] = (), **others: Any) -> WatchSettings:
    fast: dict[str, Any] = {"threads": 2, "poll_interval_s": 0.02, "engine_interval_s": 0.05}
    return WatchSettings(
        local_paths(host.local),
        others.pop("share", host.shared),
        others.pop("base", host.base),
        others.pop("version", None),
        engines=parse_engines(engines),
        **{**fast, **others},
    )


@contextmanager
def running(host: Host, *, engines: Sequence[str] = (), **others: Any) -> Iterator[RunningDaemon]:
    """`others` are fields of WatchSettings. Stopped at the end; ended otherwise than the test knows it is a failure."""
    daemon = RunningDaemon(settings_for(host, engines=engines, **others))
    try:
        yield daemon
    finally:
        daemon.ask_to_stop()
        daemon.join()
        daemon.wake.close()
    if not isinstance(daemon.ending, Interrupted) and not daemon.may_end:
        raise AssertionError(f"the daemon ended with {daemon.ending!r}") from daemon.ending


def no_more_passes(daemon: RunningDaemon, looks: int = 30) -> None:
    """It goes on looking, and finds nothing to do."""
    daemon.wait_for_looks(2)
    passes = len(daemon.passes)
    daemon.wait_for_looks(looks)
    assert len(daemon.passes) == passes, daemon.passes[passes:]
