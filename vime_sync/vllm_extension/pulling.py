"""Pulling from within an engine: the same pass as the command line's, waited for, or behind the serving.

One rank of a host pulls: the one that gets the lock of LOCAL. The others try until it is done, and one of them takes
over where it dies. The work is always in daemon threads and never in the thread that was called: an engine ends its
workers by an exception in that one, and the lock must then stay held until the process and with it every writer is
gone (FIELD_GUIDE H21). What that leaves, the next pull finishes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vime_sync.errors import LockHeld, NotReady, ShareUnreachable, SyncError, VersionMissing
from vime_sync.local.paths import LocalPaths
from vime_sync.materialize.context import Context, Tally
from vime_sync.reconcile import Report, Request, reconcile
from vime_sync.vllm_extension.answers import Outcome, failure
from vime_sync.vllm_extension.holding import Holding, read_holding

LOCK_WAIT_S = 1800.0
# Network mounts show a new directory up to a minute late.
VERSION_WAIT_S = 90.0

# While the engine serves: few threads, and after everything else.
BACKGROUND_THREADS = 2
_BACKGROUND_NICE = 10
_RETRY_S = 0.5
_MAX_WARNINGS = 8
_ATTRIBUTE = "_vime_sync_pulls"


@dataclass(frozen=True)
class Order:
    """What is wanted of LOCAL; `version` None is the newest, `lineage` None any weights of that version.

    `share` and `base` None are what LOCAL remembers. The waits are for the lock, and for a version that is not there
    or not ready.
    """

    paths: LocalPaths
    share: Path | None
    version: int | None
    base: Path | None
    lineage: str | None = None
    lock_wait_s: float = LOCK_WAIT_S
    version_wait_s: float = VERSION_WAIT_S

    def __str__(self) -> str:
        return f"version {'latest' if self.version is None else self.version}"


class Superseded(Exception):
    """Something else is wanted by now. Never leaves this module."""


def pull(order: Order, threads: int, tally: Tally, pause: Callable[[float], None]) -> Outcome:
    """Try until LOCAL holds what is ordered, or it is clear that it will not."""
    started = time.monotonic()
    missing_since: float | None = None
    while True:
        held = read_holding(order.paths)
        if order.lineage is not None and held.is_of(order.version, order.lineage):
            return held.outcome()
        request = Request(order.share, order.base, order.version, wait_s=min(_RETRY_S, order.lock_wait_s))
        try:
            report = reconcile(Context(order.paths, threads, tally=tally), request)
        except LockHeld as problem:
            waits_for: SyncError = problem
            since, limit_s, rest_s = started, order.lock_wait_s, 0.0  # it has been waited for already
        except (NotReady, VersionMissing, ShareUnreachable) as problem:
            waits_for = problem
            missing_since = since = missing_since if missing_since is not None else time.monotonic()
            limit_s, rest_s = order.version_wait_s, _RETRY_S
        except SyncError as problem:
            return _failed(order, problem)
        else:
            return _pulled(order, report, time.monotonic() - started)
        waited_s = time.monotonic() - since
        if waited_s >= limit_s:
            outcome = _failed(order, waits_for)
            return replace(outcome, message=f"waited {waited_s:.0f} s: {outcome.message}")
        pause(min(rest_s, limit_s - waited_s))


def _failed(order: Order, problem: SyncError) -> Outcome:
    held = read_holding(order.paths)
    return failure(problem, version=held.version, lineage=held.lineage)


def _pulled(order: Order, report: Report, seconds: float) -> Outcome:
    """Success is what LOCAL holds now, not what a pass of ours did."""
    held = read_holding(order.paths)
    details = {
        "result": report.result.value,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "milliseconds": round(seconds * 1000),
        "warnings": report.warnings[:_MAX_WARNINGS],
    }
    if held.is_of(report.version, order.lineage):
        return replace(held.outcome(), details=details)
    if held.version == report.version:
        message = f"version {held.version} here is made of other weights than those asked for"
        details["hint"] = "Check that all hosts see the same share, and start from the same base."
        return replace(held.outcome(), success=False, message=message, error="other_weights", details=details)
    return _changed(report.version, held)


def _changed(version: int | None, held: Holding) -> Outcome:
    message = f"version {version} was pulled, and something has changed it since: {held.reason}"
    return replace(held.outcome(), success=False, message=message, error="changed", retryable=True)


def pull_and_wait(order: Order, threads: int) -> Outcome:
    """In a thread of its own, waited for."""
    outcomes: list[Outcome] = []

    def run() -> None:
        try:
            outcomes.append(pull(order, threads, Tally(), time.sleep))
        except Exception as problem:
            outcomes.append(failure(problem))

    thread = threading.Thread(target=run, name="vime-sync-pull", daemon=True)
    thread.start()
    thread.join()
    return outcomes[0] if outcomes else _ended_early()


def _ended_early() -> Outcome:
    return Outcome(False, "the pull's thread ended before the pull did", error=SyncError.id)


class BackgroundPull:
    """The pull behind the serving of one rank: one thread at a time, and the newest order counts."""

    def __init__(self, paths: LocalPaths) -> None:
        self._paths = paths
        self._changed = threading.Condition()
        self._order: Order | None = None
        self._outcome: Outcome | None = None
        self._thread: threading.Thread | None = None
        self._tally = Tally()

    def start(self, order: Order) -> Outcome:
        with self._changed:
            held = read_holding(self._paths)
            if self._is_running():
                if order != self._order:
                    self._order = order
                    self._changed.notify_all()
                return replace(held.outcome(), message=f"pulling {order}", done=False)
            self._order, self._outcome = None, None
            if order.lineage is not None and held.is_of(order.version, order.lineage):
                return held.outcome()
            thread = threading.Thread(target=self._run, name="vime-sync-pull", daemon=True)
            self._order, self._tally = order, Tally()
            try:
                thread.start()
            except RuntimeError:  # no more threads to be had
                self._order = None
                raise
            self._thread = thread
            return replace(held.outcome(), message=f"pulling {order}", done=False)

    def poll(self) -> Outcome:
        with self._changed:
            held = read_holding(self._paths)
            if self._is_running():
                written = f"{self._tally.bytes_written} bytes written"
                return replace(held.outcome(), message=f"pulling {self._order}: {written}", done=False)
            if self._order is None:
                return held.outcome()
            outcome = self._outcome or _ended_early()
            if outcome.success and not held.is_of(outcome.version, outcome.lineage):
                return _changed(outcome.version, held)
            return replace(outcome, version=held.version, lineage=held.lineage)

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and self._outcome is None

    def _run(self) -> None:
        _step_back()
        while True:
            with self._changed:
                order = self._order
            assert order is not None, "a thread is started for an order"
            outcome = _ended_early()
            try:
                outcome = pull(order, BACKGROUND_THREADS, self._tally, partial(self._pause, order))
            except Superseded:
                continue
            except Exception as problem:
                outcome = failure(problem)
            finally:  # also when the thread is killed: a poll must come to an end
                with self._changed:
                    is_last = self._order is order
                    if is_last:
                        self._outcome = outcome
            if is_last:
                return

    def _pause(self, order: Order, wait_s: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._order is not order, wait_s):
                raise Superseded


def _step_back() -> None:
    """On Linux a thread has a niceness of its own, and those that it starts inherit it."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        nice = os.getpriority(os.PRIO_PROCESS, thread) + _BACKGROUND_NICE
        os.setpriority(os.PRIO_PROCESS, thread, min(nice, 19))


def background_of(worker: Any, paths: LocalPaths) -> BackgroundPull:
    """The one of this rank for LOCAL."""
    pulls: dict[LocalPaths, BackgroundPull] = worker.__dict__.setdefault(_ATTRIBUTE, {})
    return pulls.setdefault(paths, BackgroundPull(paths))
