"""A tiny random Qwen3 that a real engine loads in a second, made with numpy alone.

Owns the model's shape, its config and tokenizer files, and the trainer's step over it. Weights are large enough that
greedy completions are far from ties, and a step large enough that every completion changes.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests import toolkit
from tests.toolkit import Model, Tensor

HIDDEN = 128
LAYERS = 2
HEADS = 4
KEY_VALUE_HEADS = 2
HEAD_SIZE = 32
INTERMEDIATE = 256
VOCABULARY = 320
MAX_TOKENS = 1024
END_OF_TEXT = "<|endoftext|>"

# With one token for each byte and the special one, exactly as many as the vocabulary has.
_MERGED_PAIRS = [consonant + vowel for consonant in "bcdfghlmnprst" for vowel in "aeiou"][: VOCABULARY - 257]


def tiny_qwen3(seed: int = 0) -> Model:
    """Random bf16 weights under the names that Qwen3 checkpoints have."""
    generator = np.random.default_rng(seed)
    model: Model = {}
    for name, shape in _shapes().items():
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * generator.standard_normal(shape, dtype=np.float32)
        else:
            values = generator.standard_normal(shape, dtype=np.float32) * np.float32(2 / np.sqrt(shape[-1]))
        model[name] = Tensor("BF16", shape, to_bf16(values))
    return model


def train(model: Model, seed: int, *, share: float = 0.2, only: Iterable[str] | None = None) -> Model:
    """The trainer's next step: `share` of the values of each (or each named) tensor move by about their own size."""
    generator = np.random.default_rng(seed + 7_000_003)
    chosen = set(model) if only is None else set(only)
    trained: Model = {}
    for name, tensor in model.items():
        if name not in chosen:
            trained[name] = tensor
            continue
        values = from_bf16(tensor.data).reshape(tensor.shape)
        scale = np.float32(0.1 if name.endswith("norm.weight") else values.std())
        moved = generator.random(tensor.shape) < share
        values = np.where(moved, values + scale * generator.standard_normal(tensor.shape, dtype=np.float32), values)
        trained[name] = Tensor("BF16", tensor.shape, to_bf16(values))
    return trained


def with_nan(model: Model, name: str = "model.layers.0.mlp.up_proj.weight") -> Model:
    """The same model with one tensor full of NaN: it loads, and everything that it says is nonsense."""
    tensor = model[name]
    nan = to_bf16(np.full(tensor.shape, np.nan, dtype=np.float32))
    return {**model, name: Tensor("BF16", tensor.shape, nan)}


def to_bf16(values: NDArray[np.float32]) -> bytes:
    """Rounded to the nearest even, as trainers do; little endian. NaN stays NaN."""
    bits = values.astype("<f4").view("<u4")
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    bf16: NDArray[np.uint16] = np.where(np.isnan(values), np.uint16(0x7FC0), rounded).astype("<u2")
    return bf16.tobytes()


def from_bf16(data: bytes) -> NDArray[np.float32]:
    """The values as 32 bit floats, flat."""
    return (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4")


def write_tiny(directory: Path, model: Model, *, shards: int = 3) -> Path:
    """A checkpoint directory that the engine can be started on: weights, index, config and tokenizer."""
    toolkit.write_checkpoint(directory, model, shards=shards, extra_files=tiny_files())
    return directory


def tiny_files() -> dict[str, bytes]:
    """Everything of the checkpoint but the weights."""
    return {
        "config.json": _document(_config()),
        "generation_config.json": _document({"eos_token_id": 0, "bos_token_id": 0}),
        "tokenizer.json": _document(_tokenizer()),
        "tokenizer_config.json": _document(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "model_max_length": MAX_TOKENS}
        ),
    }


def _document(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for number in range(LAYERS):
        layer = f"model.layers.{number}."
        shapes |= {
            layer + "input_layernorm.weight": (HIDDEN,),
            layer + "self_attn.q_proj.weight": (HEADS * HEAD_SIZE, HIDDEN),
            layer + "self_attn.k_proj.weight": (KEY_VALUE_HEADS * HEAD_SIZE, HIDDEN),
            layer + "self_attn.v_proj.weight": (KEY_VALUE_HEADS * HEAD_SIZE, HIDDEN),
            layer + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_SIZE),
            layer + "self_attn.q_norm.weight": (HEAD_SIZE,),
            layer + "self_attn.k_norm.weight": (HEAD_SIZE,),
            layer + "post_attention_layernorm.weight": (HIDDEN,),
            layer + "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            layer + "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            layer + "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    shapes["model.norm.weight"] = (HIDDEN,)
    shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return shapes


def _config() -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_SIZE,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def _tokenizer() -> dict[str, object]:
    """Byte-level BPE: one token for each byte, a few merged pairs, one special token."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + number) for number in range(len(others))]
    tokens = [END_OF_TEXT, *alphabet, *_MERGED_PAIRS]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"id": 0, "content": END_OF_TEXT, "special": True, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**special, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [f"{pair[0]} {pair[1]}" for pair in _MERGED_PAIRS],
        },
    }
