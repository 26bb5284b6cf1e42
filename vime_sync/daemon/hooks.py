"""What an operator hangs into the loop: a function before each look at the share, a command when an engine fails."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vime_sync.engines.interface import EngineReport
from vime_sync.errors import UsageError

# At most this part of the time goes into the hook, however slow it is (FIELD_GUIDE S20).
_REST_PER_RUN = 9.0
_COMMAND_TIMEOUT_S = 600.0
_STEP_S = 0.2

PreReadFunction = Callable[[str, int | None], object]


def load_function(dotted: str) -> PreReadFunction:
    """`module.function`. Raises UsageError."""
    module_name, _, name = dotted.rpartition(".")
    try:
        function = getattr(importlib.import_module(module_name), name, None) if module_name else None
    except Exception as problem:
        raise UsageError(
            f"--pre-read-hook {dotted}: importing {module_name} failed: {type(problem).__name__}: {problem}",
            hint="Give module.function, with the module on PYTHONPATH.",
        ) from None
    if not callable(function):
        raise UsageError(f"--pre-read-hook {dotted} is no function, expected module.function")
    return function  # type: ignore[no-any-return]


@dataclass
class PreReadHook:
    """Called once before a look at the share: `function(source_dir, target_version)`, the version None for latest.

    Runs in a thread of its own: one that hangs keeps nobody from stopping, and is not called a second time meanwhile.
    """

    function: PreReadFunction
    _thread: threading.Thread | None = None
    _problem: str | None = None
    _rest_until_s: float = 0.0

    def run(self, share: Path, target: int | None, check_stop: Callable[[], None]) -> tuple[float, str | None] | None:
        """Seconds it took, and what went wrong; None where it is not its turn yet. Raises what `check_stop` raises."""
        if time.monotonic() < self._rest_until_s and self._thread is None:
            return None
        started = time.monotonic()
        if self._thread is None:
            self._problem = None
            self._thread = threading.Thread(target=self._call, args=(str(share), target), daemon=True, name="hook")
            self._thread.start()
        while self._thread.is_alive():
            check_stop()
            self._thread.join(_STEP_S)
        self._thread = None
        seconds = time.monotonic() - started
        self._rest_until_s = time.monotonic() + seconds * _REST_PER_RUN
        return seconds, self._problem

    def _call(self, share: str, target: int | None) -> None:
        try:
            self.function(share, target)
        except BaseException as problem:  # an operator's code, in a thread of its own: nothing of it may end us
            self._problem = f"{type(problem).__name__}: {problem}"


@dataclass
class FailureCommand:
    """Run when an engine's load failed for good, one at a time for each engine, beside the loop."""

    command: str
    say: Callable[[str, str], None]
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def run(self, report: EngineReport, environment: Mapping[str, str]) -> None:
        engine = str(report.spec)
        told = {
            "VIME_SYNC_FAILED_ENGINE": engine,
            "VIME_SYNC_FAILED_URL": report.spec.shown_url,
            "VIME_SYNC_FAILED_ERROR": report.error.message if report.error is not None else "",
        }
        with self._guard:
            if engine in self._running:
                return
            try:
                process = subprocess.Popen(
                    shlex.split(self.command), env={**environment, **told}, stdin=subprocess.DEVNULL
                )
            except OSError as problem:
                self.say("error", f"--on-engine-failure {self.command}: {problem.strerror}")
                return
            self._running[engine] = process
        threading.Thread(target=self._wait, args=(engine, process), daemon=True, name="on-engine-failure").start()

    def stop(self) -> None:
        with self._guard:
            for process in self._running.values():
                process.terminate()

    def _wait(self, engine: str, process: subprocess.Popen[bytes]) -> None:
        try:
            code = process.wait(_COMMAND_TIMEOUT_S)
            self.say("info" if code == 0 else "error", f"--on-engine-failure for {engine} ended with {code}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.say("error", f"--on-engine-failure for {engine} was ended after {_COMMAND_TIMEOUT_S:g} s")
        finally:
            with self._guard:
                self._running.pop(engine, None)


def without_secrets(environment: Mapping[str, str], secret: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != secret}
