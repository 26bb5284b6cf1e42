"""The daemon's engines between passes: when they are looked at, and what follows from how a load went."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from vime_sync.daemon.hooks import FailureCommand, without_secrets
from vime_sync.daemon.policy import grown_s
from vime_sync.daemon.settings import WatchSettings
from vime_sync.daemon.telling import Teller
from vime_sync.daemon.view import Held
from vime_sync.engines.interface import EngineReport
from vime_sync.engines.spec import API_KEY_VARIABLE
from vime_sync.errors import EngineNotReady, EngineRefused, EngineUncertain
from vime_sync.local.records import read_engines
from vime_sync.model import Weights
from vime_sync.reconcile.serving import Fleet, Looked, look, make_fleet

_BACK_OFF_CAP_S = 300.0


class _Looking:
    """One look at all engines, in a thread: nobody waits for an engine that hangs."""

    def __init__(self, settings: WatchSettings, fleet: Fleet, wanted: Weights, wake: Callable[[], None]) -> None:
        self.found: Looked | None = None
        self._thread = threading.Thread(
            target=self._run, args=(settings, fleet, wanted, wake), daemon=True, name="look"
        )
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self, settings: WatchSettings, fleet: Fleet, wanted: Weights, wake: Callable[[], None]) -> None:
        self.found = look(settings.paths, fleet, wanted)
        wake()


@dataclass(frozen=True)
class _Rest:
    """An engine that could not be loaded, and is left alone for a while."""

    failures: int
    until_s: float


class EngineCare:
    def __init__(
        self, settings: WatchSettings, teller: Teller, command: FailureCommand, wake: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._teller = teller
        self._command = command
        self._wake = wake
        self.fleet = make_fleet(
            settings.engines, settings.engine_settings, gives_up=True, on_load=teller.loading, on_done=teller.loaded
        )
        self._looking: _Looking | None = None
        self._next_look_s = 0.0
        self._resting: dict[str, _Rest] = {}
        self._told: tuple[EngineReport, ...] = ()
        named = {spec.key for spec in settings.engines}
        for key, memory in read_engines(settings.paths).items():
            if memory.is_open and key not in named:
                told = (
                    f"{key} was left in the middle of a load and is not named any more: it may be paused, POST /resume"
                )
                teller.once(f"left {key}", "warning", told)

    @property
    def reports(self) -> tuple[EngineReport, ...]:
        return self.fleet.reports

    def look(self, held: Held) -> bool:
        """Whether an engine is to be loaded now. Engines are asked at their own interval only."""
        looking = self._looking
        if looking is not None:
            if not looking.is_over:
                return False
            self._looking = None
            if looking.found is None:
                return False
            self.fleet.reports = looking.found.reports
            now_s = time.monotonic()
            return any(key not in self._resting or now_s >= self._resting[key].until_s for key in looking.found.lacking)
        if self.fleet.engines and held.weights is not None and time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + self._settings.engine_interval_s
            self._looking = _Looking(self._settings, self.fleet, held.weights, self._wake)
        return False

    def tell(self) -> bool:
        """Tell what is new of the engines, and do what follows from it; whether there was anything."""
        reports = self.fleet.reports
        if reports is self._told:
            return False
        is_news = [_standing(report) for report in reports] != [_standing(report) for report in self._told]
        self._told = reports
        self._teller.engines(reports)
        tried = [report for report in reports if report.was_tried]
        if tried:
            self._looking = None  # what is seen by one that runs now was before
            self._next_look_s = time.monotonic() + self._settings.engine_interval_s
        for report in tried:
            self._follow_up(report)
        return is_news or bool(tried)

    def _follow_up(self, report: EngineReport) -> None:
        key, problem = report.spec.key, report.error
        if problem is not None:  # also where a command restarts it: a load that never goes well must not go round
            failures = self._resting[key].failures + 1 if key in self._resting else 1
            self._resting[key] = _Rest(failures, time.monotonic() + grown_s(failures, _BACK_OFF_CAP_S))
        else:
            self._resting.pop(key, None)
        is_broken = isinstance(problem, (EngineRefused, EngineUncertain)) and not isinstance(problem, EngineNotReady)
        if is_broken and self._settings.on_engine_failure is not None:
            environment = without_secrets(os.environ, API_KEY_VARIABLE)
            self._command.run(self._settings.on_engine_failure, report, environment)


def _standing(report: EngineReport) -> tuple[object, ...]:
    error = None if report.error is None else report.error.message
    return (report.spec, report.state, report.version, report.is_current, report.is_paused, error)
