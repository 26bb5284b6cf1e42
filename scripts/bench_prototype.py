"""What crash safety costs is measured against this: the same blocks, folds and digests, and nothing that heals.

Positioned reads and writes in reused blocks of 1 MiB, threads that take the largest tensor first, all deltas of a
catch-up folded into one pass, the new digest checked. No staging, no old digest, no journal, no old values kept, no
records: a kill leaves bytes that nobody can tell.
"""

from __future__ import annotations

import io
import json
import os
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

from scripts.bench_data import INDEX_NAME
from scripts.bench_yardstick import read_header

_BLOCK_BYTES = 1 << 20
Bytes = npt.NDArray[np.uint8]


@dataclass
class _Job:
    descriptor: int
    offset: int
    size_bytes: int
    frames: list[tuple[int, int, int]] = field(default_factory=list)  # descriptor, place, size
    digest: str = ""


class Prototype:
    """A checkpoint kept up to date without any safety."""

    def __init__(self, local: Path, threads: int) -> None:
        self._local, self._threads = local, threads
        self._own = threading.local()

    def apply(self, share: Path, versions: Sequence[int]) -> None:
        """All the versions in one pass; raises RuntimeError for a digest that does not come out."""
        opened: list[int] = []
        try:
            jobs = self._jobs(opened)
            overwrite = False
            for version in versions:
                overwrite = _add_delta(share / f"weight_v{version:06d}", jobs, opened)
            touched = sorted((job for job in jobs.values() if job.frames), key=lambda job: -job.size_bytes)
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(lambda job: self._run(job, overwrite=overwrite), touched))
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _jobs(self, opened: list[int]) -> dict[str, _Job]:
        jobs = {}
        for path in sorted(self._local.glob("*.safetensors")):
            descriptor = os.open(path, os.O_RDWR)
            opened.append(descriptor)
            header, data_offset = _header_of(descriptor)
            header.pop("__metadata__", None)
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                jobs[name] = _Job(descriptor, data_offset + begin, end - begin)
        return jobs

    def _run(self, job: _Job, *, overwrite: bool) -> None:
        if not hasattr(self._own, "blocks"):
            self._own.blocks = (np.empty(_BLOCK_BYTES, np.uint8), np.empty(_BLOCK_BYTES, np.uint8))
        current, scratch = self._own.blocks
        frames = [os.pread(descriptor, size, place) for descriptor, place, size in job.frames]
        steps = [_Overwrite(frame) if overwrite else _Xor(frame, scratch) for frame in frames]
        hasher = xxhash.xxh3_128()
        for start in range(0, job.size_bytes, _BLOCK_BYTES):
            block = current[: min(_BLOCK_BYTES, job.size_bytes - start)]
            os.preadv(job.descriptor, [block.data], job.offset + start)
            for step in steps:
                step.forward(block, start)
            hasher.update(block.data)
            os.pwrite(job.descriptor, block.data, job.offset + start)
        if hasher.hexdigest() != job.digest:
            raise RuntimeError("a digest does not come out")


class _Xor:
    def __init__(self, frame: bytes, scratch: Bytes) -> None:
        self._reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(frame))
        self._scratch = scratch

    def forward(self, block: Bytes, start: int) -> None:
        view = self._scratch[: len(block)].data
        while len(view):
            view = view[self._reader.readinto(view) :]
        np.bitwise_xor(block, self._scratch[: len(block)], out=block)


class _Overwrite:
    def __init__(self, frame: bytes) -> None:
        payload = zstandard.ZstdDecompressor().decompress(frame)
        (count,) = struct.unpack_from("<I", payload)
        self._positions = np.frombuffer(payload, "<u4", count, 4)
        self._values = np.frombuffer(payload, np.uint8, count, 4 + 4 * count)

    def forward(self, block: Bytes, start: int) -> None:
        first, last = np.searchsorted(self._positions, [start, start + len(block)])
        block[self._positions[first:last] - np.uint32(start)] = self._values[first:last]


def _header_of(descriptor: int) -> tuple[dict[str, dict[str, list[int]]], int]:
    length = os.pread(descriptor, 8, 0)
    return read_header(length + os.pread(descriptor, struct.unpack("<Q", length)[0], 8))


def _add_delta(directory: Path, jobs: dict[str, _Job], opened: list[int]) -> bool:
    index = json.loads((directory / INDEX_NAME).read_bytes())
    for file_name in sorted(set(index["weight_map"].values())):
        descriptor = os.open(directory / file_name, os.O_RDONLY)
        opened.append(descriptor)
        header, data_offset = _header_of(descriptor)
        digests = header.pop("__metadata__")
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            jobs[name].frames.append((descriptor, data_offset + begin, end - begin))
            jobs[name].digest = str(digests[name])
    return bool(index["metadata"]["delta_encoding"] == "overwrite")
