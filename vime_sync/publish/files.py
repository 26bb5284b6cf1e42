"""Files that are read for a publication: opened once, and each the very same after the last byte as before the first.

Reads only. What a change means depends on whose file it is; the owner says so by `changed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import SyncError
from vime_sync.model import FileStat

# Fills a view from a place in a tensor or file.
Reader = Callable[[memoryview, int], None]


class OpenFiles:
    """Safe to share between threads. `changed` makes the error for a file that is another one now."""

    def __init__(self, changed: Callable[[str], SyncError]) -> None:
        self._changed = changed
        self._files: dict[Path, fsio.File] = {}
        self._expected: dict[Path, FileStat] = {}
        self._guard = threading.Lock()

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def reader(self, path: Path, stat: FileStat, offset: int) -> Reader:
        """Reads what lies in the file from `offset` on; the file is opened at the first read."""

        def read(view: memoryview, position: int) -> None:
            try:
                self._open(path, stat).read_into(view, offset + position)
            except FileNotFoundError:
                raise self._changed(f"{path} is gone") from None
            except EOFError as problem:
                raise self._changed(str(problem)) from None

        return read

    def check_unchanged(self) -> None:
        """Raises what `changed` makes."""
        for path, expected in self._expected.items():
            try:
                found = fsio.stat(path)
            except FileNotFoundError:
                raise self._changed(f"{path} is gone") from None
            if found != expected:
                raise self._changed(f"{path} changed while it was read")

    def _open(self, path: Path, stat: FileStat) -> fsio.File:
        with self._guard:
            file = self._files.get(path)
            if file is None:
                file = fsio.File(path)
                self._files[path] = file
                self._expected[path] = stat
                if file.stat() != stat:
                    raise self._changed(f"{path} changed since it was looked at")
            return file
