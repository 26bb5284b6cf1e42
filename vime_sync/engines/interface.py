"""What an engine is to the rest: it can be looked at, and it can be brought to load a directory."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vime_sync.engines.spec import EngineSpec
from vime_sync.errors import SyncError
from vime_sync.model import Weights


class EngineState(str, enum.Enum):
    """What is known of an engine. FAILED: its load did; unless it said no beforehand, it is left paused."""

    AT_VERSION = "at_version"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Load:
    """What an engine is to load: verified bytes under an absolute path that nobody changes meanwhile.

    `share` and `base` are for engines that span hosts: where the other hosts find the same weights.
    """

    weights: Weights
    path: Path
    share: str | None = None
    base: str | None = None


@dataclass(frozen=True)
class Sighting:
    """What an engine tells of itself at a look. None: it does not say."""

    version: str | None
    is_paused: bool | None = None


@dataclass(frozen=True)
class EngineReport:
    """Where an engine stands after a look or a load. `version` is what it is known to have loaded.

    `is_current`: it holds the committed local bytes; `is_paused`: but others have paused it. `was_tried`: a load was
    tried just now, in `seconds`.
    """

    spec: EngineSpec
    state: EngineState
    version: int | None = None
    error: SyncError | None = None
    is_current: bool = False
    is_paused: bool = False
    was_tried: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Turn:
    """How a load begins, and what has to hold around it.

    `was_left_paused`: a load before this one was not finished. `is_in_doubt`: one failed in this very engine, so that
    an answer alone proves nothing, and a completion has to. `leave_paused`: others had paused it. `before_pause` is to
    be called right before the first request that changes the engine: from then on it may be left paused, and that has
    to be on record (FIELD_GUIDE E7). `is_untouched` says whether the files still are what was proven.
    """

    was_left_paused: bool
    is_in_doubt: bool
    leave_paused: bool
    before_pause: Callable[[], None]
    is_untouched: Callable[[], bool]

    @property
    def may_resume(self) -> bool:
        """Whether it served whole weights before: where nothing was loaded yet, it may go on with them."""
        return not (self.was_left_paused or self.leave_paused)


class Engine(Protocol):
    """One engine. All calls block up to the timeouts of the settings; all raise the Engine* errors."""

    @property
    def spec(self) -> EngineSpec: ...

    def look(self) -> Sighting:
        """Raises EngineUnreachable, and EngineBusy while it is loading."""

    def load(self, load: Load, turn: Turn) -> Sighting:
        """Pause, load, clear caches, resume, each step checked; what it then tells of itself.

        After EngineNotReady it serves what it served; after any other error it has not been resumed.
        """
