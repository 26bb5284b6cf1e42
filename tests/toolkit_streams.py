"""Checkpoints and published streams on disk, written and read without the package under test.

Checkpoints go through the `safetensors` library; deltas are made with numpy over whole tensors and the
`zstandard`, `xxhash` and `blake3` libraries, exactly as publishers write them.
"""

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import blake3
import numpy as np
import safetensors
import xxhash
import zstandard

from tests.toolkit_models import Model, Tensor, as_bytes_array

INDEX_NAME = "model.safetensors.index.json"
DEFAULT_EXTRA_FILES: Mapping[str, bytes] = {
    "config.json": b'{"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64}',
    "tokenizer.json": b'{"version": "1.0"}',
}

# The library is told the framework's name of a dtype and writes the header's.
_LIBRARY_DTYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "I8": "int8",
    "U8": "uint8",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
}


def write_safetensors(path: Path, model: Model, metadata: Mapping[str, str] | None = None) -> None:
    """Write one file with the library's own `serialize_file`, in either of its two call styles."""
    specification = getattr(safetensors, "TensorSpec", None)
    buffers = {name: as_bytes_array(tensor.data) for name, tensor in model.items()}  # alive until written
    entries: dict[str, Any] = {}
    for name, tensor in model.items():
        described: dict[str, Any] = {"dtype": _LIBRARY_DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        if specification is None:
            entries[name] = {**described, "data": tensor.data}
        else:
            address = buffers[name].ctypes.data
            entries[name] = specification(**described, data_ptr=address, data_len=len(tensor.data))
    serialize_file = cast("Callable[..., None]", safetensors.serialize_file)
    serialize_file(entries, str(path), dict(metadata) if metadata is not None else None)


def write_checkpoint(
    directory: Path,
    model: Model,
    *,
    shards: int = 2,
    index: bool = True,
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """An ordinary Hugging Face checkpoint directory; a lone shard without index is `model.safetensors`."""
    directory.mkdir(parents=True, exist_ok=True)
    names = list(model)
    per_shard = -(-len(names) // shards)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = names[number * per_shard : (number + 1) * per_shard]
        lone = shards == 1 and not index
        file_name = "model.safetensors" if lone else f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(directory / file_name, {name: model[name] for name in part}, {"format": "pt"})
        weight_map.update(dict.fromkeys(part, file_name))
    for name, content in (DEFAULT_EXTRA_FILES if extra_files is None else extra_files).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    if index:
        total = sum(len(tensor.data) for tensor in model.values())
        write_index(directory, {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_index(directory: Path, document: Mapping[str, Any]) -> None:
    """Put the index in place in one step, as publishers do: last, by a rename."""
    temporary = directory / ("." + INDEX_NAME + ".tmp")
    temporary.write_text(json.dumps(document), encoding="utf-8")
    temporary.replace(directory / INDEX_NAME)


def version_path(shared: Path, version: int) -> Path:
    """Where a version lies in the stream."""
    return shared / f"weight_v{version:06d}"


def digest(data: bytes, checksum: str = "xxh3-128") -> str:
    """A digest as publishers write it."""
    if checksum == "xxh3-128":
        return xxhash.xxh3_128(data).hexdigest()
    if checksum == "blake3":
        return blake3.blake3(data).hexdigest()
    if checksum == "adler32":
        return f"{zlib.adler32(data, 1):08x}"
    raise ValueError(f"no such digest: {checksum}")


def compress(payload: bytes) -> bytes:
    """One zstd frame as publishers write it: level 1, content size in the header, no frame checksum."""
    return zstandard.ZstdCompressor(level=1).compress(payload)


def encode_delta(old: bytes, new: bytes, encoding: str) -> bytes:
    """The uncompressed payload that turns `old` into `new`."""
    before, after = as_bytes_array(old), as_bytes_array(new)
    if encoding == "xor":
        return bytes(before ^ after)
    if encoding == "overwrite":
        positions = np.flatnonzero(before != after).astype("<u4")
        return bytes(struct.pack("<I", positions.size) + positions.tobytes() + after[positions].tobytes())
    raise ValueError(f"no such encoding: {encoding}")


def decode_delta(old: bytes, payload: bytes, encoding: str) -> bytes:
    """The bytes that a payload makes of `old`, over the whole tensor at once."""
    if encoding == "xor":
        return bytes(as_bytes_array(old) ^ as_bytes_array(payload))
    (count,) = struct.unpack_from("<I", payload)
    result = as_bytes_array(old).copy()
    positions = np.frombuffer(payload, dtype="<u4", count=count, offset=4)
    result[positions] = np.frombuffer(payload, dtype=np.uint8, count=count, offset=4 + 4 * count)
    return bytes(result)


def publish_delta(
    shared: Path,
    version: int,
    old: Model,
    new: Model,
    *,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    ranks: int = 1,
    base_version: int | None = None,
    tensors: Iterable[str] | None = None,
) -> Path:
    """Publish `new` as a delta over `old` and return the version directory.

    The changed tensors (or exactly the named `tensors`, changed or not) are dealt to `ranks` shards in turn;
    when there are none, there is no shard. Files left over from an earlier publication are not removed.
    """
    directory = version_path(shared, version)
    directory.mkdir(parents=True, exist_ok=True)
    names = [name for name in new if new[name].data != old[name].data] if tensors is None else list(tensors)
    shards = min(ranks, len(names))
    weight_map: dict[str, str] = {}
    for rank in range(shards):
        part = names[rank::shards]
        file_name = f"model-{rank:05d}-of-{shards:05d}.safetensors"
        frames = {name: compress(encode_delta(old[name].data, new[name].data, encoding)) for name in part}
        write_safetensors(
            directory / file_name,
            {name: Tensor("U8", (len(frame),), frame) for name, frame in frames.items()},
            {name: digest(new[name].data, checksum) for name in part},
        )
        weight_map.update(dict.fromkeys(part, file_name))
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{version - 1 if base_version is None else base_version:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }
    write_index(directory, {"metadata": metadata, "weight_map": weight_map})
    return directory


def publish_full(
    shared: Path,
    version: int,
    model: Model,
    *,
    shards: int = 2,
    index: bool = True,
    extra_files: Mapping[str, bytes] | None = None,
) -> Path:
    """Publish a full version and return its directory; what lay there before is removed."""
    directory = version_path(shared, version)
    shutil.rmtree(directory, ignore_errors=True)
    write_checkpoint(directory, model, shards=shards, index=index, extra_files=extra_files)
    return directory


def _read_safetensors(path: Path) -> Model:
    deserialize = cast("Callable[[bytes], list[tuple[str, dict[str, Any]]]]", safetensors.deserialize)
    return {
        name: Tensor(entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in deserialize(path.read_bytes())
    }


def read_checkpoint(directory: Path) -> Model:
    """Every tensor of a checkpoint, by the safetensors library alone; the index decides, if there is one."""
    index = directory / INDEX_NAME
    if not index.exists():
        files = sorted(directory.glob("*.safetensors"))
        return {name: tensor for path in files for name, tensor in _read_safetensors(path).items()}
    weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    contents = {file_name: _read_safetensors(directory / file_name) for file_name in set(weight_map.values())}
    return {name: contents[file_name][name] for name, file_name in weight_map.items()}


def apply_version(model: Model, directory: Path) -> Model:
    """The model after a published version, computed with plain numpy over whole tensors."""
    index = directory / INDEX_NAME
    document = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {"metadata": {}, "weight_map": {}}
    encoding = document["metadata"].get("delta_encoding")
    if encoding is None:
        return read_checkpoint(directory)
    result = dict(model)
    for file_name in sorted(set(document["weight_map"].values())):
        for name, frame in _read_safetensors(directory / file_name).items():
            payload = zstandard.ZstdDecompressor().decompress(frame.data)
            result[name] = Tensor(
                model[name].dtype, model[name].shape, decode_delta(model[name].data, payload, encoding)
            )
    return result


def digests(model: Model) -> dict[str, str]:
    """xxh3-128 of every tensor's bytes."""
    return {name: digest(tensor.data) for name, tensor in model.items()}
