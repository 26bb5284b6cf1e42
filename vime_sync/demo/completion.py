"""What the made model says: a small Qwen3 in plain numpy, the most likely token taken each time. Pure.

For the embedded engine it is the model; for a real vLLM it is the independent answer that vLLM is held against.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vime_sync.demo import made
from vime_sync.demo.weights import Floats, Weights

ANSWER_TOKENS = 5


class Completion:
    """The question that the made model is asked."""

    question = "how does it go on after " + repr(" ".join(made.WORDS[token] for token in made.PROMPT)) + "?"

    def request(self, model: str) -> dict[str, Any]:
        """By the OpenAI endpoint; with tokens, so that no tokenizer takes part."""
        return {
            "model": model,
            "prompt": list(made.PROMPT),
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def choice(self, weights: Weights) -> dict[str, Any]:
        """What an engine with these weights answers."""
        tokens = complete(weights, made.PROMPT, ANSWER_TOKENS)
        return {"text": _words(tokens), "token_ids": tokens, "finish_reason": "length"}

    def told(self, choice: Mapping[str, Any]) -> str:
        return _words(choice.get("token_ids") or ())


def _words(tokens: Sequence[int]) -> str:
    return " ".join(made.WORDS[token] if 0 <= token < len(made.WORDS) else "?" for token in tokens)


def complete(weights: Weights, prompt: Sequence[int], count: int) -> list[int]:
    numbers = {name: weight.numbers() for name, weight in weights.items()}
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(_next_token(numbers, tokens))))
    return tokens[len(prompt) :]


def _next_token(numbers: Mapping[str, Floats], tokens: Sequence[int]) -> Floats:
    hidden = numbers["model.embed_tokens.weight"][np.asarray(tokens)]
    turn = _turns(len(tokens))
    for layer in range(made.LAYERS):
        part = {
            name.removeprefix(f"model.layers.{layer}."): value
            for name, value in numbers.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        hidden = hidden + _attention(part, _norm(hidden, part["input_layernorm.weight"]), turn)
        inner = _norm(hidden, part["post_attention_layernorm.weight"])
        gate = inner @ part["mlp.gate_proj.weight"].T
        gated = gate / (1 + np.exp(-gate)) * (inner @ part["mlp.up_proj.weight"].T)
        hidden = hidden + gated @ part["mlp.down_proj.weight"].T
    last: Floats = _norm(hidden[-1], numbers["model.norm.weight"]) @ numbers["lm_head.weight"].T
    return last


def _norm(values: Floats, weight: Floats) -> Floats:
    scaled: Floats = values / np.sqrt(np.mean(values**2, axis=-1, keepdims=True) + made.EPSILON) * weight
    return scaled


def _turns(count: int) -> tuple[Floats, Floats]:
    """Cosine and sine of each position's angles (rotary embedding)."""
    frequencies = made.ROPE_BASE ** -(np.arange(0, made.HEAD_SIZE, 2) / made.HEAD_SIZE)
    angles = np.outer(np.arange(count), frequencies)
    both = np.concatenate([angles, angles], axis=-1)
    return np.cos(both), np.sin(both)


def _attention(part: Mapping[str, Floats], inner: Floats, turn: tuple[Floats, Floats]) -> Floats:
    count = len(inner)
    cosine, sine = turn

    def heads(name: str, norm: str | None) -> Floats:
        values = (inner @ part[f"self_attn.{name}_proj.weight"].T).reshape(count, -1, made.HEAD_SIZE)
        if norm is not None:
            values = _norm(values, part[f"self_attn.{norm}.weight"])
            half = made.HEAD_SIZE // 2
            turned = np.concatenate([-values[..., half:], values[..., :half]], axis=-1)
            values = values * cosine[:, None] + turned * sine[:, None]
        if name != "q":
            values = np.repeat(values, made.HEADS // made.KEY_VALUE_HEADS, axis=1)
        by_head: Floats = values.transpose(1, 0, 2)
        return by_head

    query, key, value = heads("q", "q_norm"), heads("k", "k_norm"), heads("v", None)
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(made.HEAD_SIZE)
    scores = np.where(np.tril(np.ones((count, count), bool)), scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
    joined: Floats = mixed.transpose(1, 0, 2).reshape(count, -1) @ part["self_attn.o_proj.weight"].T
    return joined
