"""Checkpoints and streams of deltas that look like real training, for the bench; written tensor by tensor.

Weights are bf16, rounded from an fp32 master drawn from N(0, 0.02 to 0.04); each version adds a step from
N(0, learning rate) to the master and rounds again. The learning rate is searched for, so that the wanted share of
bytes changes. Deltas are encoded with numpy and zstandard alone; nothing of the package under test has a part in it.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint16]

INDEX_NAME = "model.safetensors.index.json"
ENCODINGS = ("xor", "overwrite")
_DELTA_SHARDS = 2
_POOL_FLOATS = 1 << 23
_PIECE_FLOATS = 1 << 20
_BF16_BYTES = 2


@dataclass(frozen=True)
class SetSpec:
    """What a set is made of: `changed` is the share of bytes that each version changes, None for what differs by
    version (`touched` says how many tensors each then changes)."""

    name: str
    tensors: int
    tensor_bytes: int
    shards: int
    versions: int
    changed: float
    touched: tuple[int, ...] = ()


@dataclass(frozen=True)
class DataSet:
    """A base, one share per encoding, and the xxh3-128 digest of each tensor at each version."""

    spec: SetSpec
    root: Path
    digests: tuple[Mapping[str, str], ...]
    size_bytes: int
    changed_share: float
    compressed_per_changed: Mapping[str, float]

    @property
    def base(self) -> Path:
        return self.root / "base"

    def share(self, encoding: str) -> Path:
        return self.root / encoding


class Noise:
    """Normal variates by the hundred million: pieces of one drawn pool, each from a place drawn anew."""

    def __init__(self, seed: int) -> None:
        self._pool: Floats = np.random.default_rng(seed).standard_normal(_POOL_FLOATS, np.float32)

    def take(self, generator: np.random.Generator, count: int) -> Floats:
        out = np.empty(count, np.float32)
        for begin in range(0, count, _PIECE_FLOATS):
            part = out[begin : begin + _PIECE_FLOATS]
            place = int(generator.integers(0, _POOL_FLOATS - len(part)))
            part[:] = self._pool[place : place + len(part)]
        return out


def to_bf16(values: Floats) -> Words:
    """Round to nearest, ties to even."""
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: Words = ((bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)).astype(np.uint16)
    return rounded


def find_learning_rate(noise: Noise, changed: float) -> float:
    """The step size at which this share of bytes changes, by bisection on a sample."""
    generator = np.random.default_rng(7)
    master = np.concatenate([_master(noise, generator, _PIECE_FLOATS >> 6) for _ in range(64)])
    step, old = noise.take(generator, _PIECE_FLOATS), to_bf16(master).view(np.uint8)
    low, high = 1e-8, 1e-2
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        new = to_bf16(master + step * np.float32(middle)).view(np.uint8)
        if np.count_nonzero(old != new) < changed * len(old):
            low = middle
        else:
            high = middle
    return high


def _master(noise: Noise, generator: np.random.Generator, count: int) -> Floats:
    values: Floats = noise.take(generator, count) * np.float32(generator.uniform(0.02, 0.04))
    return values


def header_bytes(entries: Mapping[str, tuple[str, list[int], int]], metadata: Mapping[str, str]) -> bytes:
    """A safetensors header with its length; entries are dtype, shape and size in bytes."""
    document: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (dtype, shape, size) in entries.items():
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _tensor_name(number: int) -> str:
    return f"model.layers.{number // 128}.mlp.experts.{number % 128}.down_proj.weight"


class _Maker:
    def __init__(self, root: Path, spec: SetSpec, encodings: Sequence[str], seed: int) -> None:
        self.root, self.spec, self.encodings, self._seed = root, spec, encodings, seed
        self.noise = Noise(seed)
        self.learning_rate = find_learning_rate(self.noise, spec.changed)
        self.names = [_tensor_name(number) for number in range(spec.tensors)]
        self.digests: list[dict[str, str]] = [{} for _ in range(spec.versions + 1)]
        self.frames: dict[tuple[str, int], dict[int, bytes]] = {
            (encoding, version): {} for encoding in encodings for version in range(1, spec.versions + 1)
        }
        self.changed_bytes = 0
        self._homes: list[tuple[int, int]] = []  # of each tensor: descriptor and place

    def write_base(self) -> None:
        spec = self.spec
        base = self.root / "base"
        base.mkdir(parents=True)
        weight_map: dict[str, str] = {}
        for shard in range(spec.shards):
            part = self.names[shard * spec.tensors // spec.shards : (shard + 1) * spec.tensors // spec.shards]
            file_name = f"model-{shard + 1:05d}-of-{spec.shards:05d}.safetensors"
            items = spec.tensor_bytes // _BF16_BYTES
            header = header_bytes({name: ("BF16", [items], spec.tensor_bytes) for name in part}, {"format": "pt"})
            descriptor = os.open(base / file_name, os.O_RDWR | os.O_CREAT, 0o644)
            os.pwrite(descriptor, header, 0)
            self._homes += [(descriptor, len(header) + number * spec.tensor_bytes) for number in range(len(part))]
            weight_map.update(dict.fromkeys(part, file_name))
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(self._make_tensor, range(spec.tensors)))
        finally:
            for descriptor in {descriptor for descriptor, _ in self._homes}:
                os.close(descriptor)
        (base / "config.json").write_text('{"architectures": ["Qwen3MoeForCausalLM"]}')
        _write_index(base, {"total_size": spec.tensors * spec.tensor_bytes}, weight_map)

    def _make_tensor(self, number: int) -> None:
        spec, name = self.spec, self.names[number]
        generator = np.random.default_rng((self._seed, number))
        master = _master(self.noise, generator, spec.tensor_bytes // _BF16_BYTES)
        old = to_bf16(master)
        os.pwrite(self._homes[number][0], old.data, self._homes[number][1])
        digest = xxhash.xxh3_128(old.data).hexdigest()
        self.digests[0][name] = digest
        for version in range(1, spec.versions + 1):
            if not spec.touched or number < spec.touched[version - 1]:
                master += self.noise.take(generator, len(master)) * np.float32(self.learning_rate)
                new = to_bf16(master)
                if self._encode(number, version, old.view(np.uint8), new.view(np.uint8)):
                    digest = xxhash.xxh3_128(new.data).hexdigest()
                old = new
            self.digests[version][name] = digest

    def _encode(self, number: int, version: int, old: npt.NDArray[np.uint8], new: npt.NDArray[np.uint8]) -> bool:
        difference = old ^ new
        positions = np.flatnonzero(difference)
        self.changed_bytes += len(positions)
        if not len(positions):
            return False
        compressor = zstandard.ZstdCompressor(level=1)
        if "xor" in self.encodings:
            self.frames["xor", version][number] = compressor.compress(difference.data)
        if "overwrite" in self.encodings:
            payload = struct.pack("<I", len(positions)) + positions.astype("<u4").tobytes() + new[positions].tobytes()
            self.frames["overwrite", version][number] = compressor.compress(payload)
        return True

    def publish(self, encoding: str, version: int) -> int:
        """Returns the size of the delta's frames."""
        directory = self.root / encoding / f"weight_v{version:06d}"
        directory.mkdir(parents=True)
        frames = sorted(self.frames.pop((encoding, version)).items())
        shards = min(_DELTA_SHARDS, len(frames))
        weight_map: dict[str, str] = {}
        for rank in range(shards):
            part = {self.names[number]: frame for number, frame in frames[rank::shards]}
            file_name = f"model-{rank:05d}-of-{shards:05d}.safetensors"
            digests = {name: self.digests[version][name] for name in part}
            entries = {name: ("U8", [len(frame)], len(frame)) for name, frame in part.items()}
            with (directory / file_name).open("wb") as file:
                file.write(header_bytes(entries, digests))
                file.writelines(part.values())
            weight_map.update(dict.fromkeys(part, file_name))
        _write_index(directory, delta_metadata(encoding, version), weight_map)
        return sum(len(frame) for _, frame in frames)


