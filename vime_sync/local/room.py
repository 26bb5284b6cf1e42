"""Room on LOCAL's filesystem: what is free, and what of ours may go to make more."""

from __future__ import annotations

from pathlib import Path

from vime_sync import fsio
from vime_sync.local.paths import LocalPaths

# Beside the data itself: digest table, intent, journal, state.
SPARE_BYTES = 64 << 20


def make_room(paths: LocalPaths, needed_bytes: int) -> int:
    """What is free; where that is too little, after giving up the kept pass, which only a rollback would miss."""
    if needed_bytes > fsio.free_bytes(paths.sync) and paths.kept.is_dir():
        fsio.remove_tree(paths.kept)
    return fsio.free_bytes(paths.sync)


def tree_bytes(directory: Path) -> int:
    """The sizes of the files right in a directory of ours; 0 where there is none."""
    return sum(fsio.stat(path).size_bytes for path in directory.iterdir()) if directory.is_dir() else 0
