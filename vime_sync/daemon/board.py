"""What the daemon last knew, for those who ask over HTTP: one frozen snapshot, exchanged as a whole.

Who reads it never waits for a pass, and never makes one do anything.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
    """Where the loop puts the last snapshot, and threads that answer requests read it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._snapshot = Snapshot()

    def put(self, snapshot: Snapshot) -> None:
        with self._guard:
            self._snapshot = snapshot

    @property
    def snapshot(self) -> Snapshot:
        with self._guard:
            return self._snapshot