def delta_metadata(encoding: str, version: int) -> dict[str, str]:
    return {
        "version": f"{version:06d}",
        "base_version": f"{version - 1:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
    }


def _write_index(directory: Path, metadata: Mapping[str, Any], weight_map: Mapping[str, str]) -> None:
    temporary = directory / f".{INDEX_NAME}.tmp"
    temporary.write_text(json.dumps({"metadata": dict(metadata), "weight_map": dict(weight_map)}))
    temporary.replace(directory / INDEX_NAME)


def make_set(root: Path, spec: SetSpec, encodings: Sequence[str] = ENCODINGS, seed: int = 1) -> DataSet:
    """Write the set below `root`, which must not exist yet."""
    maker = _Maker(root, spec, encodings, seed)
    maker.write_base()
    sizes = {
        encoding: sum(maker.publish(encoding, version) for version in range(1, spec.versions + 1))
        for encoding in encodings
    }
    touched = spec.touched or (spec.tensors,) * spec.versions
    return DataSet(
        spec,
        root,
        tuple(maker.digests),
        spec.tensors * spec.tensor_bytes,
        maker.changed_bytes / (sum(touched) * spec.tensor_bytes),
        {encoding: size / max(1, maker.changed_bytes) for encoding, size in sizes.items()},
    )
