"""How long versions have been unready without a change: one that nobody writes to any more is malformed (S4)."""

from __future__ import annotations

from vime_sync.daemon.policy import STALLED_S
from vime_sync.errors import Malformed, NotReady, SyncError
from vime_sync.reconcile.glance import Glance


class Unready:
    def __init__(self) -> None:
        self._since: dict[int, tuple[str | None, float]] = {}

    def judge(self, problem: SyncError, glance: Glance, now_s: float) -> SyncError:
        """`problem`, or Malformed where it is that the version is not ready, and its files stood still too long."""
        visible = set(glance.versions or ())
        self._since = {version: since for version, since in self._since.items() if version in visible}
        if not isinstance(problem, NotReady) or problem.version is None:
            return problem
        seen = dict(glance.prints).get(problem.version)
        known, since_s = self._since.get(problem.version, (None, now_s))
        if known != seen:
            since_s = now_s
        self._since[problem.version] = (seen, since_s)
        if now_s - since_s < STALLED_S:
            return problem
        return Malformed(f"{problem.message}; unchanged for {STALLED_S / 60:.0f} minutes", version=problem.version)
