"""The loop of `watch`: look, decide, make a pass or serve the engines, tell, sleep until something may have changed.

Level-triggered: each turn looks at what is there; what woke it does not matter. Ends by a signal at a safe point
(Interrupted), or by an error that only an operator can mend.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

from vime_sync.daemon.engine_care import EngineCare
from vime_sync.daemon.hints import Hints
from vime_sync.daemon.hooks import PreReadHook
from vime_sync.daemon.policy import STALLED_S, Attempt, Step, next_step
from vime_sync.daemon.progress import Progress
from vime_sync.daemon.settings import WatchSettings
from vime_sync.daemon.syncing import BackgroundSync
from vime_sync.daemon.telling import Teller
from vime_sync.daemon.view import Held, HeldView
from vime_sync.daemon.wake import Wake
from vime_sync.errors import Interrupted, LocalIOError, LockHeld, Malformed, NewStream, NotReady, SyncError
from vime_sync.local.lock import hold
from vime_sync.materialize.commit import distrust, note_durable
from vime_sync.materialize.context import Context, StopFlag
from vime_sync.reconcile import Request, reconcile, serve_local
from vime_sync.reconcile.glance import Glance, take_glance
from vime_sync.reconcile.request import load_local
from vime_sync.stream.catalog import Refusal

# Only an operator can mend these: usage, this host's disk, damage without a way to heal, a directory of others.
_FINAL = frozenset((2, 21, 22, 23))
# What was found wrong only by doing it: not to be done again before its files change.
_TRIED_AND_BAD = frozenset((12, 13))


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
        self._last: Attempt | None = None
        self._refused: dict[int, Refusal] = {}
        self._unready_since: dict[int, tuple[str | None, float]] = {}
        self._follow(settings)

    def run(self) -> None:
        """Raises Interrupted, or the SyncError that ends it."""
        self._teller.notifier.ready()  # not after the first pass: a first copy may take an hour
        try:
            while True:
                # One more look at once after work: what came meanwhile may have been noticed by nobody (V7).
                if not self._turn():
                    self._wake.wait(self._settings.poll_interval_s)
        finally:
            self._hints.stop()
            self._care.stop()

    def _follow(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._hook = None if settings.pre_read is None else PreReadHook(settings.pre_read)
        self._care = EngineCare(settings, self._teller, self._wake.poke)
        self._last = None

    def _turn(self) -> bool:
        """Whether something was done."""
        self._stop.check()
        self._progress.rest()
        settings = self._reread()
        if settings is not None:
            self._care.stop()
            self._follow(settings)
        self._settle_sync()
        held = self._held()
        self._hints.follow(self._settings.share or held.share)
        self._run_hook(held)
        glance = self._glance(held)
        self._teller.metrics.polled()
        lack = self._care.look(held)
        step = next_step(time.monotonic(), glance, self._last, engines_lack=lack, chance=random.random())
        if step is Step.PASS:
            self._pass(glance)
        elif step is Step.SERVE:
            self._serve()
        if step is not Step.REST or self._care.has_news():
            self._begin_sync()
            self._teller.standing(self._settings, self._held(), self._care.reports)
        return step is not Step.REST

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
        try:
            report = reconcile(self._context(), request, self._care.fleet)
        except Interrupted:
            raise
        except SyncError as trouble:
            problem = self._judge(trouble, glance)
        if problem is None:
            self._teller.passed(settings, report)
            skipped = report.plan.skipped if report.plan is not None else ()
            self._teller.skipped(settings, [self._stalled(item, glance) for item in skipped])
        else:
            self._teller.failed(settings, problem)
            if problem.code in _FINAL or isinstance(problem, NewStream):
                raise problem
        self._care.served()
        visible = set(glance.versions or ())
        self._refused = {version: known for version, known in self._refused.items() if version in visible}
        failures = 0 if problem is None else 1 if self._last is None else self._last.failures + 1
        self._last = Attempt(self._after(glance), problem, failures, time.monotonic())

    def _judge(self, problem: SyncError, glance: Glance) -> SyncError:
        version = problem.version
        seen = dict(glance.prints).get(version) if version is not None else None
        if problem.code in _TRIED_AND_BAD and version is not None and seen is not None:
            known = self._refused.get(version)
            if known is None or known.fingerprint != seen:
                self._refused[version] = Refusal(seen, problem)
                self._wake.poke()  # without it there may be a way to a version below
        return self._stalled(problem, glance)

    def _stalled(self, problem: SyncError, glance: Glance) -> SyncError:
        """Not ready for long, and nothing changes: that is malformed (S4)."""
        if not isinstance(problem, NotReady) or problem.version is None:
            return problem
        seen = dict(glance.prints).get(problem.version)
        since = self._unready_since.get(problem.version)
        if since is None or since[0] != seen:
            self._unready_since = {problem.version: (seen, time.monotonic()), **self._above(problem.version, glance)}
            return problem
        if time.monotonic() - since[1] < STALLED_S:
            return problem
        return Malformed(f"{problem.message}; unchanged for {STALLED_S / 60:.0f} minutes", version=problem.version)

    def _above(self, version: int, glance: Glance) -> dict[int, tuple[str | None, float]]:
        visible = set(glance.versions or ())
        return {key: value for key, value in self._unready_since.items() if key in visible and key != version}

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
        self._care.served()

    def _run_hook(self, held: Held) -> None:
        share = self._settings.share or held.share
        if self._hook is None or share is None:
            return
        ran = self._hook.run(share, self._settings.version, self._stop.check)
        if ran is None:
            return
        seconds, problem = ran
        self._teller.metrics.phase("hook", seconds)
        if problem is not None:
            self._teller.once("hook", "warning", f"--pre-read-hook failed: {problem}")
        else:
            self._teller.over("hook", "--pre-read-hook goes well again")

    def _begin_sync(self) -> None:
        local = self._held().local
        if local is not None and not local.state.durable:
            self._sync.begin(self._context(), local.state)

    def _settle_sync(self) -> None:
        ended = self._sync.fetch()
        if ended is None:
            return
        synced, problem, seconds = ended
        self._teller.metrics.phase("sync", seconds)
        paths = self._settings.paths
        try:
            with hold(paths, wait_s=0, check_stop=self._stop.check):
                local = load_local(paths)
                if problem is not None:
                    if local is not None:
                        distrust(self._context(), local.state)
                    raise problem
                if local is None or local.state != synced:
                    return  # another version is committed: it is synced in turn
                note_durable(self._context(), local.state)
        except LockHeld:
            return  # synced once more when the lock is free
        except OSError as trouble:
            raise LocalIOError(
                f"making version {synced.version} durable: {trouble.filename or paths.root}: {trouble.strerror}",
                hint="Look after the disk; at the next start every byte is hashed before it is believed.",
            ) from trouble
        if self._last is not None:
            self._last = replace(self._last, glance=replace(self._last.glance, local=self._glance(self._held()).local))
        self._teller.standing(self._settings, self._held(), self._care.reports)
