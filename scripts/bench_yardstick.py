"""The yardstick: what peers' receivers do with the same stream, as fast as it goes in that way. No crash safety.

One pass per version. Whole delta files are read into memory; each shard is one shared writable mapping; threads, at
most 32, take tensors in the order of the files. A xor frame is decoded as a stream in blocks of 2 MiB and xored into
the mapping block by block, hashed on the way; an overwrite frame is decoded at once, assigned by fancy index, and the
whole span hashed after it. A first copy is `shutil.copy2`, file by file.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import shutil
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

from scripts.bench_data import INDEX_NAME

_BLOCK_BYTES = 2 << 20
_MAX_THREADS = 32


@dataclass(frozen=True)
class _Place:
    file: str
    offset: int
    size_bytes: int


def read_header(raw: bytes | mmap.mmap) -> tuple[dict[str, Any], int]:
    """The JSON of a safetensors header, and where the data begins."""
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), 8 + length


def copy_base(base: Path, local: Path) -> None:
    """A seed as peers do it."""
    local.mkdir(parents=True, exist_ok=True)
    for path in sorted(base.iterdir()):
        shutil.copy2(path, local / path.name)


class Yardstick:
    """A checkpoint kept up to date the peers' way."""

    def __init__(self, local: Path, threads: int | None = None) -> None:
        self._local = local
        self._threads = threads or min(_MAX_THREADS, len(os.sched_getaffinity(0)))

    def apply(self, share: Path, version: int) -> None:
        """One pass; raises RuntimeError for a digest that does not come out."""
        directory = share / f"weight_v{version:06d}"
        index = json.loads((directory / INDEX_NAME).read_bytes())
        overwrite = index["metadata"]["delta_encoding"] == "overwrite"
        mappings: dict[str, mmap.mmap] = {}
        try:
            places = self._map(mappings)
            jobs = []
            for file_name in sorted(set(index["weight_map"].values())):
                raw = (directory / file_name).read_bytes()
                header, data_offset = read_header(raw)
                digests = header.pop("__metadata__")
                for name, entry in header.items():
                    begin, end = entry["data_offsets"]
                    frame = memoryview(raw)[data_offset + begin : data_offset + end]
                    jobs.append((name, frame, digests[name]))
            jobs.sort(key=lambda job: (places[job[0]].file, places[job[0]].offset))

            def work(job: tuple[str, memoryview, str]) -> None:
                name, frame, digest = job
                place = places[name]
                span = np.frombuffer(mappings[place.file], np.uint8, place.size_bytes, place.offset)
                found = _overwrite(span, frame) if overwrite else _xor(span, frame)
                if found != digest:
                    raise RuntimeError(f"{name}: {found}, expected {digest}")

            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(work, jobs))
        finally:
            for mapping in mappings.values():
                mapping.close()

    def _map(self, mappings: dict[str, mmap.mmap]) -> Mapping[str, _Place]:
        places = {}
        for path in sorted(self._local.glob("*.safetensors")):
            with path.open("r+b") as file:
                mapping = mmap.mmap(file.fileno(), 0)
            mapping.madvise(mmap.MADV_WILLNEED)
            mappings[path.name] = mapping
            header, data_offset = read_header(mapping)
            header.pop("__metadata__", None)
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                places[name] = _Place(path.name, data_offset + begin, end - begin)
        return places


def _xor(span: np.typing.NDArray[np.uint8], frame: memoryview) -> str:
    hasher = xxhash.xxh3_128()
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(frame))
    place = 0
    while piece := reader.read(_BLOCK_BYTES):
        part = span[place : place + len(piece)]
        np.bitwise_xor(part, np.frombuffer(piece, np.uint8), out=part)
        hasher.update(part.data)
        place += len(piece)
    return hasher.hexdigest()


def _overwrite(span: np.typing.NDArray[np.uint8], frame: memoryview) -> str:
    payload = zstandard.ZstdDecompressor().decompress(frame)
    (count,) = struct.unpack_from("<I", payload)
    positions = np.frombuffer(payload, "<u4", count, 4)
    span[positions] = np.frombuffer(payload, np.uint8, count, 4 + 4 * count)
    return xxhash.xxh3_128(span.data).hexdigest()
