"""Making a committed version durable behind the loop: the slow part in a thread, the record of it under the lock.

The thread only asks the kernel to write what is there; it takes no lock and changes no file of ours, so a pass may
begin meanwhile. Only where the version is still the committed one when all is on the disk does the state say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vime_sync.materialize.commit import sync_files
from vime_sync.materialize.context import Context, Tally
from vime_sync.model import LocalState


class BackgroundSync:
    """One sync at a time; `wake` is called when it has ended."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._problem: OSError | None = None
        self._state: LocalState | None = None
        self._seconds = 0.0

    def begin(self, context: Context, state: LocalState) -> None:
        """Does nothing while one runs, or its end was not fetched yet."""
        if self._state is not None:
            return
        self._state, self._problem = state, None
        quiet = Context(context.paths, context.threads, context.stop, Tally(), context.durable)
        self._thread = threading.Thread(target=self._run, args=(quiet, state), daemon=True, name="sync")
        self._thread.start()

    def fetch(self) -> tuple[LocalState, OSError | None, float] | None:
        """The state whose files were synced, what went wrong, and seconds; None while there is no such end."""
        if self._state is None or self._thread is None or self._thread.is_alive():
            return None
        state, self._state, self._thread = self._state, None, None
        return state, self._problem, self._seconds

    def _run(self, context: Context, state: LocalState) -> None:
        started = time.monotonic()
        try:
            sync_files(context, state)
        except OSError as problem:
            self._problem = problem
        finally:
            self._seconds = time.monotonic() - started
            self._wake()
