"""What a directory tree on a disk may hold after a power loss: pure bookkeeping, no files are touched here.

A file remembers what was changed since its last sync, with the bytes that were there before. Names are changed in
steps; a step lasts once a directory that it touches was synced. Steps of one directory and of several may reach the
disk in any order, a rename as a whole (or, in the strictest model, half of it when it goes from one directory to
another).
"""

import enum
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from vime_sync.model import FileStat

PAGE_BYTES = 4096


class Loss(enum.Enum):
    """What happens to what was not synced."""

    KEPT = "kept"  # the kernel had written all of it by then
    DROPPED = "dropped"  # none of it
    TORN = "torn"  # of each page and each name one of the states that it had since the sync
    GARBAGE = "garbage"  # as torn, and some pages are what no one ever wrote
    ORDERED = "ordered"  # the changes of each file and all names up to some moment, in order
    ANY = "any"  # another one of these for each file, names in any mixture, renames between directories in halves


@dataclass(frozen=True)
class Change:
    """`before` are the bytes that stood at `offset`; `touched_bytes` how far the change reached from there."""

    offset: int
    before: bytes
    touched_bytes: int
    size_before: int


@dataclass(eq=False)
class Node:
    """A file, under whatever name. `changes` are those since its last sync, oldest first."""

    number: int
    changes: list[Change] = field(default_factory=list)
    stat_before: FileStat | None = None  # while it has no name: what its figures were when it lost the last one


@dataclass(eq=False)
class Folder:
    """A directory as a process sees it (`entries`), and as the disk is known to have it (`lasting`)."""

    entries: dict[str, "Entry"] = field(default_factory=dict)
    lasting: dict[str, "Entry"] = field(default_factory=dict)


Entry = Node | Folder


@dataclass(eq=False)
class Part:
    """One name of a step: what it means from there on, None for nothing."""

    folder: Folder
    name: str
    entry: Entry | None
    lasts: bool = False


Step = list[Part]
Names = dict[Folder, dict[str, Entry]]


_TOP = PurePath()


def walk(folder: Folder, names: Names | None = None, prefix: PurePath = _TOP) -> Iterator[tuple[PurePath, Entry]]:
    """Every entry below, folders before what is in them; by `names` where given, else as a process sees it."""
    entries = folder.entries if names is None else names.get(folder, {})
    for name, entry in entries.items():
        yield prefix / name, entry
        if isinstance(entry, Folder):
            yield from walk(entry, names, prefix / name)


def names_after(folders: list[Folder], steps: list[Step], loss: Loss, generator: random.Random) -> Names:
    """One state of all directories that a disk may have been left in."""
    names = {folder: dict(folder.lasting) for folder in folders}
    split = loss is Loss.ANY and generator.random() < 0.25
    share = generator.choice((0.1, 0.5, 0.9))
    until = generator.randint(0, len(steps)) if loss is Loss.ORDERED else 0
    for number, step in enumerate(steps):
        lasts = any(part.lasts for part in step)
        if loss is Loss.KEPT:
            chosen = True
        elif loss is Loss.DROPPED:
            chosen = lasts
        elif loss is Loss.ORDERED:
            chosen = lasts or number < until
        else:
            chosen = lasts or generator.random() < share
        for part in step:
            kept = chosen
            if split and len({id(each.folder) for each in step}) > 1:
                kept = part.lasts or generator.random() < share
            if not kept:
                continue
            if part.entry is None:
                names[part.folder].pop(part.name, None)
            else:
                names[part.folder][part.name] = part.entry
    return names


def content_after(current: bytes, changes: list[Change], loss: Loss, generator: random.Random) -> bytes:
    """One state of a file's bytes that a disk may have been left in."""
    if loss is Loss.ANY:
        loss = generator.choice([Loss.KEPT, Loss.DROPPED, Loss.TORN, Loss.GARBAGE, Loss.ORDERED])
    if loss is Loss.KEPT:
        return current
    if loss in (Loss.DROPPED, Loss.ORDERED):
        kept = 0 if loss is Loss.DROPPED else generator.randint(0, len(changes))
        content = bytearray(current)
        for change in reversed(changes[kept:]):
            _take_back(content, change)
        return bytes(content)
    return _by_pages(current, changes, generator, with_garbage=loss is Loss.GARBAGE)


def _take_back(content: bytearray, change: Change) -> None:
    if len(content) < change.size_before:
        content.extend(bytes(change.size_before - len(content)))
    content[change.offset : change.offset + len(change.before)] = change.before
    del content[change.size_before :]


def _by_pages(current: bytes, changes: list[Change], generator: random.Random, *, with_garbage: bool) -> bytes:
    content = bytearray(current)
    states: dict[int, list[bytes]] = {}  # of each touched page, newest first
    sizes = [len(content)]
    for change in reversed(changes):
        pages = _pages(change)
        for page in pages:
            if page not in states:
                states[page] = [_page(content, page)]
        _take_back(content, change)
        for page in pages:
            states[page].append(_page(content, page))
        sizes.append(change.size_before)
    size = generator.choice([sizes[0], sizes[-1], generator.choice(sizes), generator.randint(min(sizes), max(sizes))])
    result = bytearray(current[:size].ljust(size, b"\0"))
    newest = generator.choice((0.1, 0.5, 0.9))
    for page, versions in sorted(states.items()):
        chosen = versions[0] if generator.random() < newest else generator.choice(versions)
        if with_garbage and generator.random() < 0.25:
            chosen = bytes(PAGE_BYTES) if generator.random() < 0.3 else generator.randbytes(PAGE_BYTES)
        start = page * PAGE_BYTES
        if start < size:
            result[start : start + PAGE_BYTES] = chosen[: size - start]
    return bytes(result)


def _pages(change: Change) -> range:
    end = change.offset + max(change.touched_bytes, len(change.before))
    return range(change.offset // PAGE_BYTES, -(-end // PAGE_BYTES))


def _page(content: bytearray, page: int) -> bytes:
    return bytes(content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]).ljust(PAGE_BYTES, b"\0")
