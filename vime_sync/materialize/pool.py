"""Threads over a list of things, stopping at the first failure. Nothing outlives the call."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from vime_sync.materialize.context import Buffers, Context

Item = TypeVar("Item")

_LOOKAHEAD = 256
_PREPARERS = 4
_PATIENCE_S = 0.1


class Abandoned(Exception):
    """Another thread failed: stop at the next block. Never leaves this package."""


class _Shared(Generic[Item]):
    """An iterator for many threads, and the first failure of any of them."""

    def __init__(self, items: Iterable[Item], context: Context) -> None:
        self._items = iter(items)
        self._guard = threading.Lock()
        self._context = context
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[Item]:
        while self.failure is None:
            with self._guard:
                try:
                    item = next(self._items)
                except StopIteration:
                    return
            yield item

    def check(self) -> None:
        """Raises Abandoned or Interrupted; asked at every block."""
        if self.failure is not None:
            raise Abandoned
        self._context.stop.check()

    def fail(self, problem: BaseException) -> None:
        with self._guard:
            if self.failure is None:
                self.failure = problem


Check = Callable[[], None]
Work = Callable[[Item, Buffers, Check], None]
Prepare = Callable[[Item, Check], None]


def run(context: Context, items: Iterable[Item], work: Work[Item], prepare: Prepare[Item] | None = None) -> None:
    """Do `work` on every item, each after its `prepare` where given, which runs ahead in threads of its own.

    Raises the first failure, once every thread has ended.
    """
    shared = _Shared(items, context)
    if prepare is None:
        threads = [threading.Thread(target=_work, args=(shared, shared, work)) for _ in range(context.threads)]
    else:
        ready = _Ready(shared, prepare, min(_PREPARERS, context.threads), context.threads)
        threads = [threading.Thread(target=ready.fill) for _ in range(ready.preparers)]
        threads += [threading.Thread(target=_work, args=(shared, ready, work)) for _ in range(context.threads)]
    started = []
    for thread in threads:
        try:
            thread.start()
        except RuntimeError as problem:  # no more threads to be had: the ones that run must end all the same
            shared.fail(OSError(errno.EAGAIN, f"starting a thread: {problem}"))
            break
        started.append(thread)
    for thread in started:
        thread.join()
    if shared.failure is not None:
        raise shared.failure


def _work(shared: _Shared[Item], items: Iterable[Item], work: Work[Item]) -> None:
    try:
        buffers = Buffers()
        for item in items:
            shared.check()
            work(item, buffers, shared.check)
    except Abandoned:
        return
    except BaseException as problem:
        shared.fail(problem)


class _Ready(Generic[Item]):
    """Prepared items on their way to the workers; a few ahead, so that slow reads overlap the work."""

    def __init__(self, shared: _Shared[Item], prepare: Prepare[Item], preparers: int, workers: int) -> None:
        self._shared = shared
        self._prepare = prepare
        self._queue: queue.Queue[Item | None] = queue.Queue(_LOOKAHEAD)
        self._left = preparers
        self._workers = workers
        self._guard = threading.Lock()
        self.preparers = preparers

    def fill(self) -> None:
        try:
            for item in self._shared:
                self._shared.check()
                self._prepare(item, self._shared.check)
                self._put(item)
            with self._guard:
                self._left -= 1
                last = self._left == 0
            for _ in range(self._workers if last else 0):
                self._put(None)
        except Abandoned:
            return
        except BaseException as problem:
            self._shared.fail(problem)

    def _put(self, item: Item | None) -> None:
        while True:
            self._shared.check()
            try:
                self._queue.put(item, timeout=_PATIENCE_S)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[Item]:
        while True:
            self._shared.check()
            try:
                item = self._queue.get(timeout=_PATIENCE_S)
            except queue.Empty:
                continue
            if item is None:
                return
            yield item
