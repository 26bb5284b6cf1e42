"""A made model: random bf16 weights in the layout of a small Qwen3, with config and tokenizer that a vLLM can load.

Its words are syllables: it has learned nothing. Weights are large enough that its greedy answers are far from ties.
"""

from __future__ import annotations

import json

import numpy as np

from vime_sync.demo.weights import Weight, from_floats

HIDDEN, INTERMEDIATE, LAYERS = 256, 768, 6
HEADS, KEY_VALUE_HEADS, HEAD_SIZE = 4, 2, 64
EPSILON, ROPE_BASE = 1e-6, 10000.0
MAX_TOKENS = 256
_SEED = 20

_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_OPENING = ("once", "upon", "a", "time")
_END = "<end>"
WORDS = [_END, "uh", *_OPENING, *(a + b for a in _SYLLABLES for b in _SYLLABLES[::9])][:512]
PROMPT = [WORDS.index(word) for word in _OPENING]


def made_weights() -> dict[str, Weight]:
    """The same on every machine."""
    generator = np.random.default_rng(_SEED)
    return {name: _random(generator, name, shape) for name, shape in _shapes().items()}


def _random(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> Weight:
    values = generator.standard_normal(shape, dtype=np.float32)
    is_norm = name.endswith("norm.weight")
    scale = np.float32(0.1 if is_norm else 2 / np.sqrt(shape[-1]))
    return from_floats("BF16", values * scale + np.float32(is_norm))


def _shapes() -> dict[str, tuple[int, ...]]:
    query, key_value = HEADS * HEAD_SIZE, KEY_VALUE_HEADS * HEAD_SIZE
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (query, HIDDEN),
        "self_attn.k_proj.weight": (key_value, HIDDEN),
        "self_attn.v_proj.weight": (key_value, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, query),
        "self_attn.q_norm.weight": (HEAD_SIZE,),
        "self_attn.k_norm.weight": (HEAD_SIZE,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(WORDS), HIDDEN)}
    for number in range(LAYERS):
        shapes.update((f"model.layers.{number}.{name}", shape) for name, shape in layer.items())
    return {**shapes, "model.norm.weight": (HIDDEN,), "lm_head.weight": (len(WORDS), HIDDEN)}


def made_files() -> dict[str, bytes]:
    """Everything of the checkpoint but its weights."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_SIZE,
        "vocab_size": len(WORDS),
        "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_BASE,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "bfloat16",
    }
    special = {"id": 0, "content": _END, "special": True, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**special, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(WORDS)},
            "unk_token": WORDS[1],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END, "model_max_length": MAX_TOKENS}
    return {
        "config.json": _document(config),
        "generation_config.json": _document({"eos_token_id": 0, "bos_token_id": 0}),
        "tokenizer.json": _document(tokenizer),
        "tokenizer_config.json": _document(settings),
    }


def _document(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()
