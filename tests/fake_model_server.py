"""What the fake engines that hold a model have in common: the test's hands on loads and prompts, and a client.

The hands (a load stopped between two tensors, a rank that fails, completions held open) belong to the test and
outlive restarts; what the engine holds belongs to one life and is made anew at each start.
"""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fake_engine import FakeServer
from tests.fake_generation import EngineDied, Generation, Hold
from tests.fake_http import POLL_S, Answer, Exchange
from tests.fake_weights import Loaded, Weights, model_digests, weights_digest
from tests.toolkit import Model

WAIT_TIMEOUT_S = 30.0
NAN_TEXT = ""  # what its tokens of nothing decode to


@dataclass
class LoadGate:
    """A stop in the middle of a rank's loads: after so many tensors, until the test says go on."""

    after_tensors: int
    rank: int
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    seen: int = 0

    def wait(self) -> None:
        """Until a load has come to this stop."""
        assert self.reached.wait(WAIT_TIMEOUT_S), "no load came to the gate"


class CompletionFailed(Exception):
    """A prompt was not answered with 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class ModelServer(FakeServer):
    """A fake engine with a model; subclasses say what its endpoints are and how many ranks hold it."""

    def __init__(self, model_dir: Path | str, *, api_key: str | None, served_model_name: str, port: int) -> None:
        super().__init__(port=port)
        self.model_dir = str(model_dir)
        self.api_key = api_key
        self.served_model_name = served_model_name
        self.weight_version = "default"
        self.rank_failures: dict[int, str] = {}  # what a rank says when it fails to load, until taken away
        self._hold = Hold()
        self._gates: list[LoadGate] = []
        self._ended = threading.Event()
        self._generation: Generation | None = None

    # ---- what the engine holds

    def all_weights(self) -> list[Weights]:
        """The weights of each rank."""
        raise NotImplementedError

    def fit(self) -> bool:
        """Whether a prompt can be computed at all."""
        return all(weights.usable for weights in self.all_weights())

    @property
    def generation(self) -> Generation:
        assert self._generation is not None, "never started"
        return self._generation

    def boot(self) -> None:
        self._ended.clear()
        self.weight_version = "default"
        self._generation = Generation(self.weights_digest, self.fit, self._hold)

    def halt(self) -> None:
        self._ended.set()
        if self._generation is not None:
            self._generation.end(died=False)

    def weights_digest(self) -> str:
        """All ranks' weights as one digest, which does not tell how many ranks there are as long as they agree."""
        digests = [weights.digest() for weights in self.all_weights()]
        return digests[0] if len(set(digests)) == 1 else weights_digest(dict(enumerate_texts(digests)))

    @property
    def loaded(self) -> list[Loaded]:
        """What each rank holds."""
        return [weights.loaded() for weights in self.all_weights()]

    def holds(self, model: Model) -> bool:
        """Whether every rank holds exactly that model."""
        return all(loaded.tensors == model_digests(model) for loaded in self.loaded)

    # ---- the test's hands

    @contextmanager
    def stopped_load(self, *, after_tensors: int, rank: int = 0) -> Iterator[LoadGate]:
        """The next load of that rank stops once it has read so many tensors, till `go_on` is set or the block ends."""
        gate = LoadGate(after_tensors, rank)
        self._gates.append(gate)
        try:
            yield gate
        finally:
            gate.go_on.set()
            self._gates.remove(gate)

    def before_tensor(self, rank: int, name: str) -> None:
        """Called by a load right before it reads a tensor's bytes."""
        if rank in self.rank_failures:
            raise RuntimeError(self.rank_failures[rank])
        for gate in list(self._gates):
            if gate.rank == rank:
                gate.seen += 1
                if gate.seen > gate.after_tensors:
                    gate.reached.set()
                    while not gate.go_on.wait(POLL_S):
                        if self._ended.is_set():
                            raise RuntimeError(f"the engine's process ended before {name} was read")

    @contextmanager
    def held_completions(self) -> Iterator[None]:
        """Completions begin and do not end inside the block."""
        self.hold_completions(True)
        try:
            yield
        finally:
            self.hold_completions(False)

    def hold_completions(self, held: bool) -> None:
        """Completions that run end from now on, or do not."""
        with self._hold.changed:
            self._hold.held = held
            self._hold.changed.notify_all()

    def wait_for_requests(self, *, running: int = 0, waiting: int = 0) -> None:
        """Until at least so many prompts are being answered and so many wait in the queue."""
        generation = self.generation
        with self._hold.changed:
            arrived = self._hold.changed.wait_for(
                lambda: len(generation.running) >= running and len(generation.waiting) >= waiting, WAIT_TIMEOUT_S
            )
        assert arrived, f"{len(generation.running)} running, {len(generation.waiting)} waiting"

    # ---- the client

    def complete(self, prompt: str, *, timeout_s: float = 60.0) -> str:
        """The server's answer to a prompt, asked over HTTP; an aborted one is the empty text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        question = {"model": self.served_model_name, "prompt": prompt, "max_tokens": 8, "temperature": 0}
        try:
            connection.request("POST", "/v1/completions", json.dumps(question), headers)
            response = connection.getresponse()
            content = response.read().decode()
        finally:
            connection.close()
        if response.status != 200:
            raise CompletionFailed(response.status, content)
        text: str = json.loads(content)["choices"][0]["text"]
        return text

    # ---- what the endpoints share

    def authorized(self, exchange: Exchange) -> bool:
        given = {name.lower(): value for name, value in exchange.call.headers.items()}.get("authorization", "")
        scheme, _, key = given.partition(" ")
        return self.api_key is None or (scheme.lower() == "bearer" and key == self.api_key)

    def models(self) -> Answer:
        entry = {"id": self.served_model_name, "object": "model", "created": 0, "owned_by": "fake"}
        return Answer(200, {"object": "list", "data": [{**entry, "root": self.model_dir, "max_model_len": 512}]})

    def answer_prompt(self, prompt: str, exchange: Exchange) -> tuple[str, str]:
        """Text and finish reason; `EngineDied` when the weights were no longer fit to compute with."""
        try:
            text, reason = self.generation.complete(prompt, exchange.client_gone)
        except EngineDied:
            self.generation.end(died=True)
            raise
        nan = reason != "abort" and any(weights.nan for weights in self.all_weights())
        return (NAN_TEXT, "length") if nan else (text, reason)


def completion(model: str, prompt: str, text: str, reason: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    """One answer in the shape of the OpenAI API."""
    choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason, "stop_reason": None}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 8 if text else 0}
    document = {"id": "cmpl-fake", "object": "text_completion", "created": 0, "model": model}
    return {**document, "choices": [choice], "usage": {**usage, "total_tokens": sum(usage.values())}}


def enumerate_texts(texts: list[str]) -> list[tuple[str, str]]:
    """Each with its place as a text."""
    return [(str(place), text) for place, text in enumerate(texts)]
