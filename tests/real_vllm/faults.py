"""Accidents inside a real worker: mixed into it by `--worker-extension-cls`, as any extension is.

Runs in the engine's environment. The accidents are those of a disk: reading the checkpoint breaks off half way, or
hangs there, so it is vLLM itself that leaves the model half loaded, and says what it says.
"""

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vime_sync.vllm_extension import PullWeightsExtension

ACCIDENT = "the disk of this story broke"

# Where vLLM looks for what reads a checkpoint when it loads it again.
_PLACE = "vllm.model_executor.model_loader.reload.inplace"
_TENSORS_BEFORE = 9
_POLL_S = 0.02


class FaultyWorker:
    """The worker whose next loads go wrong. Names begin with `story_`: no worker has such ones."""

    def story_fail_loads(self: Any, times: int, rank: int = 0) -> dict[str, int]:
        """The next so many loads of that rank fail in the middle."""
        if self.rank == rank:
            _plan(self)["left"] = times
        return {"rank": self.rank}

    def story_hold_next_load(self: Any, gate: str) -> dict[str, int]:
        """The next load makes the file `GATE.reached` in the middle, and goes on when the file `gate` is there."""
        _plan(self)["gate"] = gate
        return {"rank": self.rank}

    def story_loads(self: Any) -> dict[str, int]:
        """How many loads were begun since the first accident was arranged."""
        return {"begun": _plan(self)["begun"]}


class FaultyPullWeightsExtension(FaultyWorker, PullWeightsExtension):
    """The extension of the product in such a worker."""


def _plan(worker: Any) -> dict[str, Any]:
    kept: dict[str, Any] = worker.__dict__
    if "_story_plan" not in kept:
        kept["_story_plan"] = {"left": 0, "gate": None, "begun": 0}
        place = importlib.import_module(_PLACE)
        whole = place.__dict__["get_model_loader"]
        place.__dict__["get_model_loader"] = lambda config: _Loader(kept["_story_plan"], whole(config))
    plan: dict[str, Any] = kept["_story_plan"]
    return plan


class _Loader:
    def __init__(self, plan: dict[str, Any], whole: Any) -> None:
        self._plan, self._whole = plan, whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def get_all_weights(self, config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        plan = self._plan
        plan["begun"] += 1
        fails, gate = plan["left"] > 0, plan["gate"]
        plan.update(left=plan["left"] - fails, gate=None)
        for number, item in enumerate(self._whole.get_all_weights(config, model)):
            if number == _TENSORS_BEFORE and gate is not None:
                Path(f"{gate}.reached").touch()
                while not Path(gate).exists():
                    time.sleep(_POLL_S)
            if number == _TENSORS_BEFORE and fails:
                raise OSError(5, ACCIDENT)
            yield item
