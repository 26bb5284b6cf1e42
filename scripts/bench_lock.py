"""How much of a pass is spent in calls that release the interpreter lock, by timing each of those calls.

Wraps, for the time of one pass, what the package calls for its bulk work: positioned reads and writes, syncs, the
zstd decoder, digests and xor. The rest of the CPU time counts as the interpreter's, also what cannot be wrapped: the
fancy-index copies of an overwrite, in which numpy gives the lock up too, so that the figure of an overwrite is a lower
bound. Calls on less than a few KiB may keep the lock and count as holding it, as does the wrappers' own time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import xxhash
import zstandard

_LEAST_BYTES = 4096


class _Clock:
    """Sums CPU time of the calling threads, so that waiting does not count."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.total_ns = 0

    def wrap(self, function: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time_ns()
            result = function(*args, **kwargs)
            spent = time.thread_time_ns() - begun
            if size(*args) >= _LEAST_BYTES:
                with self._guard:
                    self.total_ns += spent
            return result

        return timed


class _Proxy:
    """An object of a C type with one method timed."""

    def __init__(self, inner: Any, clock: _Clock, method: str) -> None:
        self._inner = inner
        setattr(self, method, clock.wrap(getattr(inner, method), lambda data, *_: len(memoryview(data).cast("B"))))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def _watching(clock: _Clock) -> Iterator[None]:
    any_size = lambda *_: _LEAST_BYTES  # noqa: E731
    plain_hasher, plain_decompressor = xxhash.xxh3_128, zstandard.ZstdDecompressor

    def hasher(*args: Any) -> Any:
        return _Proxy(plain_hasher(*args), clock, "update")

    class Decompressor:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._inner = plain_decompressor(*args, **kwargs)

        def stream_reader(self, *args: Any, **kwargs: Any) -> Any:
            return _Proxy(self._inner.stream_reader(*args, **kwargs), clock, "readinto")

    with ExitStack() as stack:
        replaced: list[tuple[Any, str, Callable[..., Any]]] = [
            (os, "preadv", clock.wrap(os.preadv, lambda _, buffers, *__: len(buffers[0]))),
            (os, "pread", clock.wrap(os.pread, lambda _, size, *__: int(size))),
            (os, "pwrite", clock.wrap(os.pwrite, lambda _, data, *__: len(data))),
            (os, "fsync", clock.wrap(os.fsync, any_size)),
            (np, "bitwise_xor", clock.wrap(np.bitwise_xor, lambda one, *_: int(one.nbytes))),
            (xxhash, "xxh3_128", hasher),
            (xxhash, "xxh3_64_intdigest", clock.wrap(xxhash.xxh3_64_intdigest, lambda data, *_: len(data))),
            (zstandard, "ZstdDecompressor", Decompressor),
        ]
        for owner, name, replacement in replaced:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


def native_seconds(work: Callable[[], object]) -> float:
    """CPU seconds that `work` spent in calls which release the lock, over all of its threads."""
    clock = _Clock()
    with _watching(clock):
        work()
    return clock.total_ns / 1e9
