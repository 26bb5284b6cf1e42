"""The files of LOCAL that a job changes in place."""

from __future__ import annotations

import threading

from vime_sync import fsio
from vime_sync.local.paths import LocalPaths


class LocalFiles:
    """LOCAL's shards, opened for writing when first needed. Safe to share between threads."""

    def __init__(self, paths: LocalPaths) -> None:
        self._paths = paths
        self._files: dict[str, fsio.File] = {}
        self._guard = threading.Lock()

    def __enter__(self) -> LocalFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def get(self, name: str) -> fsio.File:
        with self._guard:
            if name not in self._files:
                self._files[name] = fsio.File(self._paths.file(name), write=True)
            return self._files[name]
