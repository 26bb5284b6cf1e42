"""What `vime_sync.fsio` did to a directory and what of it would not last a power loss (`disk_model`).

While a `NotingDisk` is entered, every operation of fsio below its directory is noted: per file the changes since the
last sync with the bytes before, per directory the names since its last sync. It runs in this process only, and takes
no note of what other programs do: `rescan` takes that as lasting.
"""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from types import TracebackType
from typing import TypeVar
from unittest import mock
from weakref import WeakKeyDictionary

from tests.disk_tree import Change, Entry, Folder, Node, Part, Step, walk
from vime_sync import fsio
from vime_sync.model import FileStat

Figures = tuple[int, int, int, int]


def _figures(result: os.stat_result) -> Figures:
    return (result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino)


Disk = TypeVar("Disk", bound="NotingDisk")


class NotingDisk:
    """One directory (`root`, which need not exist yet). What is there at first lasts. Attached while it is entered.

    `limbo` is a directory of the model's own on the same filesystem: files that lost their name are kept there.
    With `own_name` the name of `root` in its parent is lost too, unless the parent is synced.
    """

    def __init__(self, root: Path, limbo: Path, *, own_name: bool = False) -> None:
        self._top = root.parent
        self._root = root
        self._limbo = limbo
        self._own_name = own_name
        self._guard = threading.RLock()
        self._claimed: dict[Figures, FileStat] = {}
        self._handles: WeakKeyDictionary[fsio.File, Node] = WeakKeyDictionary()
        self._opened: list[fsio.File] = []  # a kill in this process closes nothing
        self._count = 0
        self.boots = 0
        self._stack = ExitStack()
        limbo.mkdir(parents=True, exist_ok=True)
        self.rescan()

    def rescan(self) -> None:
        """All that is on the disk now lasts."""
        with self._guard:
            self._tree = Folder()
            self._steps: list[Step] = []
            self._folders = [self._tree]
            if self._root.is_dir():
                self._tree.entries[self._root.name] = self._scan(self._root)
            self._tree.lasting = dict(self._tree.entries)
            shutil.rmtree(self._limbo)
            self._limbo.mkdir()

    def _scan(self, directory: Path) -> Folder:
        folder = self._new_folder()
        for path in sorted(directory.iterdir()):
            folder.entries[path.name] = self._scan(path) if path.is_dir() else self._new_node()
        folder.lasting = dict(folder.entries)
        return folder

    def _new_node(self) -> Node:
        self._count += 1
        return Node(self._count)

    def _new_folder(self) -> Folder:
        folder = Folder()
        self._folders.append(folder)
        return folder

    def end_processes(self) -> None:
        """Nothing runs any more: close what killed runs had open."""
        with self._guard:
            for file in self._opened:
                file.close()
            self._opened.clear()

    @property
    def unsynced(self) -> list[str]:
        """What would not surely last: files with changes, and names, as paths from the parent of `root`."""
        return sorted({*self.unsynced_contents, *self.unsynced_names})

    @property
    def unsynced_contents(self) -> list[str]:
        with self._guard:
            return sorted(str(path) for path, entry in walk(self._tree) if isinstance(entry, Node) and entry.changes)

    @property
    def unsynced_names(self) -> list[str]:
        with self._guard:
            folders = {entry: path for path, entry in walk(self._tree) if isinstance(entry, Folder)}
            return sorted(
                str(folders.get(part.folder, PurePath("gone")) / part.name)
                for step in self._steps
                if not any(part.lasts for part in step)
                for part in step
            )

    # ---- attached

    def __enter__(self: Disk) -> Disk:
        patch = mock.patch.object
        originals = (fsio.File.__init__, fsio.File.write_at, fsio.File.truncate, fsio.File.sync)
        for owner, name, replacement in (
            (fsio.File, "__init__", self._opening(originals[0])),
            (fsio.File, "write_at", self._writing(originals[1])),
            (fsio.File, "truncate", self._truncating(originals[2])),
            (fsio.File, "sync", self._syncing(originals[3])),
            (fsio, "sync_directory", self._syncing_names(fsio.sync_directory)),
            (fsio, "rename", self._renaming(fsio.rename)),
            (fsio, "unlink", self._removing(fsio.unlink)),
            (fsio, "remove_tree", self._removing(fsio.remove_tree)),
            (fsio, "remove_directory_if_empty", self._removing(fsio.remove_directory_if_empty)),
            (fsio, "make_directory", self._making(fsio.make_directory)),
            (fsio, "to_stat", self._to_stat),
        ):
            self._stack.enter_context(patch(owner, name, replacement))
        for module_name, module in list(sys.modules.items()):
            if module_name.partition(".")[0] == "vime_sync" and hasattr(module, "boot_id"):
                self._stack.enter_context(patch(module, "boot_id", lambda: f"boot {self.boots}"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_processes()
        self._stack.close()
        shutil.rmtree(self._limbo, ignore_errors=True)

    def _to_stat(self, result: os.stat_result) -> FileStat:
        """What a power loss left of a file's figures, as long as nobody touched the file since."""
        figures = _figures(result)
        return self._claimed.get(figures, FileStat(*figures))

    def _find(self, path: Path) -> Entry | None:
        if not path.is_relative_to(self._root):
            return None
        entry: Entry | None = self._tree
        for part in path.relative_to(self._top).parts:
            if not isinstance(entry, Folder):
                return None
            entry = entry.entries.get(part)
        return entry

    def _folder(self, path: Path) -> Folder | None:
        found = self._tree if path == self._top else self._find(path)
        return found if isinstance(found, Folder) else None

    def _note(self, *assignments: tuple[Path, Entry | None]) -> None:
        """One step: from here on these names mean this."""
        step = []
        for path, entry in assignments:
            folder = self._folder(path.parent)
            assert folder is not None, f"{path.parent} is not known to the model"
            step.append(Part(folder, path.name, entry, lasts=path == self._root and not self._own_name))
            if entry is None:
                folder.entries.pop(path.name, None)
            else:
                folder.entries[path.name] = entry
        self._steps.append(step)

    def _opening(self, original: Callable[..., None]) -> Callable[..., None]:
        def opening(file: fsio.File, path: Path, *, write: bool = False, create: bool = False) -> None:
            with self._guard:
                before = path.read_bytes() if create and self._find(path) is not None else b""
                original(file, path, write=write, create=create)
                self._opened = [other for other in self._opened if other._fd >= 0] + [file]
                if not path.is_relative_to(self._root):
                    return
                node = self._find(path)
                if node is None and create:
                    node = self._new_node()
                    self._note((path, node))
                elif create and isinstance(node, Node) and before:
                    node.changes.append(Change(0, before, 0, len(before)))
                if isinstance(node, Node):
                    self._handles[file] = node

        return opening

    def _writing(self, original: Callable[..., None]) -> Callable[..., None]:
        def writing(file: fsio.File, view: memoryview, offset: int) -> None:
            node = self._handles.get(file)
            if node is None:
                original(file, view, offset)
                return
            with self._guard:
                before = os.pread(file._fd, len(view), offset)
                change = Change(offset, before, len(view), os.fstat(file._fd).st_size)
                original(file, view, offset)
                node.changes.append(change)

        return writing

    def _truncating(self, original: Callable[..., None]) -> Callable[..., None]:
        def truncating(file: fsio.File, size_bytes: int) -> None:
            node = self._handles.get(file)
            with self._guard:
                before = os.fstat(file._fd).st_size
                tail = os.pread(file._fd, max(0, before - size_bytes), size_bytes)
                original(file, size_bytes)
                if node is not None:
                    node.changes.append(Change(size_bytes, tail, 0, before))

        return truncating

    def _syncing(self, original: Callable[..., None]) -> Callable[..., None]:
        def syncing(file: fsio.File) -> None:
            original(file)
            if file in self._handles:
                self._handles[file].changes.clear()

        return syncing

    def _syncing_names(self, original: Callable[..., None]) -> Callable[..., None]:
        def syncing(path: Path) -> None:
            with self._guard:
                original(path)
                folder = self._folder(path)
                for step in self._steps:
                    for part in step:
                        part.lasts = part.lasts or part.folder is folder

        return syncing

    @contextmanager
    def _keeping(self, path: Path) -> Iterator[Entry | None]:
        """Files at or below `path` may lose their name in the body: they are kept."""
        entry = self._find(path) if not path.is_symlink() else None
        below = [] if entry is None else [(path, entry)]
        if isinstance(entry, Folder):
            below += [(path / inner, found) for inner, found in walk(entry)]
        linked = []
        for place, found in below:
            if isinstance(found, Node):
                found.stat_before = fsio.to_stat(place.stat())
                os.link(place, self._limbo / str(found.number))
                linked.append((place, found))
        try:
            yield entry
        finally:
            for place, found in linked:
                limbo = self._limbo / str(found.number)
                if place.exists() and place.stat().st_ino == limbo.stat().st_ino:
                    limbo.unlink()
                    self._claim(place, found.stat_before)

    def _claim(self, place: Path, stat: FileStat | None) -> None:
        """From here on this file shows these figures, until somebody touches it."""
        figures = _figures(place.stat())
        if stat is not None and FileStat(*figures) != stat:
            self._claimed[figures] = stat

    def _renaming(self, original: Callable[..., None]) -> Callable[..., None]:
        def renaming(source: Path, target: Path) -> None:
            with self._guard, self._keeping(target):
                original(source, target)
                entry = self._find(source)
                if entry is not None:
                    self._note((source, None), (target, entry))

        return renaming

    def _removing(self, original: Callable[..., object]) -> Callable[..., object]:
        def removing(path: Path) -> object:
            with self._guard, self._keeping(path) as entry:
                result = original(path)
                if entry is not None and not path.exists():
                    inner = [path / below for below, _ in walk(entry)] if isinstance(entry, Folder) else []
                    for name in (*reversed(inner), path):
                        self._note((name, None))
                return result

        return removing

    def _making(self, original: Callable[..., None]) -> Callable[..., None]:
        def making(path: Path, *, durable: bool = False) -> None:
            made = [folder for folder in (*reversed(path.parents), path) if not folder.is_dir()]
            with self._guard:
                original(path)
                for folder in (*reversed(path.parents), path):
                    if folder.is_relative_to(self._root) and self._find(folder) is None:
                        self._note((folder, self._new_folder()))
            for folder in made if durable else ():
                fsio.sync_names(folder.parent)

        return making
