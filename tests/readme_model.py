"""A small model that looks like a real one, and a training that moves it as real training does.

Weights are bf16 in the layout of a small Qwen3; the training keeps them in fp32, adds N(0, learning rate) a step and
rounds to bf16. So most low bytes stay as they are and few high ones move: deltas of the size that real runs publish.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.toolkit import Model, Tensor

_HEAD_SIZE = 64
_BF16_BYTES = 2


@dataclass(frozen=True)
class Size:
    """The figures of a Qwen3 config that the layout follows from."""

    vocabulary: int = 16000
    hidden: int = 512
    intermediate: int = 1024
    layers: int = 6
    heads: int = 8
    key_value_heads: int = 4

    def config(self) -> bytes:
        """The `config.json` of such a checkpoint."""
        document = {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": _HEAD_SIZE,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }
        return json.dumps(document, indent=2).encode()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's name and shape, in the order of a real checkpoint."""
        query, key_value = self.heads * _HEAD_SIZE, self.key_value_heads * _HEAD_SIZE
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden,),
            "self_attn.q_proj.weight": (query, self.hidden),
            "self_attn.k_proj.weight": (key_value, self.hidden),
            "self_attn.v_proj.weight": (key_value, self.hidden),
            "self_attn.o_proj.weight": (self.hidden, query),
            "self_attn.q_norm.weight": (_HEAD_SIZE,),
            "self_attn.k_norm.weight": (_HEAD_SIZE,),
            "post_attention_layernorm.weight": (self.hidden,),
            "mlp.gate_proj.weight": (self.intermediate, self.hidden),
            "mlp.up_proj.weight": (self.intermediate, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.intermediate),
        }
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for number in range(self.layers):
            shapes.update((f"model.layers.{number}.{name}", shape) for name, shape in layer.items())
        shapes["model.norm.weight"] = (self.hidden,)
        return shapes


class Trainer:
    """Holds the fp32 master weights; `weights` are what it would save."""

    def __init__(self, size: Size, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._masters = {name: self._initial(name, shape) for name, shape in size.shapes().items()}
        self.weights = self._rounded()

    def _initial(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if name.endswith("norm.weight"):
            return np.ones(shape, np.float32)
        scale = np.float32(self._generator.uniform(0.02, 0.04))
        values: NDArray[np.float32] = self._generator.standard_normal(shape, np.float32) * scale
        return values

    def train(self, learning_rate: float) -> Model:
        """One step; returns the new weights."""
        for master in self._masters.values():
            master += self._generator.standard_normal(master.shape, np.float32) * np.float32(learning_rate)
        self.weights = self._rounded()
        return self.weights

    def _rounded(self) -> Model:
        return {name: Tensor("BF16", master.shape, _to_bf16(master)) for name, master in self._masters.items()}


def _to_bf16(values: NDArray[np.float32]) -> bytes:
    """Round to nearest, ties to even, as every framework does; numpy has no bf16 of its own."""
    bits = values.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)
    return bytes(rounded.astype("<u2").data)
