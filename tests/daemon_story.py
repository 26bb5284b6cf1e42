"""A daemon under the test's eyes: as a process of its own, or as a thread of the test.

`watching` starts `python -m vime_sync watch`; its log, HTTP side, ack and exit code are what a test may look at.
`running` runs the same `Daemon` in a thread, where each pass, each look at the share and each line of its log is
recorded; waits are for those. Nothing of it outlives its block.
"""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

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


# ---- a process


class WatchProcess:
    """`vime-sync watch` for a host. `lines` is what it has said on stderr so far."""

    def __init__(self, host: Host, options: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self.host = host
        self.lines: list[str] = []
        self._said = threading.Condition()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vime_sync", *map(str, options)],
            env={**clean, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", **environment},
            cwd=host.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="watch-stderr", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()

    def wait_for_line(self, *parts: str, count: int = 1) -> str:
        """The last of the first `count` lines that hold all the parts, once there are so many."""

        def found() -> list[str]:
            return [line for line in self.lines if all(part in line for part in parts)]

        with self._said:
            arrived = self._said.wait_for(
                lambda: len(found()) >= count or not self._reader.is_alive(), SAFETY_S
            )
        assert arrived and len(found()) >= count, f"{parts} was not said {count} times:\n" + "\n".join(self.lines)
        return found()[count - 1]

    def told(self, *parts: str) -> list[str]:
        return [line for line in self.lines if all(part in line for part in parts)]

    def wait_for_version(self, version: int, *, durable: bool = False) -> None:
        def there() -> bool:
            assert self.process.poll() is None, "\n".join(self.lines)
            state = state_of(self.host)
            return state.get("version") == version and (state["durable"] or not durable)

        eventually(there, f"version {version}; said:\n" + "\n".join(self.lines[-20:]))

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, and its exit code."""
        self.send(number)
        return self.code()

    def code(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self.process.wait(SAFETY_S)
        self._reader.join(SAFETY_S)
        return code

    @property
    def port(self) -> int:
        return int(self.wait_for_line("http on port").rpartition(" ")[2].rstrip("}"))

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SAFETY_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """`name` or `name{label=value,...}` -> value."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1].decode()):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def wait_for_polls(self, count: int) -> None:
        """Until it has looked at the share so many times more."""
        wanted = self.metrics()["vime_sync_polls_total"] + count
        eventually(lambda: self.metrics()["vime_sync_polls_total"] >= wanted, f"{count} more looks")

    def proc(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_text(encoding="utf-8")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SAFETY_S)
        self._reader.join(SAFETY_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def watching(
    host: Host,
    *options: str | Path,
    engines: Sequence[str] = (),
    poll_interval_s: float = 0.05,
    environment: Mapping[str, str] | None = None,
) -> Iterator[WatchProcess]:
    """The command with this host's three directories and an HTTP port; killed at the end if it still runs."""
    arguments: list[str | Path] = ["watch", "--local", host.local, "--shared", host.shared, "--base", host.base]
    arguments += ["--poll-interval", str(poll_interval_s), "--engine-interval", "0.1", "--http", "127.0.0.1:0"]
    arguments += [word for engine in engines for word in ("--engine", engine)]
    with any_watch(host, *arguments, *options, environment=environment) as process:
        yield process


@contextmanager
def any_watch(
    host: Host, *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> Iterator[WatchProcess]:
    """The command line with exactly these arguments."""
    process = WatchProcess(host, arguments, environment or {})
    try:
        yield process
    finally:
        process.close()


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
    """`passes`: a report or an error for each, in order; `looks`: one entry for each; `said`: level and message."""

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.passes: list[Report | SyncError] = []
        self.looks: list[None] = []
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
        fresh, self._fresh = self._fresh, None
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

    def wait_for_version(self, version: int) -> Report:
        """The report of the first pass that ended there."""
        return self.wait_for(
            lambda: next((item for item in self.reports if item.version == version), None), f"version {version}"
        )

    def wait_for_error(self, error_id: str) -> SyncError:
        return self.wait_for(
            lambda: next((item for item in self.errors if item.id == error_id), None), f"an error {error_id}"
        )

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
