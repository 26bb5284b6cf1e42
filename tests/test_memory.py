"""Memory stays flat, whatever the tensor's, the delta's or the chain's size (promise 8).

Every pull runs in a process of its own under two limits of 400 MiB:

* RLIMIT_DATA, set before anything is imported: private writable memory (heap, anonymous mappings, thread
  stacks). This is the honest measure of what a program asks for. An allocation above it fails, so a short
  spike is caught as well, and mapped files do not count.
* VmHWM, the peak resident set of that process alone. It also counts pages of mapped files, which the kernel
  could take back, so it is the stricter one. It holds because files are read by position and not mapped.
  (`ru_maxrss` would not do: a child starts with the mark of the process that forked it.)

Helpers that the process starts are held against the limit too.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard
from numpy.typing import NDArray

from tests import toolkit
from tests.toolkit import Model, Tensor

LIMIT_BYTES = 400 << 20
BIG_BYTES = 1 << 30
BLOCK_BYTES = 1 << 20
CHAIN = 40

# `python -m vime_sync ARGS` with a limit set first and the peaks written down last.
_LIMITED = """
import json, resource, runpy, sys
limit, report, *arguments = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
sys.argv = ["vime_sync", *arguments]
try:
    runpy.run_module("vime_sync", run_name="__main__", alter_sys=True)
finally:
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with open(report, "w") as file:
        json.dump({"own": int(status["VmHWM"].split()[0]) << 10, "children": children << 10}, file)
