"""What hostile versions are built from: a small model at three versions, and files of the stream byte by byte.

Nothing here depends on a library's way of writing: frames are made of raw and run-length blocks by hand (RFC 8878),
JSON is dumped with fixed settings, and contents come from SHAKE-128. So the same bytes come out anywhere, for ever.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

INDEX = "model.safetensors.index.json"
SHARD = "model-00000-of-00001.safetensors"
BASE_SHARD = "model.safetensors"
OTHER, VICTIM = "a.weight", "z.bias"
# A block of zstd holds at most so many bytes.
BLOCK_BYTES = 128 << 10

Spec = tuple[str, list[int], int]  # dtype, shape, bytes
SPECS: Mapping[str, Spec] = {OTHER: ("BF16", [8, 16], 256), "still": ("F32", [], 4), VICTIM: ("I8", [300], 300)}


def contents(version: int) -> dict[str, bytes]:
    """Every tensor's bytes at version 0, 1 or 2; `still` never changes."""
    return {
        name: hashlib.shake_128(f"{name} {0 if name == 'still' else version}".encode()).digest(size)
        for name, (_, _, size) in SPECS.items()
    }


def digest(data: bytes) -> str:
    return xxhash.xxh3_128(data).hexdigest()


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Link:
    """Stands for a symlink in a version directory: written down in `LINKS`, made when the version is laid out."""

    target: str


@dataclass(frozen=True)
class Case:
    """One hostile version 2. `inspect` and `pull` are the exit codes that must come, `id` the error id of the pull.

    `found_late`: it shows only while tensors are patched; all else is refused before anything is written.
    """

    name: str
    tries: str
    pull: int
    id: str
    files: Mapping[str, bytes | Link]
    inspect: int = -1  # as `pull`
    found_late: bool = False

    @property
    def inspect_code(self) -> int:
        return self.pull if self.inspect < 0 else self.inspect


# ---- safetensors files


def safetensors(header: bytes, data: bytes, *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def full_header(specs: Mapping[str, Spec] = SPECS) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, size) in specs.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return header


def checkpoint(version: int) -> dict[str, bytes]:
    """A whole checkpoint of one shard with an index."""
    tensors = contents(version)
    return {
        BASE_SHARD: safetensors(dump(full_header()), b"".join(tensors[name] for name in SPECS)),
        INDEX: dump({"metadata": {"total_size": 560}, "weight_map": dict.fromkeys(SPECS, BASE_SHARD)}),
        "config.json": b"{}",
    }


def delta_header(frames: Mapping[str, bytes], digests: Mapping[str, str]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": dict(digests)}
    end = 0
    for name, frame in frames.items():
        header[name] = {"dtype": "U8", "shape": [len(frame)], "data_offsets": [end, end + len(frame)]}
        end += len(frame)
    return header


# ---- payloads and frames


def xor(version: int, name: str) -> bytes:
    old, new = contents(version - 1)[name], contents(version)[name]
    return bytes(before ^ after for before, after in zip(old, new, strict=True))


def changes(version: int, name: str) -> list[tuple[int, int]]:
    """(position, new byte) of what an overwrite changes."""
    old, new = contents(version - 1)[name], contents(version)[name]
    return [(place, new[place]) for place in range(len(new)) if old[place] != new[place]]


def overwrite(pairs: Iterable[tuple[int, int]], *, count: int | None = None) -> bytes:
    pairs = list(pairs)
    positions = b"".join(struct.pack("<I", place) for place, _ in pairs)
    return struct.pack("<I", len(pairs) if count is None else count) + positions + bytes(value for _, value in pairs)


def block(kind: int, size: int, body: bytes, *, last: bool = False) -> bytes:
    """A block: 0 raw, 1 one byte `size` times, 2 compressed, 3 reserved."""
    return (size << 3 | kind << 1 | int(last)).to_bytes(3, "little") + body


def frame(
    content: bytes, *, size: int | None = None, window_log: int = 17, descriptor: int = 0x80, ended: bool = True
) -> bytes:
    """One frame of one raw block; `size` is the content size it states."""
    return opening(len(content) if size is None else size, window_log, descriptor) + block(
        0, len(content), content, last=ended
    )


def opening(size: int, window_log: int = 17, descriptor: int = 0x80) -> bytes:
    """Magic, descriptor (0x80: four bytes of content size), window, content size."""
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor, (window_log - 10) << 3]) + struct.pack("<I", size)


# ---- versions


def index(weight_map: Mapping[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    """A right index of version 2, but for `metadata`; None takes a key out."""
    right: dict[str, Any] = {
        "version": "000002",
        "base_version": "000001",
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
        **metadata,
    }
    files = {OTHER: SHARD, VICTIM: SHARD} if weight_map is None else dict(weight_map)
    return {"metadata": {key: value for key, value in right.items() if value is not None}, "weight_map": files}


def delta(version: int = 2, *, encoding: str = "xor", victim: bytes | None = None) -> dict[str, bytes | Link]:
    """A right delta, or one with another frame for the victim."""
    frames = {
        name: frame(xor(version, name) if encoding == "xor" else overwrite(changes(version, name)))
        for name in (OTHER, VICTIM)
    }
    if victim is not None:
        frames[VICTIM] = victim
    digests = {name: digest(contents(version)[name]) for name in frames}
    return {
        SHARD: safetensors(dump(delta_header(frames, digests)), b"".join(frames.values())),
        INDEX: dump(index(delta_encoding=encoding, version=f"{version:06d}", base_version=f"{version - 1:06d}")),
    }


def with_header(header: bytes, *, length: int | None = None, data: bytes | None = None) -> dict[str, bytes | Link]:
    """The right delta with another header in its shard."""
    right = delta()[SHARD]
    assert isinstance(right, bytes)
    whole = right[8 + struct.unpack_from("<Q", right)[0] :]
    return {**delta(), SHARD: safetensors(header, whole if data is None else data, length=length)}


def right_header() -> dict[str, Any]:
    """The right delta's, to be changed."""
    right = delta()[SHARD]
    assert isinstance(right, bytes)
    header: dict[str, Any] = json.loads(right[8 : 8 + struct.unpack_from("<Q", right)[0]])
    return header
