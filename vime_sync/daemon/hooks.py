"""What an operator hangs into the loop: a function before each look at the share, a command when an engine fails."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vime_sync.engines.interface import EngineReport
from vime_sync.errors import UsageError

# At most this part of the time goes into the hook, however slow it is (FIELD_GUIDE S20).
_REST_PER_RUN = 9.0
_COMMAND_TIMEOUT_S = 600.0
_SHORT_S = 0.05
# So long a look at the share waits for it.
PATIENCE_S = 60.0

PreReadFunction = Callable[[str, int | None], object]


def load_function(dotted: str) -> PreReadFunction:
    """`module.function`. Raises UsageError."""
    module_name, _, name = dotted.rpartition(".")
    try:
        function = getattr(importlib.import_module(module_name), name, None) if module_name else None
    except BaseException as problem:  # a module may also exit while it is imported
        raise UsageError(
            f"--pre-read-hook {dotted}: importing {module_name} failed: {type(problem).__name__}: {problem}",
            hint="Give module.function, with the module on PYTHONPATH.",
        ) from None
    if not callable(function):
        raise UsageError(f"--pre-read-hook {dotted} is no function, expected module.function")
    return function  # type: ignore[no-any-return]


def parse_command(text: str) -> tuple[str, ...]:
    """The words of --on-engine-failure. Raises UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"--on-engine-failure {text!r}: {problem}") from None
    if not words or not words[0] or "\0" in text:
        raise UsageError(
            f"--on-engine-failure {text!r} names no program", hint="For a shell's syntax give sh -c 'COMMANDS'."
        )
    return words


@dataclass(frozen=True)
class HookRun:
    """How a call ended, or that it is `late`: it goes on, and nobody waits for it any longer."""

    seconds: float
    problem: str | None = None
    is_late: bool = False


class PreReadHook:
    """Called once before a look at the share: `function(source_dir, target_version)`, the version None for latest.

    Runs in a thread of its own, so that meanwhile engines are cared for and signals heard; one that hangs is waited
    for only so long, and not called a second time while it runs.
    """

    def __init__(self, function: PreReadFunction, wake: Callable[[], None]) -> None:
        self._function = function
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._problem: str | None = None
        self._begun_s = self._rest_until_s = 0.0
        self._is_late = False

    def become(self, function: PreReadFunction) -> None:
        """Another function from the next call on; one that runs is waited for as before."""
        self._function = function

    def turn(self, share: Path, target: int | None) -> tuple[bool, HookRun | None]:
        """Whether the share may be looked at now, and what there is to tell."""
        now_s = time.monotonic()
        if self._thread is None:
            if now_s < self._rest_until_s:
                return True, None
            self._problem, self._is_late, self._begun_s = None, False, now_s
            self._thread = threading.Thread(target=self._call, args=(str(share), target), daemon=True, name="hook")
            self._thread.start()
            self._thread.join(_SHORT_S)  # most are this quick: no turn of the loop is lost
        seconds = time.monotonic() - self._begun_s
        if not self._thread.is_alive():
            self._thread = None
            self._rest_until_s = time.monotonic() + seconds * _REST_PER_RUN
            return True, HookRun(seconds, self._problem)
        if seconds < PATIENCE_S:
            return False, None
        told, self._is_late = self._is_late, True
        return True, None if told else HookRun(seconds, is_late=True)

    def _call(self, share: str, target: int | None) -> None:
        try:
            self._function(share, target)
        except BaseException as problem:  # an operator's code, in a thread of its own: nothing of it may end us
            self._problem = f"{type(problem).__name__}: {problem}"
        finally:
            self._wake()


class FailureCommand:
    """Run when an engine's load failed for good, one at a time for each engine, beside the loop."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._guard = threading.Lock()

    def run(self, command: Sequence[str], report: EngineReport, environment: Mapping[str, str]) -> None:
        engine = report.spec.key
        told = {
            "VIME_SYNC_FAILED_ENGINE": str(report.spec),
            "VIME_SYNC_FAILED_URL": report.spec.shown_url,
            "VIME_SYNC_FAILED_ERROR": _plain(report.error.message) if report.error is not None else "",
        }
        with self._guard:
            if engine in self._running:
                return
            try:
                process = subprocess.Popen(command, env={**environment, **told}, stdin=subprocess.DEVNULL)
            except (OSError, ValueError) as problem:
                reason = getattr(problem, "strerror", None) or problem
                self._say("error", f"--on-engine-failure {command[0]}: {reason}")
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
            self._say("info" if code == 0 else "error", f"--on-engine-failure for {engine} ended with {code}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._say("error", f"--on-engine-failure for {engine} was ended after {_COMMAND_TIMEOUT_S:g} s")
        finally:
            with self._guard:
                self._running.pop(engine, None)


def _plain(text: str) -> str:
    """As an environment can hold it: an engine's words may have anything in them."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")


def without_secrets(environment: Mapping[str, str], secret: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != secret}
