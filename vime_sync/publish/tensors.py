"""Tensors to publish: those of a checkpoint on disk, and arrays in memory. Reads only.

Everything is bytes: a dtype is a name of the safetensors format and nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vime_sync.errors import UsageError
from vime_sync.format.header import parse_header
from vime_sync.format.problems import FormatError
from vime_sync.model import Checkpoint, TensorSpec
from vime_sync.publish.files import OpenFiles, Reader

# numpy's name of a dtype (for the small floats that of the ml_dtypes package) -> the format's.
_DTYPE_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory by its bytes, for dtypes that numpy lacks: `dtype` as safetensors names it ("BF16").

    `data` is anything that gives its bytes, contiguous, in row-major order, little-endian.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any


@dataclass(frozen=True)
class NewTensor:
    """One tensor of the version to come; `read` fills a view from a place in it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    read: Reader


def checkpoint_tensors(checkpoint: Checkpoint, files: OpenFiles) -> Iterator[NewTensor]:
    """Largest first, so that no long tensor is left for the end."""
    found = [(shard, name, spec) for shard in checkpoint.shards.values() for name, spec in shard.tensors.items()]
    for shard, name, spec in sorted(found, key=lambda item: item[2].size_bytes, reverse=True):
        read = files.reader(shard.path, shard.stat, shard.data_offset + spec.begin)
        yield NewTensor(name, spec.dtype, spec.shape, spec.size_bytes, read)


def array_tensors(tensors: Iterable[Tensor | tuple[str, Any]]) -> Iterator[NewTensor]:
    """One after the other, in the order given. Raises UsageError for a name that comes twice, or an odd dtype."""
    seen = set()
    for item in tensors:
        tensor = item if isinstance(item, Tensor) else _from_array(*item)
        if tensor.name in seen:
            raise UsageError(f"the tensor {tensor.name!r} is given twice", tensors=(tensor.name,))
        seen.add(tensor.name)
        yield _in_memory(tensor)


def _from_array(name: str, array: Any) -> Tensor:
    values = np.asarray(array)
    dtype = _DTYPE_NAMES.get(values.dtype.name)
    if dtype is None:
        raise UsageError(
            f"the tensor {name!r} is an array of {values.dtype}, which names no dtype of the format",
            hint="Give vime_sync.publish.Tensor(name, dtype, shape, data) with its bytes.",
            tensors=(name,),
        )
    if values.dtype.byteorder == ">":
        values = values.astype(values.dtype.newbyteorder("<"))
    return Tensor(name, dtype, values.shape, np.ascontiguousarray(values).reshape(-1).view(np.uint8))


def _in_memory(tensor: Tensor) -> NewTensor:
    data = np.frombuffer(tensor.data, np.uint8) if len(tensor.data) else np.empty(0, np.uint8)
    spec = _checked(tensor, data.nbytes)

    def read(view: memoryview, position: int) -> None:
        view[:] = data[position : position + len(view)].data

    return NewTensor(tensor.name, spec.dtype, spec.shape, spec.size_bytes, read)


def _checked(tensor: Tensor, size_bytes: int) -> TensorSpec:
    """What receivers would say of it, said before anything is written. Raises UsageError."""
    described = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [0, size_bytes]}
    try:
        return parse_header(json.dumps({tensor.name: described}).encode()).tensors[tensor.name]
    except (FormatError, TypeError, KeyError) as problem:
        raise UsageError(f"the tensor {tensor.name!r} cannot be published: {problem}", tensors=(tensor.name,)) from None
