"""An engine with our worker extension, as far as its ranks show it: workers of the fake vLLM, called all at once.

Each rank belongs to a host with a LOCAL of its own, all under one path as the caller sees it: the call goes out with
that path and arrives with the host's. What a rank holds is compared with whole models in memory.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import toolkit
from tests.fake_ranks import CPUWorker, worker_class
from tests.fake_weights import model_digests
from tests.host import Host
from tests.kill_points import Matching, observing, shard_writes
from tests.toolkit import Model
from vime_sync.vllm_extension import PullWeightsExtension

TIMEOUT_S = 120.0
_THREAD = "vime-sync-pull"

Answer = dict[str, Any]


def make_worker(model: Path | str, rank: int = 0, before: Callable[[str], None] = lambda name: None) -> Any:
    """A rank's worker, started from that model; `before` is called before each tensor of a reload is read."""
    worker: type[CPUWorker] = worker_class(PullWeightsExtension)
    return worker(rank, 1, str(model), lambda _, name: before(name))


def call(worker: Any, method: str, *args: Any, **kwargs: Any) -> Answer:
    """One rank's answer, which must be sendable as the engine sends it, and be one to this call."""
    answer: Answer = getattr(worker, method)(*args, **kwargs)
    assert isinstance(answer, dict)
    assert json.loads(json.dumps(answer, allow_nan=False).encode()) == answer
    assert answer["nonce"] == kwargs.get("nonce", answer["nonce"])
    fields = {"nonce", "success", "message", "rank", "host", "version", "weight_version", "lineage", "done"}
    assert fields <= answer.keys()
    assert answer["weight_version"] == (None if answer["version"] is None else str(answer["version"]))
    return answer


@dataclass(frozen=True)
class Fleet:
    """One engine's ranks with the host of each; they are called at the same time, answers in rank order."""

    workers: Sequence[Any]
    hosts: Sequence[Host]

    @classmethod
    def on(cls, hosts: Iterable[Host], ranks_per_host: int = 2) -> "Fleet":
        places = [host for host in hosts for _ in range(ranks_per_host)]
        return cls([make_worker(host.base, rank) for rank, host in enumerate(places)], places)

    def call(self, method: str, nonce: str = "n", **kwargs: Any) -> list[Answer]:
        def one(worker: Any, host: Host) -> Answer:
            return call(worker, method, nonce=nonce, local_checkpoint_dir=str(host.local), **kwargs)

        with ThreadPoolExecutor(len(self.workers)) as threads:
            answers = list(threads.map(one, self.workers, self.hosts))
        assert [answer["rank"] for answer in answers] == list(range(len(self.workers)))
        return answers

    def settle(self) -> list[Answer]:
        """The polls once every background pull has ended."""
        join_pulls()
        answers = self.call("vime_sync_poll", nonce="settled")
        assert all(answer["done"] for answer in answers)
        return answers


def pull_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == _THREAD]


def join_pulls() -> None:
    for thread in pull_threads():
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a pull does not end"


def arguments(host: Host, version: Any, **more: Any) -> dict[str, Any]:
    """What a trainer sends."""
    return {
        "local_checkpoint_dir": str(host.local),
        "source_dir": str(host.shared),
        "target_version": version,
        "nonce": "trainer",
        **more,
    }


def sibling(host: Host, name: str) -> Host:
    """Another host that sees the same share and the same base, with a LOCAL of its own."""
    root = host.root / name
    root.mkdir()
    for shared in ("base", "shared"):
        (root / shared).symlink_to(host.root / shared)
    return Host(root, host.models)


def expect_loaded(worker: Any, model: Model) -> None:
    """The rank holds exactly that model's tensors."""
    assert worker.weights_of_fake.loaded().tensors == model_digests(model)


def states(answers: Iterable[Mapping[str, Any]]) -> list[tuple[bool, bool, int | None]]:
    return [(answer["success"], answer["done"], answer["version"]) for answer in answers]


class Gate:
    """Stops whoever does such a durable operation, until it is opened."""

    def __init__(self, matching: Matching) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._matching = matching

    def __call__(self, operation: str, path: Path) -> None:
        if self._matching(operation, path):
            self.reached.set()
            assert self._open.wait(TIMEOUT_S)

    def wait_until_reached(self) -> None:
        assert self.reached.wait(TIMEOUT_S), "nobody ever came there"

    def open(self) -> None:
        self._open.set()


@contextmanager
def gated(local: Path) -> Iterator[Gate]:
    """In the body every pull into that LOCAL stops before its first write; after it all have ended."""
    gate = Gate(shard_writes(local))
    with observing(gate):
        try:
            yield gate
        finally:
            gate.open()
            join_pulls()


def spoil(host: Host, version: int) -> None:
    """One of that delta's digests is of other bytes. (With all of them wrong it would be the base that is.)"""
    path = next(toolkit.version_path(host.shared, version).glob("*.safetensors"))

    def change(header: dict[str, Any], data: bytearray) -> None:
        digests = header["__metadata__"]
        digests[min(digests)] = toolkit.digest(b"other bytes")

    toolkit.rewrite_shard(path, change)
