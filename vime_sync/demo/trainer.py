"""The trainer of the demo: weights in memory, steps over them, and `vime_sync.publish` after each.

Remembers of every version what its weights answer and what each tensor's digest is: what the host and the engine are
held against.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vime_sync.demo.models import Model
from vime_sync.demo.telling import human_size
from vime_sync.demo.weights import digests, read_weights, size_bytes, step
from vime_sync.publish import Tensor, publish_tensors

# Late in training few values move; early ones move many, and applying them takes longer.
FINE_SHARE, COARSE_SHARE = 0.01, 0.08
_SEED = 7
# What a host reads and writes at a time.
_BLOCK_BYTES = 1 << 20
_TRIES = 20


@dataclass(frozen=True)
class Right:
    """What is right at a version: the answer, and the digest of every tensor."""

    answer: str
    digests: dict[str, str]


class Trainer:
    def __init__(self, root: Path, model: Model) -> None:
        self._root = root
        self._task = model.task
        self._weights = read_weights(model.base)
        self._generator = np.random.default_rng(_SEED)
        self.size_bytes = size_bytes(self._weights)
        self.tensor_count = len(self._weights)
        self.block_count = sum(-(-weight.bits.nbytes // _BLOCK_BYTES) for weight in self._weights.values())
        self.right = {0: self._right()}

    @property
    def newest(self) -> int:
        return max(self.right)

    def publish(self, encoding: str = "xor", share: float = FINE_SHARE) -> str:
        """Take a step and publish it as the next version; what was published, in words. Raises SyncError."""
        before = self.right[self.newest].answer
        for _ in range(_TRIES):  # until the answer shows it: the first step does, nearly always
            step(self._weights, self._generator, share)
            right = self._right()
            if right.answer != before:
                break
        published = publish_tensors(
            [Tensor(name, weight.dtype, weight.bits.shape, weight.view()) for name, weight in self._weights.items()],
            shared=self._root / "share",
            base=self._root / "base",
            cache=self._root / "trainer",
            encoding=encoding,
        )
        self.right[published.version] = right
        return (
            f"published version {published.version} ({published.encoding} delta): {published.density or 0:.1%} of the "
            f"bytes changed, {human_size(published.wire_bytes)} instead of {human_size(published.total_bytes)}"
        )

    def _right(self) -> Right:
        return Right(self._task.told(self._task.choice(self._weights)), digests(self._weights))
