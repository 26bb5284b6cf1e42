"""What a rank answers: plain JSON in every case, and never an exception.

An exception in one rank leaves the other ranks' answers in their queues, where the next call takes them for its own;
a value that cannot be sent hangs the engine for good. So everything that leaves here is text, finite numbers, truth
values and lists of them.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vime_sync.errors import LocalIOError, SyncError
from vime_sync.vllm_extension.engine_model import engine_model

_MAX_TEXT = 4000
# What the engine's own wire format can carry.
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Outcome:
    """How a call went; `version` and `lineage` are what the directory holds.

    `error` is the id of what went wrong and `retryable` whether trying again can help. `touched` says that the
    rank's own weights may be others than before. `details` are further plain fields.
    """

    success: bool
    message: str
    version: int | None = None
    lineage: str | None = None
    done: bool = True
    error: str | None = None
    retryable: bool = False
    touched: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)

    def document(self, nonce: Any, rank: Any) -> dict[str, Any]:
        fields = {
            **self.details,
            "nonce": nonce,
            "success": self.success,
            "message": self.message,
            "rank": rank if isinstance(rank, int) else -1,
            "host": os.uname().nodename,
            "version": self.version,
            "weight_version": None if self.version is None else str(self.version),
            "lineage": self.lineage,
            "done": self.done,
            "error": self.error,
            "retryable": self.retryable,
            "touched": self.touched,
        }
        return {name: plain(value) for name, value in fields.items()}


def failure(problem: BaseException, *, version: int | None = None, lineage: str | None = None) -> Outcome:
    """A failed call whose directory holds that version."""
    if isinstance(problem, SyncError):
        hint = {"hint": problem.hint}
        return Outcome(
            False, problem.message, version, lineage, error=problem.id, retryable=problem.retryable, details=hint
        )
    kind = LocalIOError if isinstance(problem, OSError) else SyncError
    return Outcome(False, f"{type(problem).__name__}: {problem}", version, lineage, error=kind.id)


def plain(value: Any) -> Any:
    """`value` if it can be sent, else the nearest thing that can."""
    if value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _LARGEST else "int"  # very long ones have no text either
    if isinstance(value, str):
        return value[:_MAX_TEXT].encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return type(value).__name__


def answering(method: Callable[..., Outcome]) -> Callable[..., dict[str, Any]]:
    """The method as it is called from outside: whatever arguments come and whatever happens, it answers.

    What ends a process (KeyboardInterrupt, SystemExit) goes through.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def answer(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        nonce = kwargs.get("nonce")
        try:
            engine_model(self)  # the first call of any kind sees where the engine came from
            bound = signature.bind(self, *args, **kwargs)
            nonce = bound.arguments.get("nonce")
            outcome = method(*bound.args, **bound.kwargs)
        except Exception as problem:
            outcome = failure(problem)
        return outcome.document(nonce, getattr(self, "rank", None))

    return answer
