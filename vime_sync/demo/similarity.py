"""What MiniLM says: how alike two sentences are, by its six layers in plain numpy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vime_sync.demo.weights import Floats, Weights

FIRST, SECOND = "a cat sits on the mat", "a kitten rests on a rug"
_LAYERS, _HEADS, _EPSILON = 6, 12, 1e-12


class Similarity:
    """The question that MiniLM is asked. `vocabulary` are its words, in the order of their numbers."""

    question = f"how alike are {FIRST!r} and {SECOND!r}?"

    def __init__(self, vocabulary: Sequence[str]) -> None:
        numbers = {word: number for number, word in enumerate(vocabulary)}
        self._sentences = [
            [numbers[word] for word in ("[CLS]", *sentence.split(), "[SEP]")] for sentence in (FIRST, SECOND)
        ]

    def request(self, model: str) -> dict[str, Any]:
        return {"model": model, "prompt": [FIRST, SECOND]}

    def choice(self, weights: Weights) -> dict[str, Any]:
        """What an engine with these weights answers."""
        first, second = (_embedding(weights, tokens) for tokens in self._sentences)
        alike = float(first @ second / np.sqrt((first @ first) * (second @ second)))
        return {"text": f"{alike:.5f}"}

    def told(self, choice: Mapping[str, Any]) -> str:
        return str(choice.get("text"))


def _embedding(weights: Weights, tokens: Sequence[int]) -> Floats:
    """The mean over all tokens of what the last layer gives."""

    def numbers(name: str) -> Floats:
        return weights[name].numbers()

    def norm(values: Floats, name: str) -> Floats:
        centred = values - values.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON)
        result: Floats = scaled * numbers(f"{name}.weight") + numbers(f"{name}.bias")
        return result

    def dense(values: Floats, name: str) -> Floats:
        result: Floats = values @ numbers(f"{name}.weight").T + numbers(f"{name}.bias")
        return result

    words = weights["embeddings.word_embeddings.weight"]
    rows = type(words)(words.dtype, words.bits[np.asarray(tokens)]).numbers()
    places = numbers("embeddings.position_embeddings.weight")[: len(tokens)]
    hidden = norm(rows + places + numbers("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
    for layer in range(_LAYERS):
        part = f"encoder.layer.{layer}"
        query, key, value = (
            dense(hidden, f"{part}.attention.self.{name}").reshape(len(tokens), _HEADS, -1).transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = ((scores / scores.sum(axis=-1, keepdims=True)) @ value).transpose(1, 0, 2).reshape(len(tokens), -1)
        hidden = norm(hidden + dense(mixed, f"{part}.attention.output.dense"), f"{part}.attention.output.LayerNorm")
        inner = dense(hidden, f"{part}.intermediate.dense")
        # The usual approximation of GELU: numpy has no error function.
        inner = inner / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        hidden = norm(hidden + dense(inner, f"{part}.output.dense"), f"{part}.output.LayerNorm")
    mean: Floats = hidden.mean(axis=0)
    return mean
