"""Reading checkpoint directories: the base, a published full version, LOCAL. Reads only.

Raises what the parsers raise (FormatError, TruncatedError) with the file's name in the message, and OSError;
callers know whose directory it is and turn that into the right error class.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from vime_sync import fsio
from vime_sync.format.checksum import xxh3
from vime_sync.format.header import LENGTH_BYTES, Header, header_length, parse_header
from vime_sync.format.index import INDEX_NAME, MAX_INDEX_BYTES, Index, parse_index
from vime_sync.format.problems import FormatError, TruncatedError
from vime_sync.model import IGNORED_NAMES, AuxiliaryFile, Checkpoint, FileStat, ShardFile, VersionKind

SINGLE_NAME = "model.safetensors"
# The headers of three models of 100,000 tensors; one that is longer by itself is parsed each time.
_MOST_PARSED_BYTES = 32 << 20
# File names need not be UTF-8.
_AS_NAMED = ("utf-8", "surrogateescape")


class _ParsedHeaders:
    """Headers by their digest: one that was parsed before is only read and hashed again.

    Parsing 100,000 tensors takes a second. Bounded by the size of the texts; the oldest go first. For all threads.
    """

    def __init__(self) -> None:
        self._headers: OrderedDict[str, tuple[Header, int]] = OrderedDict()
        self._size_bytes = 0
        self._guard = threading.Lock()

    def header(self, digest: str, raw: bytes) -> Header:
        """Raises what `parse_header` raises."""
        with self._guard:
            if digest in self._headers:
                self._headers.move_to_end(digest)
                return self._headers[digest][0]
        header = parse_header(raw)
        with self._guard:
            if digest not in self._headers and len(raw) <= _MOST_PARSED_BYTES:
                self._headers[digest] = (header, len(raw))
                self._size_bytes += len(raw)
            while self._size_bytes > _MOST_PARSED_BYTES:
                self._size_bytes -= self._headers.popitem(last=False)[1][1]
        return header


_PARSED = _ParsedHeaders()


def read_index(directory: Path) -> tuple[Index, bytes] | None:
    """The index and its raw bytes, or None when there is no such file."""
    path = directory / INDEX_NAME
    try:
        file = fsio.File(path)
    except FileNotFoundError:
        return None
    with file:
        raw = file.read_up_to(MAX_INDEX_BYTES + 1, 0)
    try:
        return parse_index(raw), raw
    except FormatError as problem:
        raise type(problem)(f"{INDEX_NAME}: {problem}") from None


def read_shard(directory: Path, name: str) -> ShardFile:
    """Parse a safetensors file's header and check the file's length against it.

    Raises TruncatedError when the file is shorter than its header says (FIELD_GUIDE S4).
    """
    path = directory / name
    with fsio.File(path) as file:
        stat = file.stat()
        try:
            if stat.size_bytes < LENGTH_BYTES:
                raise TruncatedError(f"has {stat.size_bytes} bytes, too few for a header")
            prefix = file.read_at(LENGTH_BYTES, 0)
            length = header_length(prefix) if any(prefix) else 0
            if not length or stat.size_bytes < LENGTH_BYTES + length:
                raise TruncatedError(f"has {stat.size_bytes} bytes, its header of {length} is not all there")
            raw = file.read_at(length, LENGTH_BYTES)
            if not any(raw[:64]):  # allocated, not yet written
                raise TruncatedError("has zeros where its header should be")
            digest = xxh3(prefix + raw)
            header = _PARSED.header(digest, raw)
            expected = LENGTH_BYTES + length + header.data_size_bytes
            if stat.size_bytes < expected:
                raise TruncatedError(f"has {stat.size_bytes} bytes, expected {expected} by its header")
            if stat.size_bytes > expected:
                raise FormatError(f"has {stat.size_bytes} bytes, expected {expected} by its header")
        except FormatError as problem:
            raise type(problem)(f"{name}: {problem}") from None
        except EOFError:
            raise TruncatedError(f"{name}: shrank while its header was read") from None
    return ShardFile(name, path, stat, LENGTH_BYTES + length, digest, header.tensors, header.metadata)


def read_checkpoint(directory: Path, version: int, kind: VersionKind) -> Checkpoint:
    """A full checkpoint: the shards its index names (without one, every top-level *.safetensors), and all else.

    Subdirectories and dotfiles count, links are followed (FIELD_GUIDE H10). Safetensors files that the index
    does not name are skipped, and `consolidated*.safetensors` anywhere, which an engine would load instead.
    Raises FormatError, TruncatedError, FileNotFoundError, OSError.
    """
    found = read_index(directory)
    if found is not None and found[0].delta is not None:
        raise FormatError(f"{INDEX_NAME}: is the index of a delta, expected a full checkpoint")
    files = dict(_regular_files(directory))
    if found is not None:
        index, raw = found
        names = sorted(set(index.weight_map.values()))
    else:
        index, raw = Index({}, None), b""
        names = sorted(name for name in files if "/" not in name and _is_loadable(name))
    if not names:
        raise TruncatedError("holds no *.safetensors file")
    shards = {name: read_shard(directory, name) for name in names}
    _check_tensors(index, shards)
    skipped = [name for name in files if name.endswith(".safetensors") and name not in shards]
    auxiliary = {
        name: AuxiliaryFile(name, directory / name, stat)
        for name, stat in files.items()
        if name not in shards and not name.endswith(".safetensors")
    }
    stats = {name: shard.stat for name, shard in shards.items()}
    stats.update((name, file.stat) for name, file in auxiliary.items())
    structure = [xxh3(raw), *(f"{name} {shards[name].header_digest}" for name in names)]
    content = [f"{name} {stat.size_bytes} {stat.mtime_ns}" for name, stat in sorted(stats.items())]
    identity = f"{xxh3(chr(10).join(structure).encode(*_AS_NAMED))}-{xxh3(chr(10).join(content).encode(*_AS_NAMED))}"
    return Checkpoint(version, kind, directory, shards, auxiliary, identity, fingerprint(stats), tuple(sorted(skipped)))


def _is_loadable(name: str) -> bool:
    return name.endswith(".safetensors") and not name.startswith("consolidated")


def _check_tensors(index: Index, shards: dict[str, ShardFile]) -> None:
    homes: dict[str, str] = {}
    for shard in shards.values():
        for tensor in shard.tensors:
            if tensor in homes:
                raise FormatError(f"tensor {tensor!r} stands in {homes[tensor]} and in {shard.name}")
            homes[tensor] = shard.name
    for tensor, name in index.weight_map.items():
        if homes.get(tensor) != name:
            raise FormatError(f"{INDEX_NAME}: says tensor {tensor!r} is in {name}, which does not hold it")


def _regular_files(directory: Path) -> Iterator[tuple[str, FileStat]]:
    """Regular files below `directory`, links followed (FIELD_GUIDE H10)."""
    for name, path in fsio.walk(directory, follow_links=True, skip=IGNORED_NAMES):
        if path.is_file():  # neither a dangling link nor a pipe
            yield name, fsio.stat(path)


def fingerprint(stats: dict[str, FileStat]) -> str:
    """One digest over files' names and stats: the cheap question whether anything may have changed."""
    lines = [
        f"{name} {stat.size_bytes} {stat.mtime_ns} {stat.ctime_ns} {stat.inode}" for name, stat in sorted(stats.items())
    ]
    return xxh3("\n".join(lines).encode(*_AS_NAMED))
