"""Weights in memory: values as the trainer holds them, and as the safetensors library finds them in a directory.

Never uses this package's own parsers or codecs: what is read here is the proof of what they wrote. Nothing is changed
here but arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
from blake3 import blake3

Floats = npt.NDArray[np.float64]
# bfloat16 has no type of its own in numpy: its 16 bits are kept as they are.
_DTYPES = {"F32": "<f4", "BF16": "<u2", "I64": "<i8"}


@dataclass(frozen=True)
class Weight:
    """One tensor: `dtype` as safetensors names it, `bits` its values, of BF16 their bits."""

    dtype: str
    bits: npt.NDArray[Any]

    def numbers(self) -> Floats:
        """To compute with: as 64 bit floats the order of sums decides no digit that is shown."""
        if self.dtype == "BF16":
            return (self.bits.astype("<u4") << 16).view("<f4").astype(np.float64)
        return self.bits.astype(np.float64)

    def view(self) -> memoryview:
        """Its bytes, in place."""
        return self.bits.reshape(-1).view(np.uint8).data


Weights = Mapping[str, Weight]


def size_bytes(weights: Weights) -> int:
    return sum(weight.bits.nbytes for weight in weights.values())


def digests(weights: Weights) -> dict[str, str]:
    """One for each tensor, by a digest that the published deltas here do not use."""
    return {name: str(blake3(weight.view()).hexdigest()) for name, weight in weights.items()}


def from_floats(dtype: str, values: npt.NDArray[np.float32]) -> Weight:
    """Of BF16 rounded to nearest, ties to even, as trainers do."""
    if dtype != "BF16":
        return Weight(dtype, values.astype(_DTYPES[dtype]))
    bits = values.astype("<f4").view("<u4")
    return Weight(dtype, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2"))


def read_weights(directory: Path) -> dict[str, Weight]:
    """What a checkpoint directory holds, as the safetensors library reads it, in a copy of its own.

    Raises OSError, and ValueError for what is no such file.
    """
    found: dict[str, Weight] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            tensors = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        except safetensors.SafetensorError as problem:
            raise ValueError(f"{path.name}: {problem}") from None
        for name, tensor in sorted(tensors, key=lambda item: item[0]):  # the library gives them in any order
            bits = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
            found[name] = Weight(tensor["dtype"], bits)
    if not found:
        raise ValueError(f"{directory} holds no weights")
    return found


def file_of(weights: Weights) -> bytes:
    """A safetensors file of them."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, weight in weights.items():
        end = begin + weight.bits.nbytes
        described[name] = {"dtype": weight.dtype, "shape": weight.bits.shape, "data_offsets": [begin, end]}
        begin = end
    header = json.dumps(described).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(8, "little"), header, *(weight.view() for weight in weights.values())])


def step(weights: dict[str, Weight], generator: np.random.Generator, share: float) -> None:
    """As a training step does, some values of each tensor move a little: about `share` of them. Changed in place."""
    for name, weight in weights.items():
        if weight.dtype == "I64":
            continue
        values = weight.bits.reshape(-1).copy()
        places = generator.integers(0, values.size, size=max(1, round(share * values.size)))
        old = Weight(weight.dtype, values[places]).numbers().astype(np.float32)
        scale = np.float32(max(float(old.std()), 0.05))
        moved = old + generator.standard_normal(places.size, dtype=np.float32) * scale
        values[places] = from_floats(weight.dtype, moved).bits
        weights[name] = Weight(weight.dtype, values.reshape(weight.bits.shape))
