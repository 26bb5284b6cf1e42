"""Tensors to publish: those of a checkpoint on disk, and arrays in memory. Reads only.

Everything is bytes: a dtype is a name of the safetensors format and nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vime_sync.errors import UsageError
from vime_sync.format.header import parse_header
from vime_sync.model import Checkpoint, TensorSpec
from vime_sync.publish.files import OpenFiles, Reader
from vime_sync.publish.values import whole_number

# What numpy, and the arrays of others when asked for their values, raise for what is no array of numbers.
_NO_ARRAY = (TypeError, ValueError, AttributeError, RuntimeError, BufferError)

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

    `data` is an array or anything else that gives its bytes: in row-major order, little-endian.
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
    """One after the other, in the order given. Raises UsageError for a name that comes twice, or what is no tensor."""
    seen = set()
    for item in _walk(tensors):
        tensor = item if isinstance(item, Tensor) else _from_pair(item)
        if not isinstance(tensor.name, str):
            raise UsageError(f"a tensor's name is {tensor.name!r:.80}, expected text")
        if tensor.name in seen:
            raise UsageError(f"the tensor {tensor.name!r} is given twice", tensors=(tensor.name,))
        seen.add(tensor.name)
        yield _in_memory(tensor)


def _walk(tensors: Any) -> Iterator[Any]:
    try:
        return iter(tensors)
    except TypeError:
        raise UsageError(f"tensors is {type(tensors).__name__}, expected pairs of a name and an array") from None


def _from_pair(item: Any) -> Tensor:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UsageError(
            f"{item!r:.80} is among the tensors, expected a pair of a name and an array, or a Tensor",
            hint="Of a dict give its items().",
        )
    name, array = item
    return _from_array(name, array)


def _from_array(name: str, array: Any) -> Tensor:
    try:
        values = np.asarray(array)
    except _NO_ARRAY as problem:
        raise _no_data(name, problem) from problem
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
    try:
        data = _bytes_of(tensor.data)
    except _NO_ARRAY as problem:
        raise _no_data(tensor.name, problem) from problem
    spec = _checked(tensor, data.nbytes)

    def read(view: memoryview, position: int) -> None:
        view[:] = data[position : position + len(view)].data

    return NewTensor(tensor.name, spec.dtype, spec.shape, spec.size_bytes, read)


def _bytes_of(data: Any) -> npt.NDArray[np.uint8]:
    """As they lie there where they are contiguous, else a copy. Raises one of _NO_ARRAY."""
    if isinstance(data, (np.ndarray, np.generic)):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    view = memoryview(data)
    if not view.nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(view if view.c_contiguous else view.tobytes(), np.uint8)


def _no_data(name: str, problem: Exception) -> UsageError:
    return UsageError(
        f"the tensor {name!r} cannot be read: {problem}",
        hint="Give an array in memory, or vime_sync.publish.Tensor(name, dtype, shape, data) with its bytes.",
        tensors=(name,),
    )


def _checked(tensor: Tensor, size_bytes: int) -> TensorSpec:
    """What receivers would say of it, said before anything is written. Raises UsageError."""
    try:
        shape = [whole_number(f"a size in the shape of tensor {tensor.name!r}", size) for size in tensor.shape]
        described = {"dtype": tensor.dtype, "shape": shape, "data_offsets": [0, size_bytes]}
        return parse_header(json.dumps({tensor.name: described}).encode()).tensors[tensor.name]
    except (TypeError, ValueError, KeyError) as problem:
        raise UsageError(f"the tensor {tensor.name!r} cannot be published: {problem}", tensors=(tensor.name,)) from None
