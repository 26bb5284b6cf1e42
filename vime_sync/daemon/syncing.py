"""Making a committed version durable behind the loop: the slow part in a thread, the record of it under the lock.

The thread only asks the kernel to write what is there; it takes no lock and changes no file of ours, so a pass may
begin meanwhile. Only where the version is still the committed one when all is on the disk does the state say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from vime_sync.materialize.commit import sync_files
from vime_sync.materialize.context import Context, Tally
from vime_sync.model import LocalState


@dataclass(frozen=True)
class Synced:
    """How a sync ended: whose files, what went wrong, in how many seconds. Not `is_whole`: a file was not there."""

    state: LocalState
    problem: OSError | None
    seconds: float
    is_whole: bool


class BackgroundSync:
    """One sync at a time; `wake` is called when it has ended."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._ended: Synced | None = None

    def begin(self, context: Context, state: LocalState) -> None:
        """Does nothing while one runs, or its end was not settled yet."""
        if self._thread is not None:
            return
        quiet = Context(context.paths, context.threads, context.stop, Tally(), context.durable)
        self._thread = threading.Thread(target=self._run, args=(quiet, state), daemon=True, name="sync")
        self._thread.start()

    @property
    def ended(self) -> Synced | None:
        """How the last one ended, until that is settled: a failure is told by the kernel only once."""
        return self._ended

    def settled(self) -> None:
        self._ended = self._thread = None

    def _run(self, context: Context, state: LocalState) -> None:
        started = time.monotonic()
        problem: OSError | None = None
        is_whole = True
        try:
            sync_files(context, state)
        except FileNotFoundError:
            is_whole = False  # another version has taken its place, or a pass will see that it is gone
        except OSError as trouble:
            problem = trouble
        finally:
            self._ended = Synced(state, problem, time.monotonic() - started, is_whole)
            self._wake()
