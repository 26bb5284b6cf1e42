"""The daemon's engines between passes: when they are looked at, and what follows from how a load went."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from vime_sync.daemon.hooks import FailureCommand, without_secrets
from vime_sync.daemon.policy import grown_s
from vime_sync.daemon.settings import WatchSettings
from vime_sync.daemon.telling import Teller
from vime_sync.daemon.view import Held
from vime_sync.engines.interface import EngineReport
from vime_sync.engines.spec import API_KEY_VARIABLE
from vime_sync.errors import EngineNotReady, EngineRefused, EngineSilent, EngineUncertain
from vime_sync.model import Weights
from vime_sync.reconcile.serving import Looked, look, make_fleet

_BACK_OFF_CAP_S = 300.0


class EngineCare:
    def __init__(self, settings: WatchSettings, teller: Teller, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._teller = teller
        self.fleet = make_fleet(settings.engines, settings.engine_settings, gives_up=True, on_load=teller.loading)
        self._command: FailureCommand | None = None
        if settings.on_engine_failure is not None:
            self._command = FailureCommand(settings.on_engine_failure, teller.log.event)
        self._wake = wake
        self._looking: threading.Thread | None = None
        self._found: Looked | None = None
        self._next_look_s = 0.0
        self._not_before_s = 0.0
        self._failures = 0
        self._shown: tuple[EngineReport, ...] = ()

    @property
    def reports(self) -> tuple[EngineReport, ...]:
        return self.fleet.reports

    def look(self, held: Held) -> bool:
        """Whether an engine is to be loaded now. Engines are asked at their own interval, and nobody waits for them."""
        if self._looking is not None:
            if self._looking.is_alive():
                return False
            self._looking = None
            if self._found is not None:
                self.fleet.reports = self._found.reports
                self._teller.engines(self.fleet.reports)
                return self._found.lacks and time.monotonic() >= self._not_before_s
        elif self.fleet.engines and held.weights is not None and time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + self._settings.engine_interval_s
            self._found = None
            self._looking = threading.Thread(target=self._look, args=(held.weights,), daemon=True, name="look")
            self._looking.start()
        return False

    def _look(self, wanted: Weights) -> None:
        self._found = look(self._settings.paths, self.fleet, wanted)
        self._wake()

    def served(self) -> None:
        """After a pass: tell, run the command for those that failed, and let those rest that could not be loaded."""
        reports = self.fleet.reports
        self._teller.engines(reports)
        self._looking = None  # what it saw was before
        self._next_look_s = time.monotonic() + self._settings.engine_interval_s
        later = [report for report in reports if isinstance(report.error, (EngineNotReady, EngineSilent))]
        self._failures = self._failures + 1 if later else 0
        self._not_before_s = time.monotonic() + grown_s(self._failures, _BACK_OFF_CAP_S) if later else 0.0
        for report in reports:
            is_broken = isinstance(report.error, (EngineRefused, EngineUncertain))
            if report.was_tried and is_broken and not isinstance(report.error, EngineNotReady) and self._command:
                self._command.run(report, without_secrets(os.environ, API_KEY_VARIABLE))

    def has_news(self) -> bool:
        """Whether an engine stands otherwise than when this was asked last."""
        changed = self.fleet.reports != self._shown
        self._shown = self.fleet.reports
        return changed

    def stop(self) -> None:
        if self._command is not None:
            self._command.stop()
