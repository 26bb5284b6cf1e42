"""Threads that work on what the caller's own thread hands out, one thing at a time. Nothing outlives the call.

The things are taken from their iterator in the caller's thread alone, and only as fast as they are worked on: a
trainer's generator may gather from devices, and its arrays may be large.
"""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Check = Callable[[], None]
Work = Callable[[Item], None]

_PATIENCE_S = 0.1


class _Abandoned(Exception):
    """Another thread failed: stop at the next block. Never leaves this module."""


def run_crew(threads: int, items: Iterable[Item], make_work: Callable[[Check], Work[Item]], check_stop: Check) -> None:
    """Do the work on every item; each thread has one of its own from `make_work`, given what to ask at every block.

    One thread is the caller's. At most `threads` + 2 items are held at once. Raises the first failure, once every
    thread has ended.
    """
    if threads == 1:
        work = make_work(check_stop)
        for item in items:
            check_stop()
            work(item)
        return
    crew = _Crew(make_work, check_stop)
    try:
        crew.start(threads)
        for item in items:
            if not crew.hand_out(item):
                break
    finally:
        crew.end()
    if crew.failure is not None:
        raise crew.failure


class _Crew(Generic[Item]):
    def __init__(self, make_work: Callable[[Check], Work[Item]], check_stop: Check) -> None:
        self.failure: BaseException | None = None
        self._make_work = make_work
        self._check_stop = check_stop
        self._queue: queue.Queue[tuple[Item] | None] = queue.Queue(1)
        self._threads: list[threading.Thread] = []
        self._guard = threading.Lock()

    def start(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._work, name="vime-sync-publish")
            try:
                thread.start()
            except RuntimeError as problem:  # no more threads to be had
                self._fail(OSError(errno.EAGAIN, f"starting a thread: {problem}"))
                return
            self._threads.append(thread)

    def hand_out(self, item: Item) -> bool:
        """False once a thread has failed. Raises Interrupted."""
        while self.failure is None:
            self._check_stop()
            try:
                self._queue.put((item,), timeout=_PATIENCE_S)
            except queue.Full:
                continue
            return True
        return False

    def end(self) -> None:
        for _ in self._threads:
            self._queue.put(None)  # a failed thread goes on taking: this never waits for ever
        for thread in self._threads:
            thread.join()

    def _check(self) -> None:
        if self.failure is not None:
            raise _Abandoned
        self._check_stop()

    def _fail(self, problem: BaseException) -> None:
        with self._guard:
            if self.failure is None:
                self.failure = problem

    def _work(self) -> None:
        work: Work[Item] | None = None
        while (handed := self._queue.get()) is not None:
            if self.failure is not None:
                continue
            try:
                work = work or self._make_work(self._check)
                work(handed[0])
            except _Abandoned:
                continue
            except BaseException as problem:
                self._fail(problem)
            del handed  # held no longer than it is worked on
