"""Safetensors files written while their tensors are still being made: data first, the header when all is known.

A part is one thread's file. Room for a header is left in front of its data; parts with little data are joined into
one file instead, so a byte is written once, or twice where there are few. Nothing here is durable before `seal`.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vime_sync import fsio
from vime_sync.format.header import LENGTH_BYTES, MAX_HEADER_BYTES

# In front of a part's data, the 8 bytes of length included; filled up with spaces.
RESERVE_BYTES = 1 << 20
# A part whose empty room is more than this share of its data is joined with others.
_SLACK_DIVISOR = 20
_ALIGN_BYTES = 8
_COPY_BYTES = 1 << 20
# Of a header: what a tensor takes beside its name (twice), its shape and its digest.
_ENTRY_BYTES = 160
# Room for what the estimate of a joined header does not see.
_JOINED_HEADER_BYTES = MAX_HEADER_BYTES * 9 // 10


@dataclass(frozen=True)
class Entry:
    """A tensor as it stands in a file: `begin` in the data section. `digest` goes into the metadata."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size_bytes: int
    digest: str | None

    @property
    def header_bytes(self) -> int:
        """At least what it takes in a header."""
        return 2 * len(json.dumps(self.name)) + len(str(self.shape)) + len(self.digest or "") + _ENTRY_BYTES


@dataclass
class Part:
    """One file at work; `entries` are whole, what follows `size_bytes` is of no tensor."""

    path: Path
    file: fsio.File
    entries: list[Entry] = field(default_factory=list)
    size_bytes: int = 0
    header_bytes: int = 1024

    @property
    def is_worth_its_room(self) -> bool:
        return self.header_bytes <= RESERVE_BYTES and self.size_bytes // _SLACK_DIVISOR >= RESERVE_BYTES


class Parts:
    """The parts that are at work, in a directory of theirs. `limit_bytes` is how much data a file gets."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self.all: list[Part] = []
        self._guard = threading.Lock()

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.all:
            part.file.close()

    def begin(self) -> Part:
        """A new file, for one thread."""
        with self._guard:
            path = self.directory / f"part-{len(self.all)}"
            part = Part(path, fsio.File(path, write=True, create=True))
            self.all.append(part)
            return part


class PartWriter:
    """One thread's way of writing tensors, one after the other."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._part: Part | None = None
        self._pending_bytes = 0

    def append(self, data: bytes | memoryview) -> None:
        """More bytes of the tensor at work."""
        if not len(data):
            return
        part = self._part = self._part or self._parts.begin()
        part.file.write_at(memoryview(data), RESERVE_BYTES + part.size_bytes + self._pending_bytes)
        self._pending_bytes += len(data)

    def finish(self, name: str, dtype: str, shape: tuple[int, ...] | None, digest: str | None) -> None:
        """The tensor at work is whole. Without a `shape` it is one dimension of bytes."""
        part = self._part = self._part or self._parts.begin()
        size_bytes, self._pending_bytes = self._pending_bytes, 0
        entry = Entry(name, dtype, (size_bytes,) if shape is None else shape, part.size_bytes, size_bytes, digest)
        part.entries.append(entry)
        part.size_bytes += size_bytes
        part.header_bytes += entry.header_bytes
        # The next tensor's name is not known yet: as if it were as long as this one's, and some.
        if part.size_bytes >= self._parts.limit_bytes or part.header_bytes + 4 * entry.header_bytes > RESERVE_BYTES:
            self._part = None


def seal(parts: Parts, build: Path, first_number: int, check: Callable[[], None]) -> dict[str, str]:
    """Give every file its header, durably, and its name in `build`; returns tensor -> file name.

    Parts without tensors go.
    """
    ready: list[tuple[Path, Sequence[Entry]]] = []
    small: list[Part] = []
    for part in parts.all:
        if part.entries and part.is_worth_its_room:
            check()
            _write_in_front(part)
            part.file.sync()
            ready.append((part.path, part.entries))
        elif part.entries:
            small.append(part)
    for number, group in enumerate(_groups(small, parts.limit_bytes)):
        check()
        path = parts.directory / f"joined-{number}"
        ready.append((path, _join(path, group, check)))
    for part in parts.all:
        part.file.close()
        if not part.entries or not part.is_worth_its_room:
            fsio.unlink(part.path)
    weight_map: dict[str, str] = {}
    for number, (path, entries) in enumerate(ready):
        last = len(ready)
        name = f"model-{number + first_number:05d}-of-{last:05d}.safetensors"
        fsio.rename(path, build / name)
        weight_map.update((entry.name, name) for entry in entries)
    return weight_map


def _groups(small: Sequence[Part], limit_bytes: int) -> Iterator[list[Part]]:
    group: list[Part] = []
    header_bytes = size_bytes = 0
    for part in small:
        if group and (
            header_bytes + part.header_bytes > _JOINED_HEADER_BYTES or size_bytes + part.size_bytes > limit_bytes
        ):
            yield group
            group, header_bytes, size_bytes = [], 0, 0
        group.append(part)
        header_bytes += part.header_bytes
        size_bytes += part.size_bytes
    if group:
        yield group


def _write_in_front(part: Part) -> None:
    part.file.write_at(memoryview(header(part.entries, RESERVE_BYTES)), 0)
    # A tensor that was given up may have left bytes behind the last whole one.
    part.file.truncate(RESERVE_BYTES + part.size_bytes)


def _join(path: Path, group: Sequence[Part], check: Callable[[], None]) -> list[Entry]:
    entries: list[Entry] = []
    offset = 0
    for part in group:
        for entry in part.entries:
            place = offset + entry.begin
            entries.append(Entry(entry.name, entry.dtype, entry.shape, place, entry.size_bytes, entry.digest))
        offset += part.size_bytes
    head = header(entries, 0)
    with fsio.File(path, write=True, create=True) as file:
        file.write_at(memoryview(head), 0)
        offset = len(head)
        buffer = memoryview(bytearray(min(_COPY_BYTES, max(part.size_bytes for part in group))))
        for part in group:
            for begin in range(0, part.size_bytes, _COPY_BYTES):
                check()
                view = buffer[: min(_COPY_BYTES, part.size_bytes - begin)]
                part.file.read_into(view, RESERVE_BYTES + begin)
                file.write_at(view, offset + begin)
            offset += part.size_bytes
        file.sync()
    return entries


def header(entries: Sequence[Entry], size_bytes: int) -> bytes:
    """Length and JSON, filled up with spaces to `size_bytes`, or to the next multiple of 8 where that is more."""
    described: dict[str, Mapping[str, object]] = {
        entry.name: {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [entry.begin, entry.begin + entry.size_bytes],
        }
        for entry in entries
    }
    metadata = {entry.name: entry.digest for entry in entries if entry.digest is not None} or {"format": "pt"}
    text = json.dumps({"__metadata__": metadata, **described}, separators=(",", ":")).encode()
    whole = max(size_bytes, -(-(LENGTH_BYTES + len(text)) // _ALIGN_BYTES) * _ALIGN_BYTES)
    text = text.ljust(whole - LENGTH_BYTES)
    return struct.pack("<Q", len(text)) + text
