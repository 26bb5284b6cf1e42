"""Models in memory: named tensors of bytes, made from a seed and changed step by step."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Tensor:
    """One tensor as the format sees it: a dtype named as in headers ("BF16"), a shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Model = dict[str, Tensor]

_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "I64": 8}
_MIXED_DTYPES = ("BF16", "F8_E4M3", "BF16", "F32", "I64", "I8", "F16")
_LAYER_PARTS = (
    "self_attn.q_proj.weight",
    "mlp.experts.0.down_proj.weight",
    "input_layernorm.weight",
    "mlp.gate_proj.weight_scale_inv",
    "self_attn.o_proj.weight",
)


def _names(count: int) -> list[str]:
    names = ["model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"][:count]
    for number in range(max(0, count - len(names))):
        layer, part = divmod(number, len(_LAYER_PARTS))
        names.append(f"model.layers.{layer}.{_LAYER_PARTS[part]}")
    return names


def make_model(seed: int = 0, tensors: int = 6, kib: int = 64) -> Model:
    """A model of `tensors` weights, about `kib` KiB together, plus the three odd ones: scalar, one, empty.

    Row counts are odd so that few byte sizes are round; the first tensor is the largest.
    """
    generator = np.random.default_rng(seed)
    shares = np.linspace(2.0, 1.0, max(1, tensors))
    shares = shares / shares.sum() * kib * 1024
    model: Model = {}
    for number, name in enumerate(_names(tensors)):
        dtype = _MIXED_DTYPES[number % len(_MIXED_DTYPES)]
        columns = 17 if number % 2 else 9
        rows = max(1, int(shares[number]) // (columns * _ITEM_BYTES[dtype])) | 1
        model[name] = Tensor(dtype, (rows, columns), generator.bytes(rows * columns * _ITEM_BYTES[dtype]))
    model["scalar"] = Tensor("F32", (), generator.bytes(4))
    model["one"] = Tensor("U8", (1,), generator.bytes(1))
    model["empty"] = Tensor("BF16", (0, 8), b"")
    return model


def step(model: Model, seed: int, density: float = 0.01, only: Iterable[str] | None = None) -> Model:
    """The next version: about `density` of the bytes of each (or each named) tensor changed, one at least.

    Tensors without bytes stay as they are; every chosen byte really changes.
    """
    generator = np.random.default_rng(seed + 1_000_003)
    chosen = set(model) if only is None else set(only)
    changed: Model = {}
    for name, tensor in model.items():
        if name not in chosen or not tensor.data:
            changed[name] = tensor
            continue
        data = as_bytes_array(tensor.data).copy()
        count = min(data.size, max(1, round(density * data.size)))
        positions = generator.choice(data.size, size=count, replace=False)
        data[positions] ^= generator.integers(1, 256, size=count, dtype=np.uint8)
        changed[name] = Tensor(tensor.dtype, tensor.shape, data.tobytes())
    return changed


def as_bytes_array(data: bytes) -> NDArray[np.uint8]:
    """The bytes as a (read-only) numpy array."""
    return np.frombuffer(data, dtype=np.uint8)
