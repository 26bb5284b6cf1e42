"""Reading a version's files for use: frames checked before decoding, payload bytes, and stats held against change.

Every failure to read says whether the files are gone or changed (plan again, FIELD_GUIDE S15) or the share is in
trouble. Safe to share between threads.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import LineageMismatch, Malformed, ShareUnreachable, StreamChanged, SyncError
from vime_sync.format.codec import MAX_OVERWRITE_TENSOR_BYTES, overwrite_count
from vime_sync.format.frame import MAX_FRAME_HEADER_BYTES, content_size_of
from vime_sync.format.problems import FormatError
from vime_sync.model import DeltaVersion, Encoding, FileStat, Payload, Span


class SourceFiles:
    """Files opened once for a pass; each must be the one that was looked at, before its first byte is read."""

    def __init__(self) -> None:
        self._files: dict[Path, fsio.File] = {}
        self._expected: dict[Path, FileStat] = {}
        self._guard = threading.Lock()

    def __enter__(self) -> SourceFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def read_into(self, view: memoryview, path: Path, stat: FileStat, offset: int, version: int) -> None:
        """Raises StreamChanged, ShareUnreachable."""
        try:
            self._open(path, stat, version).read_into(view, offset)
        except OSError as problem:
            raise source_problem(problem, path, version) from None
        except EOFError as problem:
            raise StreamChanged(f"version {version}: {problem}", version=version) from None

    def check_unchanged(self) -> None:
        """The stats are the same after the last byte as before the first (promise 1). Raises StreamChanged."""
        for path, expected in self._expected.items():
            try:
                found = fsio.stat(path)
            except OSError as problem:
                raise source_problem(problem, path, None) from None
            if found != expected:
                raise StreamChanged(f"{path} changed while it was read")

    def _open(self, path: Path, stat: FileStat, version: int) -> fsio.File:
        with self._guard:
            file = self._files.get(path)
            if file is None:
                file = fsio.File(path)
                self._files[path] = file
                self._expected[path] = stat
                if file.stat() != stat:
                    raise StreamChanged(f"version {version}: {path} changed since it was looked at", version=version)
            return file


def source_problem(problem: OSError, path: Path, version: int | None) -> SyncError:
    if problem.errno in (errno.ENOENT, errno.ESTALE, errno.ENOTDIR):
        return StreamChanged(f"{path} is gone: {problem.strerror}", version=version)
    return ShareUnreachable(f"reading {path}: {problem.strerror}", version=version)


def check_payloads(delta: DeltaVersion, spans: Mapping[str, Span], files: SourceFiles) -> dict[str, int]:
    """Check all of a delta that needs no decoding against the tensors it is for; returns content sizes in bytes.

    Raises LineageMismatch for tensors or sizes the checkpoint lacks (S8), Malformed for frames (S11, H15).
    """
    return {name: check_payload(delta, name, spans, files) for name in delta.payloads}


def check_payload(delta: DeltaVersion, name: str, spans: Mapping[str, Span], files: SourceFiles) -> int:
    """As `check_payloads`, of one tensor."""
    payload = delta.payloads[name]
    span = spans.get(name)
    if span is None:
        raise LineageMismatch(
            f"version {delta.version} changes the tensor {name!r}, which the checkpoint here does not have",
            version=delta.version,
            tensors=(name,),
        )
    try:
        return _check_frame(delta, name, payload, span, files)
    except FormatError as problem:
        raise Malformed(
            f"version {delta.version}: {payload.shard}: tensor {name!r}: {problem}",
            version=delta.version,
            tensors=(name,),
        ) from None


def _check_frame(delta: DeltaVersion, name: str, payload: Payload, span: Span, files: SourceFiles) -> int:
    prefix = bytearray(min(MAX_FRAME_HEADER_BYTES, payload.size_bytes))
    shard = delta.shards[payload.shard]
    files.read_into(memoryview(prefix), shard.path, shard.stat, payload.offset, delta.version)
    content_size = content_size_of(bytes(prefix))
    if delta.encoding is Encoding.OVERWRITE:
        if span.size_bytes > MAX_OVERWRITE_TENSOR_BYTES:
            raise FormatError(f"overwrite reaches 4 GiB, and the tensor has {span.size_bytes} bytes: positions wrapped")
        overwrite_count(content_size, span.size_bytes)
    elif content_size != span.size_bytes:
        raise LineageMismatch(
            f"version {delta.version} changes {name!r} by {content_size} bytes, expected the {span.size_bytes} that it "
            "has here",
            version=delta.version,
            tensors=(name,),
        )
    return content_size
