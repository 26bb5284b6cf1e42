"""Asking something that may never answer: in a thread, waited for only so long, and not asked twice meanwhile.

A stat on a network filesystem whose server is gone hangs, and so does whoever made it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Aside(Generic[Value]):
    """One question. `wake` is called when the answer comes after all, once somebody has stopped waiting for it."""

    def __init__(self, ask: Callable[[], Value], wake: Callable[[], None]) -> None:
        self._ask = ask
        self._wake = wake
        self._is_late = False
        self._answer: Value | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="aside")
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Whether there is an answer."""
        self._thread.join(timeout_s)
        self._is_late = self._thread.is_alive()
        return not self._is_late

    @property
    def answer(self) -> Value:
        """Only once there is one. Raises what the question raised."""
        if self._problem is not None:
            raise self._problem
        assert self._answer is not None, "asked before the end"
        return self._answer

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except BaseException as problem:  # handed on to whoever waits
            self._problem = problem
        finally:
            if self._is_late:
                self._wake()