"""


@dataclass(frozen=True)
class World:
    root: Path

    @property
    def base(self) -> Path:
        return self.root / "base"

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def local(self) -> Path:
        return self.root / "local"

    def pull(self, version: int, local: Path | None = None) -> dict[str, Any]:
        """A pull under the limits: its document."""
        report = self.root / "peaks.json"
        directories: list[str | Path] = ["--shared", self.shared, "--local", local or self.local, "--base", self.base]
        options = ["--version", str(version), "--threads", "2", "--json"]
        settings = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
        done = subprocess.run(
            [sys.executable, "-c", _LIMITED, str(LIMIT_BYTES), report, "pull", *directories, *options],
            cwd=Path(__file__).parents[1],
            env={**settings, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        peaks = json.loads(report.read_text(encoding="utf-8"))
        assert max(peaks.values()) < LIMIT_BYTES, peaks
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["version"] == version
        return document


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    world.base.mkdir()
    world.shared.mkdir()
    yield world
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > BLOCK_BYTES:
            path.unlink()  # pytest keeps the directories of the last runs


# ---- a tensor of 1 GiB, never held as a whole here either: the truth is "zeros, and these bytes"

Sparse = dict[int, int]


def _write_big_base(base: Path) -> None:
    """A checkpoint whose one shard is a header, 1 GiB that takes no room on disk, and a small tensor."""
    header = {
        "big": {"dtype": "BF16", "shape": [BIG_BYTES // 2], "data_offsets": [0, BIG_BYTES]},
        "small": {"dtype": "F32", "shape": [2], "data_offsets": [BIG_BYTES, BIG_BYTES + 8]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = base / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + BIG_BYTES + 8)
    (base / "config.json").write_bytes(b"{}")


def _blocks(values: Sparse) -> Iterator[NDArray[np.uint8]]:
    """The 1 GiB tensor block by block: zeros except at these positions."""
    at = np.array(sorted(values), dtype=np.int64)
    new = np.array([values[position] for position in sorted(values)], dtype=np.uint8)
    for begin in range(0, BIG_BYTES, BLOCK_BYTES):
        block = np.zeros(BLOCK_BYTES, dtype=np.uint8)
        first, last = np.searchsorted(at, [begin, begin + BLOCK_BYTES])
        block[at[first:last] - begin] = new[first:last]
        yield block


def _digest(values: Sparse) -> str:
    hasher = xxhash.xxh3_128()
    for block in _blocks(values):
        hasher.update(block.tobytes())
    return hasher.hexdigest()


def _next(old: Sparse, seed: int) -> Sparse:
    """A few thousand bytes all over the tensor get other values."""
    generator = np.random.default_rng(seed)
    positions = [0, BIG_BYTES - 1, *generator.integers(0, BIG_BYTES, 4000).tolist()]
    return {**old, **{position: old.get(position, 0) ^ 0x5A for position in positions}}


def _frame(old: Sparse, new: Sparse, encoding: str) -> bytes:
    compressor = zstandard.ZstdCompressor(level=1)
    if encoding == "xor":
        stream = compressor.compressobj(size=BIG_BYTES)
        difference = {position: value ^ old.get(position, 0) for position, value in new.items()}
        return b"".join(stream.compress(block.tobytes()) for block in _blocks(difference)) + stream.flush()
    changed = sorted(position for position in new if new[position] != old.get(position, 0))
    positions = np.array(changed, dtype="<u4").tobytes()
    payload = struct.pack("<I", len(changed)) + positions + bytes(new[position] for position in changed)
    return compressor.compress(payload)


def _publish_big(shared: Path, version: int, old: Sparse, new: Sparse, encoding: str) -> None:
    directory = toolkit.version_path(shared, version)
    directory.mkdir()
    shard = "model-00000-of-00001.safetensors"
    frame = _frame(old, new, encoding)
    toolkit.write_safetensors(directory / shard, {"big": Tensor("U8", (len(frame),), frame)}, {"big": _digest(new)})
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{version - 1:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
    }
    toolkit.write_index(directory, {"metadata": metadata, "weight_map": {"big": shard}})


def _expect_big(world: World, values: Sparse) -> None:
    path = world.local / "model.safetensors"
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        assert json.loads(file.read(header_bytes))["big"]["data_offsets"] == [0, BIG_BYTES]
        hasher = xxhash.xxh3_128()
        for _ in range(BIG_BYTES // BLOCK_BYTES):
            hasher.update(file.read(BLOCK_BYTES))
        assert hasher.hexdigest() == _digest(values)
        assert file.read() == bytes(8)


def test_memory_is_flat_over_a_tensor_of_one_gib(world: World) -> None:
    """Seeded with an xor delta folded in, then an xor and an overwrite delta in place."""
    _write_big_base(world.base)
    values: list[Sparse] = [{}]
    for version, encoding in ((1, "xor"), (2, "xor"), (3, "overwrite")):
        values.append(_next(values[-1], version))
        _publish_big(world.shared, version, values[-2], values[-1], encoding)

    for version in (1, 2, 3):
        document = world.pull(version)
        assert document["tensors_changed"] >= 1
        _expect_big(world, values[version])


# ---- a chain of 40 deltas: each is 16 MiB when decoded, 640 MiB together


def _chain_step(model: Model, seed: int) -> Model:
    generator = np.random.default_rng(seed)
    changed: Model = {}
    for name, tensor in model.items():
        data = np.frombuffer(tensor.data, dtype=np.uint8).copy()
        positions = generator.integers(0, data.size, data.size // 500)
        data[positions] ^= generator.integers(1, 256, positions.size, dtype=np.uint8)
        changed[name] = Tensor(tensor.dtype, tensor.shape, data.tobytes())
    return changed


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_memory_is_flat_over_a_chain_of_forty_deltas(encoding: str, world: World) -> None:
    """From a fresh host, folded into the seed, and over an existing checkpoint in place."""
    generator = np.random.default_rng(1)
    large, small = 12 << 20, 4 << 20
    model: Model = {
        "model.layers.0.mlp.experts.weight": Tensor("BF16", (large // 2,), generator.bytes(large)),
        "model.embed_tokens.weight": Tensor("BF16", (small // 2,), generator.bytes(small)),
    }
    toolkit.write_checkpoint(world.base, model)
    for version in range(1, CHAIN + 1):
        stepped = _chain_step(model, version)
        toolkit.publish_delta(world.shared, version, model, stepped, encoding=encoding)
        model = stepped
    in_place = world.root / "in-place"
    assert world.pull(0, in_place)["seeded_from"] == 0

    assert world.pull(CHAIN, in_place)["seeded_from"] is None
    assert world.pull(CHAIN)["seeded_from"] == 0

    for local in (in_place, world.local):
        assert toolkit.read_checkpoint(local) == model
