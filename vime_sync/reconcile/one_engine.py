"""One engine's turn: what is remembered of it, what it tells, whether it is to be loaded, and what came of that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vime_sync.engines.driver import bring, holds, is_given_up, is_out_of_step
from vime_sync.engines.interface import Engine, EngineReport, EngineState, Load, Sighting, Turn
from vime_sync.engines.spec import EngineKind, EngineSpec
from vime_sync.errors import (
    ENGINE_ERRORS,
    EngineBusy,
    EngineNotReady,
    EngineOutOfStep,
    EngineRefused,
    EngineSilent,
    EngineUncertain,
    EngineUnreachable,
    SyncError,
)
from vime_sync.local.paths import LocalPaths
from vime_sync.local.records import read_engines, write_engines
from vime_sync.model import EngineMemory, Weights


@dataclass
class Acquaintance:
    """What only a process that goes on watching knows, by engine: kept on no disk.

    `lost` were unreachable since their last load, `loaded` were loaded by this process and not lost since. The ranks
    of `out_of_step` answered another call before they were even paused: only a restart helps.
    """

    lost: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    out_of_step: set[str] = field(default_factory=set)


class Book:
    """What is remembered of the engines, shared by their threads, and on disk before an engine is touched."""

    def __init__(self, paths: LocalPaths, acquaintance: Acquaintance) -> None:
        self._paths = paths
        self._acquaintance = acquaintance
        self._guard = threading.Lock()
        self._memories = read_engines(paths)

    def get(self, spec: EngineSpec) -> EngineMemory:
        """What counts of it now.

        After it was unreachable another process may answer there. Its weight version will tell; but where a load had
        failed, or it tells none (vLLM up to 0.20), nothing counts that is remembered of the one before.
        """
        with self._guard:
            memory = self._memories.get(spec.key, EngineMemory())
            if memory.error is not None:
                forget = spec.key in self._acquaintance.lost
            else:
                tells_nothing = memory.told is None and spec.kind is not EngineKind.WEBHOOK and not memory.is_open
                forget = tells_nothing and spec.key not in self._acquaintance.loaded
            return EngineMemory() if forget else memory

    def put(self, spec: EngineSpec, memory: EngineMemory) -> None:
        with self._guard:
            self._acquaintance.lost.discard(spec.key)
            self._acquaintance.loaded.add(spec.key)
            self._acquaintance.out_of_step.discard(spec.key)
            if self._memories.get(spec.key) != memory:
                self._memories[spec.key] = memory
                write_engines(self._paths, self._memories)

    def lose(self, spec: EngineSpec) -> None:
        with self._guard:
            self._acquaintance.lost.add(spec.key)
            self._acquaintance.loaded.discard(spec.key)
            self._acquaintance.out_of_step.discard(spec.key)

    def note_out_of_step(self, spec: EngineSpec) -> None:
        with self._guard:
            self._acquaintance.out_of_step.add(spec.key)


@dataclass(frozen=True)
class Look:
    """What is known of an engine after a look; `seen` is None where it did not answer, with the `problem`."""

    engine: Engine
    memory: EngineMemory
    seen: Sighting | None
    problem: SyncError | None = None

    def needs(self, wanted: Weights, *, gives_up: bool) -> bool:
        """Whether it is to be loaded. `gives_up`: not where it failed, and nothing has changed since."""
        if self.seen is None or self.is_out_of_step or holds(self.memory, self.seen, wanted):
            return False
        return not (gives_up and is_given_up(self.memory, self.seen, wanted))

    def report(self, wanted: Weights) -> EngineReport:
        spec, memory, seen = self.engine.spec, self.memory, self.seen
        if seen is None:
            state = EngineState.UNKNOWN if isinstance(self.problem, EngineBusy) else EngineState.UNREACHABLE
            return EngineReport(spec, state, error=self.problem)
        if memory.told != seen.version:
            return EngineReport(spec, EngineState.UNKNOWN)  # it has restarted
        if memory.error is not None:
            kind = ENGINE_ERRORS.get(memory.error_id or "", EngineUncertain)
            return EngineReport(spec, EngineState.FAILED, error=kind(memory.error))
        if memory.weights is None or memory.is_open:
            return EngineReport(spec, EngineState.UNKNOWN)
        is_current = holds(memory, seen, wanted)
        is_paused = seen.is_paused is True
        return EngineReport(
            spec, EngineState.AT_VERSION, memory.weights.version, is_current=is_current, is_paused=is_paused
        )

    @property
    def is_out_of_step(self) -> bool:
        """Until it restarts: then it tells another version, or is not paused any more as we had left it."""
        seen, memory = self.seen, self.memory
        if seen is None or memory.told != seen.version or (memory.is_open and seen.is_paused is False):
            return False
        return is_out_of_step(memory)


def look_at(engine: Engine, book: Book) -> Look:
    try:
        return Look(engine, book.get(engine.spec), engine.look())
    except EngineBusy as problem:
        return Look(engine, book.get(engine.spec), None, problem)
    except EngineUnreachable as problem:
        book.lose(engine.spec)
        return Look(engine, book.get(engine.spec), None, problem)


@dataclass(frozen=True)
class Policy:
    """`gives_up`: a load that failed is not tried again before something changed; `is_forced`: load what holds it too.

    `on_load` is told of each engine right before it is touched, `on_done` where it stands after its turn, from its
    thread: another one may still be draining.
    """

    gives_up: bool
    is_forced: bool
    on_load: Callable[[EngineSpec], None]
    on_done: Callable[[EngineReport], None]


def serve_one(
    engine: Engine,
    load: Load,
    book: Book,
    policy: Policy,
    refusal: EngineNotReady | None,
    is_untouched: Callable[[], bool],
) -> EngineReport:
    """Load it where it does not hold the weights of `load`. `refusal` says why engines of a model cannot."""
    started = time.monotonic()
    spec = engine.spec
    found = look_at(engine, book)
    memory, seen = found.memory, found.seen
    is_needed = found.needs(load.weights, gives_up=policy.gives_up)
    if seen is None or not (is_needed or (policy.is_forced and not found.is_out_of_step)):
        return found.report(load.weights)
    # One that others had paused before our open load, and that is not paused now, has restarted since.
    leave_paused = memory.leave_paused and seen.is_paused is not False if memory.is_open else seen.is_paused is True
    begun = EngineMemory(load.weights, seen.version, True, leave_paused)

    touched = threading.Event()

    def before_pause() -> None:
        touched.set()
        book.put(spec, begun)
        policy.on_load(spec)

    def trouble(problem: SyncError, state: EngineState = EngineState.FAILED) -> EngineReport:
        return EngineReport(spec, state, error=problem, was_tried=True, seconds=time.monotonic() - started)

    if refusal is not None and spec.kind is not EngineKind.WEBHOOK:
        return trouble(refusal)
    turn = Turn(memory.is_open, memory.error is not None, leave_paused, before_pause, is_untouched)
    try:
        told = _bring(engine, load, turn)
    except EngineNotReady as problem:
        if spec.kind is not EngineKind.WEBHOOK:  # what stands behind one may have acted, and said no all the same
            book.put(spec, memory)  # it was not touched, or is back at what it had
        return trouble(problem)
    except EngineSilent as problem:
        return trouble(problem, EngineState.UNKNOWN)  # its load stays open: finished when it answers again
    except EngineUnreachable as problem:
        book.lose(spec)
        return trouble(problem, EngineState.UNREACHABLE)
    except (EngineRefused, EngineUncertain) as problem:
        if not touched.is_set():  # it serves what it served
            if isinstance(problem, EngineOutOfStep):
                book.note_out_of_step(spec)
                return trouble(problem)
            return trouble(EngineNotReady(problem.message, hint=problem.hint))
        book.put(spec, replace(begun, told=_told(engine, seen), error=problem.message, error_id=problem.id))
        return trouble(problem)
    held = EngineMemory(load.weights, told.version)
    book.put(spec, held)
    done = Look(engine, held, told).report(load.weights)
    return replace(done, was_tried=True, seconds=time.monotonic() - started)


def _bring(engine: Engine, load: Load, turn: Turn) -> Sighting:
    """As `bring`; what an engine's answer can break in us is that engine's trouble alone (E8)."""
    try:
        return bring(engine, load, turn)
    except (SyncError, OSError):  # OSError: the record of it cannot be written
        raise
    except Exception as problem:
        raise EngineUncertain(f"{engine.spec}: unexpected {type(problem).__name__}: {problem}") from problem


def _told(engine: Engine, seen: Sighting) -> str | None:
    """The version that an engine tells after a failed load: what a later look is compared with."""
    try:
        return engine.look().version
    except SyncError:
        return seen.version
