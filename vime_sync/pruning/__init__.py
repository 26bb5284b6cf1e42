"""Pruning: which published versions no host can need any more, and taking those away.

The decision is pure (`decide`, `hosts`); `look` reads the share, `remove` is one of the few writers on it,
and `lock` lets one prune at a time be at that.
"""

from vime_sync.pruning.decide import BASE, Decision, Kind, decide
from vime_sync.pruning.hosts import Holder, oldest_holder, read_holders
from vime_sync.pruning.lock import LOCK_NAME, hold
from vime_sync.pruning.look import Share, Version, look
from vime_sync.pruning.remove import finish, remove

__all__ = [
    "BASE",
    "LOCK_NAME",
    "Decision",
    "Holder",
    "Kind",
    "Share",
    "Version",
    "decide",
    "finish",
    "hold",
    "look",
    "oldest_holder",
    "read_holders",
    "remove",
]
