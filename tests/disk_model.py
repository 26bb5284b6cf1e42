"""A disk that can lose power: `crash` leaves one of the states that a power loss could have left.

What was synced is always kept, figures of files (times, inode) included: a page that was lost shows in no stat.
Afterwards the host has another boot id. Not modelled: links, more than one process.
"""

import random
import shutil
from dataclasses import replace
from pathlib import Path, PurePath

from tests.disk_noting import NotingDisk
from tests.disk_tree import Entry, Folder, Loss, Node, content_after, names_after, walk
from vime_sync import fsio

__all__ = ["DiskModel", "Loss"]


class DiskModel(NotingDisk):
    """See `NotingDisk` for how it is made and entered."""

    def crash(self, loss: Loss, generator: random.Random) -> list[str]:
        """Leave one possible state on the disk; the host boots anew. Returns what was lost, for a test's message."""
        with self._guard:
            self.end_processes()
            self._handles.clear()
            seen = dict(walk(self._tree))
            names = names_after(self._folders, self._steps, loss, generator)
            left = _one_name_each(dict(walk(self._tree, names)))
            told = [f"{path} lost" for path in sorted(seen.keys() - left.keys())]
            told += [f"{path} back" for path in sorted(left.keys() - seen.keys())]
            told += [f"{path} another" for path in sorted(seen.keys() & left.keys()) if seen[path] is not left[path]]
            for path, entry in seen.items():
                if isinstance(entry, Node):
                    entry.stat_before = fsio.to_stat((self._top / path).stat())
                    (self._top / path).rename(self._limbo / str(entry.number))
            self._lay_out(left)
            for path, entry in sorted(left.items()):
                if isinstance(entry, Node) and self._lose_data(self._top / path, entry, loss, generator):
                    told.append(f"{path} changed")
            self.boots += 1
            self.rescan()
            for path, entry in left.items():  # last: what was done to bring this about must not show
                if isinstance(entry, Node):
                    self._claim(self._top / path, entry.stat_before)
            return told

    def _lay_out(self, left: dict[PurePath, Entry]) -> None:
        """Give every file the name that it is left with, and make the folders so."""
        for path in sorted(self._root.rglob("*")) if self._root.is_dir() else []:
            if path.is_dir() and not isinstance(left.get(path.relative_to(self._top)), Folder):
                shutil.rmtree(path)
        if PurePath(self._root.name) not in left:
            shutil.rmtree(self._root, ignore_errors=True)
        for relative, entry in left.items():
            if isinstance(entry, Folder):
                (self._top / relative).mkdir(exist_ok=True)
            else:
                (self._limbo / str(entry.number)).rename(self._top / relative)

    @staticmethod
    def _lose_data(place: Path, node: Node, loss: Loss, generator: random.Random) -> bool:
        if not node.changes:
            return False
        current = place.read_bytes()
        content = content_after(current, node.changes, loss, generator)
        if content == current:
            return False
        with place.open("r+b") as file:
            file.write(content)
            file.truncate(len(content))
        if node.stat_before is not None:
            node.stat_before = replace(node.stat_before, size_bytes=len(content))
        return True


def _one_name_each(left: dict[PurePath, Entry]) -> dict[PurePath, Entry]:
    """Half a rename may leave a file under two names; here it has the last of them."""
    last = {entry: path for path, entry in left.items()}
    return {path: entry for path, entry in left.items() if last[entry] == path}
