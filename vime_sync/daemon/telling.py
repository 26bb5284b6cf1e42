"""What the daemon tells: its log, the snapshot for HTTP, its metrics, its ack, and what systemd shows.

Nothing is decided here, and no trouble in telling is trouble of the pass.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from vime_sync.acks import AckEngine, make_ack, withdraw_ack, write_ack
from vime_sync.daemon.board import Board, EngineView, Snapshot
from vime_sync.daemon.metrics import Metrics
from vime_sync.daemon.notify import Notifier
from vime_sync.daemon.settings import WatchSettings
from vime_sync.daemon.view import Held
from vime_sync.engines.interface import EngineReport, EngineState
from vime_sync.engines.spec import EngineSpec
from vime_sync.errors import SyncError, to_document
from vime_sync.local.paths import check_aside
from vime_sync.local.records import write_last_error
from vime_sync.plan import Result
from vime_sync.reconcile import Report
from vime_sync.status import ShareView, read_status, status_document


class Log(Protocol):
    """One line per event; fields are for programs."""

    def event(self, level: str, message: str, fields: Mapping[str, Any] | None = None) -> None: ...


class Teller:
    def __init__(self, log: Log, board: Board, metrics: Metrics, notifier: Notifier) -> None:
        self.log = log
        self.metrics = metrics
        self.notifier = notifier
        self.board = board
        self._guard = threading.Lock()
        self._said: dict[str, str] = {}
        self.trouble: SyncError | None = None
        self._view: ShareView | None = None

    def once(self, topic: str, level: str, message: str, fields: Mapping[str, Any] | None = None) -> None:
        """Say it when it is another message than the last one about this; weeks of the same are said once."""
        if self._said.get(topic) != message:
            self._said[topic] = message
            self.log.event(level, message, fields)

    def over(self, topic: str, message: str) -> None:
        """What was said about this does not hold any more."""
        if self._said.pop(topic, None) is not None:
            self.log.event("info", message)

    def passed(self, settings: WatchSettings, report: Report) -> None:
        self.metrics.passed(report)
        self.over("pass", f"version {report.version}: passes go well again")
        if report.result is Result.ALREADY_CURRENT and not report.tensors_repaired:
            return
        fields = {
            "result": report.result.value,
            "version": report.version,
            "from_version": report.from_version,
            "new_stream": report.new_stream,
            "tensors_changed": report.tensors_changed,
            "tensors_repaired": report.tensors_repaired,
            "bytes_read": report.bytes_read,
            "bytes_written": report.bytes_written,
            "seconds": {phase: round(seconds, 6) for phase, seconds in report.seconds.items()},
        }
        origin = "" if report.from_version is None else f" from version {report.from_version}"
        stream = ", of a new stream" if report.new_stream else ""
        self.log.event(
            "info",
            f"version {report.version}: {report.result.value.replace('_', ' ')}{origin}{stream}, "
            f"{report.tensors_changed} tensors changed, {report.tensors_repaired} repaired, "
            f"{report.seconds['total']:.3f} s",
            fields,
        )

    def skipped(self, settings: WatchSettings, problems: Sequence[SyncError]) -> None:
        """Published versions above the one that is served, which cannot be used: told after each good pass."""
        self.metrics.unusable_versions(Counter(problem.id for problem in problems))
        named = {f"version {problem.version}" for problem in problems}
        self._said = {topic: text for topic, text in self._said.items() if topic in named or topic[:8] != "version "}
        for problem in problems:
            self.once(f"version {problem.version}", "warning", f"skipped: {problem.message}", _fields(problem))
        lasting = [problem for problem in problems if not problem.retryable]
        self._note_error(settings, lasting[-1] if lasting else None)

    def failed(self, settings: WatchSettings, problem: SyncError) -> None:
        self.metrics.failed(problem)
        self.once("pass", "error", f"[{problem.id}] {problem.message}; hint: {problem.hint}", _fields(problem))
        self._note_error(settings, problem)

    def engines(self, reports: Sequence[EngineReport]) -> None:
        for report in reports:
            self.metrics.engine_loaded(report)
            topic = f"engine {report.spec.key}"
            fields: dict[str, Any] = {
                "engine": str(report.spec),
                "state": report.state.value,
                "version": report.version,
            }
            if report.error is not None:
                told = f"{report.spec}: {report.state.value.replace('_', ' ')}: {report.error.message}"
                self.once(topic, "error", told, {**fields, **_fields(report.error)})
                continue
            if report.is_paused:
                told = (
                    f"{report.spec}: was found paused, not by us as far as is known, and is left so: POST /resume there"
                )
                self.once(topic, "warning", told, fields)
            else:
                self._said.pop(topic, None)
            if report.was_tried:
                fields["seconds"] = round(report.seconds, 6)
                self.log.event(
                    "info", f"{report.spec}: loaded version {report.version} in {report.seconds:.3f} s", fields
                )

    def standing(
        self, settings: WatchSettings, held: Held, reports: Sequence[EngineReport], *, look: bool = False
    ) -> None:
        """Everything that can be asked of the daemon, brought up to date; with `look` what the share shows, too."""
        views = tuple(_view(report) for report in reports)
        # Only after a pass: what is told between passes must not wait for a share that hangs.
        found = read_status(settings.paths, settings.share, None if look else self._view)
        self._view = found.view
        documents = [
            {"url": view.url, "kind": view.kind, "state": view.state, "version": view.version, "error": view.error}
            for view in views
        ]
        document = status_document(found, documents, None if self.trouble is None else to_document(self.trouble))
        state = found.standing.state
        lacking = [view for view in views if not view.is_ready]
        reason = ""
        if state != "ready":
            reason = f"the local checkpoint is {state}: {found.standing.remark or 'see last_error'}"
        elif settings.version is not None and found.local_version != settings.version:
            reason = f"pinned to version {settings.version}, and version {found.local_version} is here"
        elif lacking:
            reason = "; ".join(f"{view.kind}={view.url} is {_words(view)}" for view in lacking)
        snapshot = Snapshot(document, not reason, reason, views)
        self._show(snapshot)
        version = "no version" if found.local_version is None else f"version {found.local_version}"
        behind = f", {found.behind} behind" if found.behind else ""
        self.notifier.status(f"{version}{behind}; {reason or 'ready'}")
        self.ack(settings, held, reports)

    def loading(self, spec: EngineSpec) -> None:
        """An engine is about to be paused: nobody should route requests to it."""
        with self._guard:
            known = self.board.snapshot
            views = tuple(
                replace(view, state="unknown", is_ready=False) if view.address == spec.address else view
                for view in known.engines
            )
            self._show(replace(known, is_ready=False, reason=f"{spec} is being loaded", engines=views))

    def loaded(self, report: EngineReport) -> None:
        """One engine's turn is over, while others may still drain: it is ready as soon as it is."""
        with self._guard:
            known = self.board.snapshot
            mine = _view(report)
            views = tuple(mine if (view.kind, view.url) == (mine.kind, mine.url) else view for view in known.engines)
            self._show(replace(known, engines=views))

    def _show(self, snapshot: Snapshot) -> None:
        self.board.put(snapshot)
        self.metrics.observe(snapshot)

    def ack(self, settings: WatchSettings, held: Held, reports: Sequence[EngineReport]) -> None:
        """This host's record: also before the first pass, which may be long, and when the daemon ends.

        Raises UsageError where it would lie in the share or base that LOCAL remembers.
        """
        if settings.ack_dir is None:
            return
        check_aside(settings.ack_dir, {"the share": held.share, "the base": held.base})
        try:
            if held.local is None or held.weights is None:
                # Nothing whole is committed here: a fresh disk under an old name must not go on claiming its version.
                withdraw_ack(settings.ack_dir, settings.host_name, settings.paths.root)
            else:
                engines = tuple(
                    AckEngine(
                        report.spec.shown_url, "paused" if report.is_paused else report.state.value, report.version
                    )
                    for report in reports
                )
                ack = make_ack(settings.host_name, settings.paths.root, held.local.state, held.weights.lineage, engines)
                write_ack(settings.ack_dir, ack)
        except SyncError as problem:
            self.metrics.failed(problem)
            self.once("ack", "error", f"[{problem.id}] {problem.message}", _fields(problem))
        else:
            self.over("ack", f"the record in {settings.ack_dir} is written again")

    def _note_error(self, settings: WatchSettings, problem: SyncError | None) -> None:
        self.trouble = problem
        try:
            write_last_error(settings.paths, None if problem is None else to_document(problem))
        except OSError as trouble:
            self.once("note", "warning", f"{settings.paths.trouble}: {trouble.strerror}")


def _fields(problem: SyncError) -> dict[str, Any]:
    document = to_document(problem)
    return {"error": {name: document[name] for name in ("code", "id", "hint", "retryable", "version")}}


def _words(view: EngineView) -> str:
    if view.error is None and view.state == EngineState.AT_VERSION.value:
        return f"at version {view.version}, and paused or of another load"
    return view.state.replace("_", " ")


def _view(report: EngineReport) -> EngineView:
    spec = report.spec
    error = None if report.error is None else report.error.message
    is_ready = report.is_current and not report.is_paused
    return EngineView(
        spec.shown_url, spec.kind.value, spec.address, report.state.value, report.version, error, is_ready
    )
