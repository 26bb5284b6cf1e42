"""The loop of `watch`: look, decide, make a pass or serve the engines, tell, sleep until something may have changed.

Level-triggered: each turn looks at what is there; what woke it does not matter. Ends by a signal at a safe point
(Interrupted), or by an error that only an operator can mend.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import replace

from vime_sync.daemon.aside import Aside
from vime_sync.daemon.engine_care import EngineCare
from vime_sync.daemon.hints import Hints
from vime_sync.daemon.hooks import FailureCommand, PreReadHook
from vime_sync.daemon.policy import Attempt, Step, next_step
from vime_sync.daemon.progress import Progress
from vime_sync.daemon.settings import WatchSettings
from vime_sync.daemon.syncing import BackgroundSync
from vime_sync.daemon.telling import Teller
from vime_sync.daemon.unready import Unready
from vime_sync.daemon.view import Held, HeldView
from vime_sync.daemon.wake import Wake
from vime_sync.errors import ChecksumMismatch, Interrupted, LocalIOError, LockHeld, NewStream, SyncError
from vime_sync.local.lock import hold
from vime_sync.local.records import read_engines
from vime_sync.materialize.commit import distrust, note_durable
from vime_sync.materialize.context import Context, StopFlag
from vime_sync.model import LocalState
from vime_sync.reconcile import Request, reconcile, serve_local
from vime_sync.reconcile.glance import Glance, take_glance
from vime_sync.reconcile.request import load_local
from vime_sync.stream.catalog import Refusal

# Only an operator can mend these: usage, this host's disk, damage without a way to heal, a directory of others.
_FINAL = frozenset((2, 21, 22, 23))
# A glance is a matter of milliseconds, but where a server is gone.
_PATIENCE_S = 1.0
_LEAST_TURN_S = 0.05


class Daemon:
    """One LOCAL. `reread` gives other settings when a signal asked for them, else None."""

    def __init__(
        self,
        settings: WatchSettings,
        stop: StopFlag,
        wake: Wake,
        teller: Teller,
        progress: Progress,
        reread: Callable[[], WatchSettings | None],
    ) -> None:
        self._stop, self._wake, self._teller, self._progress = stop, wake, teller, progress
        self._reread = reread
        self._hints = Hints(wake.poke)
        self._sync = BackgroundSync(wake.poke)
        self._view = HeldView(settings.paths)
        self._command = FailureCommand(teller.log.event)
        self._last: Attempt | None = None
        self._chance = 0.5
        self._glancing: Aside[Glance] | None = None
        self._refused: dict[int, Refusal] = {}
        self._unready = Unready()
        self._not_whole: LocalState | None = None
        self._hook: PreReadHook | None = None
        self._follow(settings)

    def run(self) -> None:
        """Raises Interrupted, or the SyncError that ends it."""
        self._teller.notifier.ready()  # not after the first pass: a first copy may take an hour
        try:
            self._begin()
            while True:
                # One more look at once after work: what came meanwhile may have been noticed by nobody (V7).
                turned_s = time.monotonic()
                if not self._turn() and self._wake.wait(self._settings.poll_interval_s):
                    # Whatever is written below the share wakes us, also what is none of ours.
                    time.sleep(max(0.0, turned_s + _LEAST_TURN_S - time.monotonic()))
        except Interrupted:
            raise
        except SyncError as problem:
            self._teller.failed(self._settings, problem)
            raise
        finally:
            self._hints.stop()
            self._command.stop()
            with contextlib.suppress(SyncError):
                self._teller.ack(self._settings, self._held(), self._care.reports)

    def _begin(self) -> None:
        """What must not wait for the first pass, which may be long, or for a share that hangs."""
        held = self._held()
        self._teller.ack(self._settings, held, ())
        if held.weights is not None and any(memory.is_open for memory in read_engines(self._settings.paths).values()):
            self._serve()  # an engine that was left paused is finished now (E7)
            self._care.tell()

    def _follow(self, settings: WatchSettings) -> None:
        self._settings = settings
        if settings.pre_read is None:
            self._hook = None
        elif self._hook is None:
            self._hook = PreReadHook(settings.pre_read, self._wake.poke)
        else:
            self._hook.become(settings.pre_read)
        self._care = EngineCare(settings, self._teller, self._command, self._wake.poke)
        self._last = None

    def _turn(self) -> bool:
        """Whether something was done."""
        self._stop.check()
        self._progress.rest()
        settings = self._reread()
        if settings is not None:
            self._follow(settings)
        self._settle_sync()
        held = self._held()
        engines_lack = self._care.look(held)
        step = Step.SERVE if engines_lack and self._last is not None else Step.REST
        glance = self._seen(held) if self._hook_has_run(held) else None
        if glance is not None:
            self._teller.metrics.polled()
            step = next_step(time.monotonic(), glance, self._last, engines_lack=engines_lack, chance=self._chance)
            if step is Step.PASS:
                self._pass(glance)
        if step is Step.SERVE:
            self._serve()
        has_news = self._care.tell()
        self._begin_sync()
        if step is not Step.REST or has_news:
            self._teller.standing(self._settings, self._held(), self._care.reports, look=step is Step.PASS)
        return step is not Step.REST

    def _seen(self, held: Held) -> Glance | None:
        """A glance, or None while the share hangs: then engines and signals are cared for all the same."""
        if self._glancing is None:
            self._glancing = Aside(lambda: self._look_at_share(held), self._wake.poke)
        if not self._glancing.wait(_PATIENCE_S):
            self._teller.once("share", "warning", "the share does not answer: waiting for it")
            return None
        self._teller.over("share", "the share answers again")
        glancing, self._glancing = self._glancing, None
        return glancing.answer

    def _look_at_share(self, held: Held) -> Glance:
        self._hints.follow(self._settings.share or held.share)
        return self._glance(held)

    def _held(self) -> Held:
        try:
            return self._view.get()
        except OSError as problem:
            raise LocalIOError(f"{problem.filename or self._settings.paths.root}: {problem.strerror}") from problem

    def _glance(self, held: Held) -> Glance:
        settings = self._settings
        return take_glance(
            settings.paths, settings.share or held.share, settings.base or held.base, held.version, settings.version
        )

    def _context(self) -> Context:
        settings = self._settings
        return Context(settings.paths, settings.threads, self._stop, self._progress.tally(), settings.durable)

    # ---- a pass

    def _pass(self, glance: Glance) -> None:
        settings = self._settings
        request = Request(
            settings.share,
            settings.base,
            settings.version,
            settings.adopt,
            refuse_new_stream=settings.refuse_new_stream,
            sync_later=True,
            refused=self._refused,
        )
        problem: SyncError | None = None
        is_news = False
        try:
            report = reconcile(self._context(), request, self._care.fleet)
        except Interrupted:
            raise
        except SyncError as trouble:
            is_news = self._refuse(trouble, glance)
            problem = self._unready.judge(trouble, glance, time.monotonic())
        if problem is None:
            self._teller.passed(settings, report)
            skipped = report.plan.skipped if report.plan is not None else ()
            self._teller.skipped(settings, [self._unready.judge(item, glance, time.monotonic()) for item in skipped])
        elif problem.code in _FINAL or isinstance(problem, NewStream):
            self._care.tell()
            raise problem
        else:
            self._teller.failed(settings, problem)
        failures = 0 if problem is None else 1 if self._last is None else self._last.failures + 1
        # What is known to be bad now is passed over at once: below it there may be a good version.
        self._chance = random.random()  # drawn once for each wait: the first of many draws would always win
        self._last = None if is_news else Attempt(self._after(glance), problem, failures, time.monotonic())

    def _refuse(self, problem: SyncError, glance: Glance) -> bool:
        """Remember a version that was found bad by applying it, with its files' stats; whether that is new."""
        visible = set(glance.versions or ())
        self._refused = {version: known for version, known in self._refused.items() if version in visible}
        version = problem.version
        seen = dict(glance.prints).get(version) if version is not None else None
        if version is None or seen is None or problem.code != ChecksumMismatch.code:
            return False
        known = self._refused.get(version)
        if known is not None and known.fingerprint == seen:
            return False
        self._refused[version] = Refusal(seen, problem)
        return True

    def _after(self, before: Glance) -> Glance:
        """What the next glance is held against: what this pass saw of the share, and the record as it is now."""
        after = self._glance(self._held())
        covered = {version for version, _ in after.prints}
        same = after.versions == before.versions and after.prints == tuple(
            item for item in before.prints if item[0] in covered
        )
        return after if same else replace(before, local=after.local)

    # ---- beside it

    def _serve(self) -> None:
        try:
            serve_local(self._context(), self._care.fleet, wait_s=0)
        except Interrupted:
            raise
        except LockHeld:
            return  # its holder brings the engines along, or the next turn does
        except SyncError as problem:
            self._teller.failed(self._settings, problem)
            self._last = None  # a pass heals

    def _hook_has_run(self, held: Held) -> bool:
        """Whether the share may be looked at."""
        share = self._settings.share or held.share
        if self._hook is None or share is None:
            return True
        may_look, ran = self._hook.turn(share, self._settings.version)
        if ran is not None and ran.is_late:
            told = f"--pre-read-hook has not ended after {ran.seconds:.0f} s; the share is looked at without it"
            self._teller.once("hook", "warning", told)
        elif ran is not None:
            self._teller.metrics.phase("hook", ran.seconds)
            if ran.problem is None:
                self._teller.over("hook", "--pre-read-hook goes well again")
            else:
                self._teller.once("hook", "warning", f"--pre-read-hook failed: {ran.problem}")
        return may_look

    def _begin_sync(self) -> None:
        local = self._held().local
        if local is not None and not local.state.durable and local.state != self._not_whole:
            self._sync.begin(self._context(), local.state)

    def _settle_sync(self) -> None:
        """What a sync in the background came to. A failure is kept until the lock is ours: it is told only once."""
        ended = self._sync.ended
        if ended is None:
            return
        paths = self._settings.paths
        try:
            with hold(paths, wait_s=0, check_stop=self._stop.check):
                local = load_local(paths)
                if ended.problem is not None:
                    if local is not None:
                        distrust(self._context(), local.state)
                    raise ended.problem
                is_same = local is not None and local.state == ended.state
                if is_same and ended.is_whole:
                    note_durable(self._context(), ended.state)
        except LockHeld:
            return
        except OSError as trouble:
            raise LocalIOError(
                f"making version {ended.state.version} durable: {trouble.filename or paths.root}: {trouble.strerror}",
                hint="Look after the disk; at the next start every byte is hashed before it is believed.",
            ) from trouble
        self._sync.settled()
        self._teller.metrics.phase("sync", ended.seconds)
        if not is_same:
            return  # another version is committed: it is synced in turn
        if not ended.is_whole:
            self._not_whole, self._last = ended.state, None  # a file is gone: a pass heals, or says why it cannot
        elif self._last is not None:
            # Without the share: it may hang.
            now = take_glance(paths, None, None, ended.state.version, None)
            self._last = replace(self._last, glance=replace(self._last.glance, local=now.local))
        self._teller.standing(self._settings, self._held(), self._care.reports)
