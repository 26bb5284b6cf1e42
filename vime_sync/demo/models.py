"""Which model the demo uses: the real MiniLM, or a made one and why. Writes the base, version 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vime_sync import fsio
from vime_sync.demo.completion import Completion
from vime_sync.demo.made import made_files, made_weights
from vime_sync.demo.minilm import VOCABULARY_NAME, Unavailable, find_minilm
from vime_sync.demo.similarity import Similarity
from vime_sync.demo.weights import Weights, file_of

# MiniLM four times over (base, local, the trainer's own copy, its download), and what is staged.
_ROOM_BYTES = 700_000_000


class Task(Protocol):
    """A question, and the answer that weights give to it."""

    @property
    def question(self) -> str: ...

    def request(self, model: str) -> dict[str, Any]:
        """What an engine is sent, by its completions endpoint."""

    def choice(self, weights: Weights) -> dict[str, Any]:
        """What an engine with these weights answers."""

    def told(self, choice: Mapping[str, Any]) -> str:
        """An engine's answer for people, and to compare."""


@dataclass(frozen=True)
class Model:
    """`note` says where it is from, or why it is a made one. `base` is its directory."""

    name: str
    note: str
    base: Path
    task: Task


def prepare_model(
    root: Path, *, only_made: str | None, offline: bool, say: Callable[[str], None], check_stop: Callable[[], None]
) -> Model:
    """Have the base in `root`. `only_made` says why it has to be the made one, None that it need not be."""
    base = root / "base"
    fsio.make_directory(base)
    try:
        if only_made is not None:
            raise Unavailable(only_made)
        if fsio.free_bytes(root) < _ROOM_BYTES:
            raise Unavailable(f"MiniLM takes {_ROOM_BYTES // 1_000_000} MB of room, and {root} has less")
        files, origin = find_minilm(root / "download", offline=offline, say=say, check_stop=check_stop)
    except Unavailable as problem:
        files = {**made_files(), "model.safetensors": file_of(made_weights())}
        model = Model("a made model in the layout of Qwen3", str(problem), base, Completion())
    else:
        task = Similarity(files[VOCABULARY_NAME].decode().splitlines())
        model = Model("MiniLM (all-MiniLM-L6-v2)", origin, base, task)
    for name, data in files.items():
        fsio.write_atomic(base / name, data, durable=False)
    fsio.remove_tree(root / "download")
    return model
