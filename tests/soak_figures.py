"""Figures for people: how soon an engine is told of a version, and what a daemon takes at rest. Never asserted."""

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests import toolkit
from tests.fake_http import Answer, Exchange
from tests.fake_vllm import FakeVllm
from tests.soak_processes import WatchProcess
from tests.toolkit import make_model, step

Say = Callable[[str], None]

_VERSIONS = 40
_IDLE_S = 20.0
_SAFETY_S = 60.0
_TOLD = "/collective_rpc"
_LOADED = "/update_weight_version"


def quietly(text: str) -> None:
    """Says nothing."""


class TimedVllm(FakeVllm):
    """Notes when each call came in."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.times: dict[str, list[float]] = {}
        self._noted = threading.Condition()

    def answer(self, exchange: Exchange) -> Answer:
        with self._noted:
            self.times.setdefault(exchange.call.path, []).append(time.monotonic())
            self._noted.notify_all()
        return super().answer(exchange)

    def nth(self, path: str, count: int) -> float:
        """When the call to a path came that was the `count`-th."""
        with self._noted:
            arrived = self._noted.wait_for(lambda: len(self.times.get(path, ())) >= count, _SAFETY_S)
        assert arrived, f"no call number {count} to {path}"
        return self.times[path][count - 1]


def measure(root: Path) -> list[str]:
    """One daemon with 1 s polls, one engine, a tiny model: lines to print."""
    model = make_model(0)
    base, shared = root / "base", root / "shared"
    toolkit.write_checkpoint(base, model)
    shared.mkdir()
    told: list[float] = []
    loaded: list[float] = []
    with TimedVllm(base) as engine:
        options: list[str | Path] = ["--shared", shared, "--local", root / "local", "--base", base]
        watch = WatchProcess([*options, "--engine", f"vllm={engine.url}", "--http", "0"], root / "watch.log")
        watch.start()
        try:
            engine.nth(_LOADED, 1)  # the base
            pause = threading.Event()
            for version in range(1, _VERSIONS + 1):
                pause.wait(0.3)
                new = step(model, version)
                toolkit.publish_delta(shared, version, model, new)
                renamed = time.monotonic()
                model = new
                told.append(engine.nth(_TOLD, version + 1) - renamed)
                loaded.append(engine.nth(_LOADED, version + 1) - renamed)
            pause.wait(3.0)
            before = watch.cpu_seconds()
            pause.wait(_IDLE_S)
            idle = (watch.cpu_seconds() - before) / _IDLE_S
            watch.ask_to_end()
            watch.expect_end()
        finally:
            watch.end()
    return [
        f"index renamed -> engine told to load: {_spread(told)} ({_VERSIONS} versions)",
        f"index renamed -> engine loaded and numbered: {_spread(loaded)}",
        f"at rest over {_IDLE_S:g} s with 1 s polls: {idle * 100:.2f} % of a core",
    ]


def _spread(seconds: list[float]) -> str:
    percentile = statistics.quantiles(seconds, n=20)[-1]
    return (
        f"median {statistics.median(seconds) * 1000:.0f} ms, 95 % {percentile * 1000:.0f} ms, "
        f"longest {max(seconds) * 1000:.0f} ms"
    )
