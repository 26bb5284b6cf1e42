"""What the loop does next: a pass, only the engines, or nothing. Pure: all clocks and chances come from outside."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from vime_sync.errors import LockHeld, SyncError, WrongBase
from vime_sync.reconcile.glance import Glance

# Without any change seen a pass is made all the same: stats can lie (network filesystems cache them).
HEARTBEAT_S = 60.0
_BACK_OFF_S = 1.0
_BACK_OFF_CAP_S = 60.0
# Whoever holds the lock is one of us most of the time, and soon done.
_LOCK_CAP_S = 5.0
# A version that is not ready and does not change for so long is not being written any more (FIELD_GUIDE S4).
STALLED_S = 600.0


class Step(enum.Enum):
    PASS = "pass"
    SERVE = "serve"
    REST = "rest"


@dataclass(frozen=True)
class Attempt:
    """The last pass: what was to be seen before it, how it ended, how many in a row ended badly. Monotonic seconds."""

    glance: Glance
    error: SyncError | None
    failures: int
    ended_s: float


def next_step(now_s: float, glance: Glance, last: Attempt | None, *, engines_lack: bool, chance: float) -> Step:
    """`engines_lack`: an engine has to be loaded. `chance` is a random number in [0, 1), for the jitter.

    What cannot change by itself is not tried again before something changed. The pass that is made after a while all
    the same looks and plans; a version that was tried and found bad it takes for unusable.
    """
    if last is None or glance != last.glance:
        return Step.PASS
    # Deltas made for another base are found out only by applying them, all of them.
    if now_s - last.ended_s >= HEARTBEAT_S and not isinstance(last.error, WrongBase):
        return Step.PASS
    if last.error is None:
        return Step.PASS if engines_lack else Step.REST
    if last.error.retryable and now_s - last.ended_s >= back_off_s(last, chance):
        return Step.PASS
    return Step.SERVE if engines_lack else Step.REST


def back_off_s(last: Attempt, chance: float) -> float:
    """Doubles with each failure up to a cap, and never the same on many hosts."""
    cap_s = _LOCK_CAP_S if isinstance(last.error, LockHeld) else _BACK_OFF_CAP_S
    return grown_s(last.failures, cap_s) * (0.5 + chance / 2)


def grown_s(failures: int, cap_s: float = _BACK_OFF_CAP_S) -> float:
    return min(cap_s, _BACK_OFF_S * 2.0 ** min(failures - 1, 16))
