"""One host whose engines are to be served, for tests that read as stories.

What an engine was told is read from the fake's record of calls; what it holds is compared with whole models in
memory.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests import toolkit
from tests.fake_engine import FakeServer
from tests.fake_sglang import FakeSglang
from tests.fake_stories import ask
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.host import Host
from vime_sync.engines.interface import EngineReport
from vime_sync.engines.spec import EngineSettings, EngineSpec, parse_engine
from vime_sync.local.paths import local_paths
from vime_sync.materialize.context import Context
from vime_sync.model import Weights
from vime_sync.reconcile.request import load_local
from vime_sync.reconcile.serving import Fleet, Looked, look, make_fleet, serve, weights_of

SAFETY_S = 60.0
# Generous for what answers at once, short for what never does.
QUICK = EngineSettings(timeout_s=SAFETY_S, look_timeout_s=SAFETY_S)

# What a load of a vLLM says to it, and in which order.
VLLM_LOAD = [
    "POST /pause",
    "POST /collective_rpc",
    "POST /reset_prefix_cache",
    "POST /update_weight_version",
    "POST /resume",
]
SGLANG_LOAD = [
    "POST /pause_generation",
    "POST /flush_cache",
    "POST /update_weights_from_disk",
    "POST /continue_generation",
]


def spec_of(fake: FakeServer, path: str = "") -> EngineSpec:
    kind = {FakeVllm: "vllm", FakeSglang: "sglang", FakeWebhook: "webhook"}[type(fake)]
    return parse_engine(f"{kind}={fake.url}{path}")


def posts(fake: FakeServer) -> list[str]:
    """What the engine was told, questions left out."""
    return [call for call in fake.told() if call.startswith("POST")]


def is_paused(fake: FakeVllm) -> bool:
    return ask(fake, "/is_paused").json()["is_paused"] is True


def small_host(root: Path) -> Host:
    """A host that holds version 1; the share has no other."""
    host = Host.create(root, model=toolkit.make_model(kib=8))
    host.publish()
    host.pulled()
    return host


@dataclass
class Story:
    """A host with engines, as the daemon and the commands see them: the lock is nobody else's here."""

    host: Host
    settings: EngineSettings = field(default_factory=lambda: QUICK)
    fleets: dict[tuple[EngineSpec, ...], Fleet] = field(default_factory=dict)

    def context(self) -> Context:
        return Context(local_paths(self.host.local), 1)

    def fleet(self, fakes: Sequence[FakeServer], *, is_forced: bool = False) -> Fleet:
        """The same one for the same engines, as in the daemon: it knows which were unreachable meanwhile."""
        specs = tuple(spec_of(fake) for fake in fakes)
        fleet = self.fleets.setdefault(specs, make_fleet(specs, self.settings, gives_up=True))
        fleet.policy = replace(fleet.policy, is_forced=is_forced)
        return fleet

    def serve(self, *fakes: FakeServer, is_forced: bool = False) -> list[EngineReport]:
        fleet = self.fleet(fakes, is_forced=is_forced)
        serve(self.context(), fleet)
        return list(fleet.reports)

    def look(self, *fakes: FakeServer) -> Looked:
        """As between passes."""
        return look(local_paths(self.host.local), self.fleet(fakes), self.weights())

    def weights(self) -> Weights:
        local = load_local(local_paths(self.host.local))
        assert local is not None
        return weights_of(local)

    @property
    def record(self) -> Path:
        return self.host.local / toolkit.STATE_DIRECTORY / "engines.json"

    def remembered(self, fake: FakeServer) -> dict[str, Any]:
        """The record's fields about one engine."""
        document = json.loads(self.record.read_text(encoding="utf-8"))
        fields: dict[str, Any] = document["engines"][spec_of(fake).key]
        return fields


def outcome(report: EngineReport) -> tuple[str, int | None, int | None]:
    """State, version, and the exit code that its error would give."""
    return report.state.value, report.version, None if report.error is None else report.error.code


def message(report: EngineReport) -> str:
    assert report.error is not None
    return f"{report.error.message}\n{report.error.hint}"


@contextmanager
def meanwhile(call: Any, *arguments: Any, **named: Any) -> Iterator["Future[Any]"]:
    """A call in a thread of its own while the story goes on; it is over at the end of the block."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call, *arguments, **named)


def reached(event: threading.Event) -> None:
    assert event.wait(SAFETY_S), "it never came to that"
