"""Bringing this host's engines to the committed local bytes, under the lock: each that is not known to hold them.

Level-triggered: what an engine loaded is remembered on disk and held against what LOCAL holds now, after every pass,
the failed ones too (FIELD_GUIDE E1, E2, E12). An engine is told to load only bytes that were proven and have not
been touched since (promise 1). One engine's trouble is none of another's (E8).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from vime_sync.engines.driver import make_engine
from vime_sync.engines.interface import Engine, EngineReport, EngineState, Load
from vime_sync.engines.spec import EngineSettings, EngineSpec
from vime_sync.errors import EngineNotReady
from vime_sync.local.layout import touched_files
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import weights_digest
from vime_sync.materialize.context import Context
from vime_sync.model import LocalState, Weights
from vime_sync.reconcile.fitting import misfit
from vime_sync.reconcile.one_engine import Acquaintance, Book, Policy, look_at, serve_one
from vime_sync.reconcile.request import Local, load_local

Value = TypeVar("Value")

_BEAT_S = 1.0


def _tell_nobody(spec: EngineSpec) -> None:
    """Commands that end with the load have nobody to tell that it began."""


def _report_to_nobody(report: EngineReport) -> None:
    """Nor that one engine's load has ended."""


@dataclass
class Fleet:
    """This host's engines, how they are treated, and where each stood when it was last looked at."""

    engines: tuple[Engine, ...] = ()
    policy: Policy = field(default_factory=lambda: Policy(False, False, _tell_nobody, _report_to_nobody))
    reports: tuple[EngineReport, ...] = ()
    acquaintance: Acquaintance = field(default_factory=Acquaintance)


def make_fleet(
    specs: Sequence[EngineSpec],
    settings: EngineSettings,
    *,
    gives_up: bool = False,
    is_forced: bool = False,
    on_load: Callable[[EngineSpec], None] = _tell_nobody,
    on_done: Callable[[EngineReport], None] = _report_to_nobody,
) -> Fleet:
    engines = tuple(make_engine(spec, settings) for spec in specs)
    return Fleet(engines, Policy(gives_up, is_forced, on_load, on_done))


def weights_of(local: Local) -> Weights:
    return Weights(local.state.version, weights_digest(local.table), local.state.repairs)


def serve(context: Context, fleet: Fleet) -> None:
    """Have every engine load the committed version; `fleet.reports` say how it went. The lock is held.

    Engine trouble is in the reports and never raised; nothing is loaded while LOCAL is damaged or between versions.
    """
    if not fleet.engines:
        return
    local = load_local(context.paths)
    if local is None or local.state.damaged or touched_files(context.paths, local.state):
        nothing = EngineNotReady(
            f"{context.paths.root} holds no bytes that are proven and untouched since: no engine is told to load them",
            hint="Pull again: it hashes them, and heals what is wrong.",
        )
        fleet.reports = tuple(EngineReport(engine.spec, EngineState.UNKNOWN, error=nothing) for engine in fleet.engines)
        return
    load = Load(weights_of(local), context.paths.root, local.state.share, local.state.base)
    turn = partial(
        _serve_and_tell,
        load=load,
        book=Book(context.paths, fleet.acquaintance),
        policy=fleet.policy,
        refusal=misfit(context, local),
        is_untouched=partial(_is_untouched, context.paths, local.state),
    )
    context.tally.start("reload", len(fleet.engines), 0)
    # Bounded by each engine's own timeouts; the beat says that waiting is all there is to do.
    fleet.reports = all_at_once(
        [partial(turn, engine) for engine in fleet.engines], lambda: context.tally.beat("reload")
    )


def _serve_and_tell(engine: Engine, *, policy: Policy, **turn: Any) -> EngineReport:
    report = serve_one(engine, policy=policy, **turn)
    policy.on_done(report)
    return report


def _is_untouched(paths: LocalPaths, state: LocalState) -> bool:
    return not touched_files(paths, state)


@dataclass(frozen=True)
class Looked:
    """`lacking` are the keys of the engines that are to be loaded."""

    reports: tuple[EngineReport, ...]
    lacking: tuple[str, ...]


def look(paths: LocalPaths, fleet: Fleet, wanted: Weights) -> Looked:
    """Look at every engine, without the lock, and change nothing."""
    book = Book(paths, fleet.acquaintance)
    looks = all_at_once([partial(look_at, engine, book) for engine in fleet.engines], lambda: None)
    out_of_step = fleet.acquaintance.out_of_step
    lacking = tuple(
        found.engine.spec.key
        for found in looks
        if found.needs(wanted, gives_up=fleet.policy.gives_up) and found.engine.spec.key not in out_of_step
    )
    return Looked(tuple(found.report(wanted) for found in looks), lacking)


def all_at_once(functions: Sequence[Callable[[], Value]], beat: Callable[[], None]) -> tuple[Value, ...]:
    """The result of each, in order, run in a thread each. Raises the first one's exception when all have ended.

    The threads are daemons: a look that hangs keeps no process from ending.
    """
    results: list[Future[Value]] = [Future() for _ in functions]

    def run(function: Callable[[], Value], result: Future[Value]) -> None:
        try:
            result.set_result(function())
        except BaseException as problem:  # handed on to whoever waits
            result.set_exception(problem)

    for function, result in zip(functions, results, strict=True):
        threading.Thread(target=run, args=(function, result), daemon=True, name="engine").start()
    waiting: set[Future[Value]] = set(results)
    while waiting:
        waiting = wait_for(waiting, _BEAT_S, FIRST_COMPLETED).not_done
        beat()
    return tuple(result.result() for result in results)
