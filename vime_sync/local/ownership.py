"""Whose directory LOCAL is: nothing of the user's is ever deleted or overwritten (promise 5)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import NotOurs, UsageError, name_some
from vime_sync.local import manifest
from vime_sync.local.intent import ReplaceIntent, read_intent
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import read_state


def check_ownership(paths: LocalPaths, *, adopt: bool) -> None:
    """Refuse a directory that is not ours, before anything is written to it (FIELD_GUIDE H7).

    Ours is what was absent, empty (a lone lost+found counts as empty, H19), or holds our mark or the state or
    lock of the peers' receiver; or what the operator hands over. Raises NotOurs, UsageError.
    """
    if paths.sync.is_symlink():
        raise NotOurs(
            f"{paths.sync} is a link to {paths.sync.readlink()}, expected a directory or nothing",
            hint="Remove the link; the records must lie on the same filesystem as the checkpoint.",
        )
    if paths.root.exists() and not paths.root.is_dir():
        raise UsageError(f"--local {paths.root} is a file, expected a directory or nothing")
    if adopt or not paths.root.exists() or any(path.exists() for path in (paths.owner, paths.state, paths.lock)):
        return
    # Our own directory without a mark in it: killed between the two.
    foreign = [entry.name for entry in paths.root.iterdir() if entry.name not in ("lost+found", paths.sync.name)]
    if foreign:
        raise NotOurs(
            f"{paths.root} holds {name_some(foreign)}, which this program did not write; expected an empty directory"
        )


def mark(paths: LocalPaths) -> None:
    """Write our mark, before the first file of ours; one that is lost or spoilt is made anew. Under the lock."""
    if manifest.read_files(paths) is None:
        write_manifest(paths, read_manifest(paths))


def write_manifest(paths: LocalPaths, files: set[str]) -> None:
    """Remember which files are ours, so that it is known without a state too: before the first of them is written."""
    manifest.write_files(paths, files)


def read_manifest(paths: LocalPaths) -> set[str]:
    """The files that are ours by our own list; where it is lost or spoilt, by the state or the intent beside it.

    Those that a state proves, or an intent brings, we have written: the list would name them too.
    """
    listed = manifest.read_files(paths)
    if listed is not None:
        return listed
    state = read_state(paths).state
    ours = set() if state is None else set(state.stats)
    try:
        intent = read_intent(paths)
    except ValueError:
        intent = None
    if isinstance(intent, ReplaceIntent):
        return ours.union(intent.ours, intent.moves)
    return ours if intent is None else ours.union(intent.origin.stats)


def remove_stale(paths: LocalPaths, current: set[str]) -> None:
    """Files that we wrote earlier and the committed version lacks go, and the folders that this leaves empty."""
    ours = read_manifest(paths)
    for name in sorted(ours - current):
        if any(paths.file(folder).is_symlink() for folder in parents(name)):
            continue  # behind a link that somebody put there lies nothing of ours
        if not paths.file(name).is_dir() or paths.file(name).is_symlink():
            fsio.unlink(paths.file(name))
        folder = paths.file(name).parent
        while folder != paths.root and folder.is_dir() and not any(folder.iterdir()):
            fsio.remove_directory_if_empty(folder)
            folder = folder.parent
    if manifest.read_files(paths) != current:
        write_manifest(paths, current)


def holds_ours(paths: LocalPaths) -> bool:
    """Whether any file of ours lies in LOCAL, of whatever version."""
    return any(paths.file(name).exists() for name in read_manifest(paths))


def replace_links(paths: LocalPaths, names: list[str]) -> None:
    """Give LOCAL files of its own where it has links: nothing is ever written through one (FIELD_GUIDE H8, H19).

    A symlink, or a file with another name elsewhere, is replaced by a copy under the same name.
    """
    check_folders(paths, names)
    for name in names:
        path = paths.file(name)
        if path.is_symlink() or path.lstat().st_nlink > 1:
            copy = paths.sync / "unlinked"
            with fsio.File(path) as source, fsio.File(copy, write=True, create=True) as target:
                copy_bytes(source, target)
                target.sync()
            fsio.rename(copy, path)
            fsio.sync_directory(path.parent)


def copy_bytes(source: fsio.File, target: fsio.File, piece_bytes: int = 1 << 20) -> None:
    offset = 0
    while piece := source.read_up_to(piece_bytes, offset):
        target.write_at(memoryview(piece), offset)
        offset += len(piece)


def foreign_files(paths: LocalPaths, ours: set[str]) -> list[str]:
    """Files below LOCAL that we did not write, by relative name."""
    skip = frozenset((paths.sync.name, "lost+found"))
    return [name for name, _ in fsio.walk(paths.root, follow_links=False, skip=skip) if name not in ours]


def check_collisions(paths: LocalPaths, wanted: Iterable[str], replaceable: set[str]) -> None:
    """Refuse, before anything changes, what would overwrite files of the user's or write through a link of his.

    `replaceable` files may go, also where a file has to make way for a folder or a folder for a file. Raises NotOurs.
    """
    taken: set[str] = set()
    for name in wanted:
        place = paths.file(name)
        check_folders(paths, [name])
        blocking = [folder for folder in parents(name) if _is_file(paths.file(folder))]
        if place.is_dir() and not place.is_symlink():
            below = fsio.walk(place, follow_links=False, skip=frozenset())
            inside = [f"{name}/{inner}" for inner, _ in below]
            blocking += inside or [f"{name}/"]
        elif _exists(place):
            blocking.append(name)
        taken.update(item for item in blocking if item not in replaceable)
    if taken:
        raise NotOurs(
            f"{paths.root} holds {name_some(taken)}, which this program did not write and the new version brings",
            hint="Move those files away, or hand the directory over with --adopt.",
        )


def check_folders(paths: LocalPaths, names: Iterable[str]) -> None:
    """Nothing is ever written or removed through a link: a linked subdirectory would lead out of LOCAL (H8)."""
    for name in names:
        for folder in parents(name):
            if paths.file(folder).is_symlink():
                raise NotOurs(
                    f"{paths.file(folder)} is a link, and the checkpoint has {name}; expected a directory of its own",
                    hint="Replace the link by a directory, or remove it.",
                )


def parents(name: str) -> list[str]:
    """The folders on the way to a relative name, outermost first."""
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _is_file(path: Path) -> bool:
    return path.is_symlink() or (path.exists() and not path.is_dir())


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def sweep(paths: LocalPaths) -> None:
    """Things of another kind under the names of our records would stop us for good: they go. Under the lock."""
    records = (paths.state, paths.owner, paths.holder, paths.intent, paths.journal)
    for path in (*records, *(record.with_name(record.name + ".new") for record in records)):
        _remove_unless_file(path)
    for folder in (paths.staged, paths.kept, paths.aside, paths.tables):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            fsio.unlink(folder)
        for entry in list(folder.iterdir()) if folder.is_dir() else ():
            _remove_unless_file(entry)


def _remove_unless_file(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        if path.is_dir() and not path.is_symlink():
            fsio.remove_tree(path)
        else:
            fsio.unlink(path)
