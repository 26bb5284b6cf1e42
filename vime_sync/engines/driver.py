"""When an engine is to be loaded, and how often: decisions over what is remembered of it and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vime_sync.engines.interface import Engine, Load, Sighting, Turn
from vime_sync.engines.sglang import SglangEngine
from vime_sync.engines.spec import EngineKind, EngineSettings, EngineSpec
from vime_sync.engines.vllm import VllmEngine
from vime_sync.engines.webhook import WebhookEngine
from vime_sync.errors import (
    EngineNotReady,
    EngineOutOfStep,
    EngineRefused,
    EngineSilent,
    EngineUncertain,
)
from vime_sync.model import EngineMemory, Weights


def make_engine(spec: EngineSpec, settings: EngineSettings) -> Engine:
    kinds: dict[EngineKind, Callable[[EngineSpec, EngineSettings], Engine]] = {
        EngineKind.VLLM: VllmEngine,
        EngineKind.SGLANG: SglangEngine,
        EngineKind.WEBHOOK: WebhookEngine,
    }
    return kinds[spec.kind](spec, settings)


def holds(memory: EngineMemory, seen: Sighting, wanted: Weights) -> bool:
    """Whether an engine that looks like this holds the wanted weights: what it loaded counts, not its number (E12)."""
    return memory.weights == wanted and not memory.is_open and memory.error is None and memory.told == seen.version


def is_given_up(memory: EngineMemory, seen: Sighting, wanted: Weights) -> bool:
    """Whether only other weights, or a restart, can change that its load failed; once its ranks are out of step, only
    a restart."""
    if memory.error is None or memory.told != seen.version or (memory.is_open and seen.is_paused is False):
        return False  # one that was left paused, and is not paused any more, has restarted
    return memory.weights == wanted or is_out_of_step(memory)


def is_out_of_step(memory: EngineMemory) -> bool:
    return memory.error_id == EngineOutOfStep.id


def bring(engine: Engine, load: Load, turn: Turn) -> Sighting:
    """Load, and once more after a failure that a good load may mend (E3). Raises the second one's error."""
    try:
        return engine.load(load, turn)
    except (EngineNotReady, EngineSilent, EngineOutOfStep):
        raise
    except (EngineRefused, EngineUncertain):
        try:
            return engine.load(load, replace(turn, was_left_paused=True, is_in_doubt=True))
        except EngineNotReady as problem:
            # It was touched by the first attempt: what it serves is not what it served.
            raise EngineRefused(problem.message, hint=problem.hint) from None
