"""What the daemon last knew, for those who ask over HTTP: one frozen snapshot, exchanged as a whole.

Who reads it never waits for a pass, and never makes one do anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# Longer than any step of a pass that moves nothing, and than the longest rest between two turns but for a slow poll.
STALE_S = 120.0


@dataclass(frozen=True)
class EngineView:
    """One engine as it stands now. `address` is HOST:PORT; `is_ready`: it serves the committed local version."""

    url: str
    kind: str
    address: str
    state: str
    version: int | None
    error: str | None
    is_ready: bool


@dataclass(frozen=True)
class Snapshot:
    """`document` is the `vime-sync/status/1` document; `reason` says why the host is not ready, else is empty."""

    document: Mapping[str, Any] = field(default_factory=dict)
    is_ready: bool = False
    reason: str = "the first pass has not ended yet"
    engines: tuple[EngineView, ...] = ()


class Board:
    """Where the loop puts the last snapshot, and threads that answer requests read it.

    What is older than `stale_s` without a beat of the loop, or of the work in it, is no ground for being ready.
    """

    def __init__(self, stale_s: float = STALE_S) -> None:
        self._guard = threading.Lock()
        self._snapshot = Snapshot()
        self._stale_s = stale_s
        self._beaten_s = time.monotonic()

    def beat(self) -> None:
        """The loop turned, or work went on."""
        self._beaten_s = time.monotonic()

    def put(self, snapshot: Snapshot) -> None:
        with self._guard:
            self._snapshot = snapshot

    @property
    def snapshot(self) -> Snapshot:
        with self._guard:
            silent_s = time.monotonic() - self._beaten_s
            if silent_s < self._stale_s or not self._snapshot.is_ready:
                return self._snapshot
            engines = tuple(replace(view, is_ready=False) for view in self._snapshot.engines)
            reason = f"nothing has moved for {silent_s:.0f} s: the share or this host's disk hangs"
            return replace(self._snapshot, is_ready=False, reason=reason, engines=engines)
