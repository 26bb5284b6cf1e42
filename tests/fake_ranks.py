"""The ranks of the fake vLLM: one worker each, its queue of calls and its queue of answers.

As in the real executor, a call goes to every rank and the answers are fetched in rank order up to the first
failure; those of the ranks behind it stay in their queues and are taken for the answers to the next call.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.fake_http import JOIN_TIMEOUT_S, POLL_S, Hangup
from tests.fake_weights import Weights

Outcome = tuple[bool, Any]


class RpcFailed(Exception):
    """A collective call failed; the text is what the real engine says."""


class CPUWorker:
    """What a worker extension finds on `self`: the attributes and methods of the real class that matter here."""

    def __init__(self, rank: int, ranks: int, model: str, before: Callable[[int, str], None]) -> None:
        self.rank = self.local_rank = rank
        self.model_config = SimpleNamespace(model=model, tokenizer=model, revision=None, quantization=None)
        self.parallel_config = SimpleNamespace(world_size=ranks, tensor_parallel_size=ranks, nnodes=1, node_rank=0)
        self.load_config = SimpleNamespace(load_format="auto")
        self.vllm_config = SimpleNamespace(
            model_config=self.model_config, parallel_config=self.parallel_config, load_config=self.load_config
        )
        self.model_runner = SimpleNamespace(model_config=self.model_config, vllm_config=self.vllm_config)
        self.weights_of_fake = Weights()
        self._before = before
        self.weights_of_fake.first_load(model)

    def reload_weights(
        self, weights_iterator: Any = None, weights_path: str | None = None, is_checkpoint_format: bool = True
    ) -> None:
        """The path stays: a later call without one reads it again."""
        if weights_iterator is not None:
            raise ValueError(f"not enough values to unpack from {weights_iterator!r}")
        if weights_path is not None:
            self.model_config.model = weights_path
        self.weights_of_fake.load(self.model_config.model, lambda name: self._before(self.rank, name))

    def check_health(self) -> None:
        """Answers None."""


def worker_class(extension: type[Any] | None) -> type[CPUWorker]:
    """The worker's class with the extension mixed in; as in the real one, names must not clash."""
    if extension is None:
        return CPUWorker
    for name in dir(extension):
        if not name.startswith("__"):
            clash = f"Worker class {CPUWorker} already has an attribute {name}, which conflicts with {extension}."
            assert not hasattr(CPUWorker, name), clash
    return type("CPUWorker", (CPUWorker, extension), {})


class Ranks:
    """The workers of one engine's life, each with its thread."""

    def __init__(self, workers: Sequence[CPUWorker]) -> None:
        self.workers = list(workers)
        self._calls: list[queue.Queue[tuple[str, list[Any], dict[str, Any]] | None]] = [queue.Queue() for _ in workers]
        self._answers: list[queue.Queue[Outcome]] = [queue.Queue() for _ in workers]
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(rank,), name=f"fake-rank-{rank}", daemon=True)
            for rank in range(len(self.workers))
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, rank: int) -> None:
        while (call := self._calls[rank].get()) is not None:
            method, arguments, named = call
            try:
                result = getattr(self.workers[rank], method)(*arguments, **named)
            except Exception as error:
                self._answers[rank].put((False, str(error)))
            else:
                self._answers[rank].put((True, result))
            self._calls[rank].task_done()

    def call(self, method: str, arguments: list[Any], named: dict[str, Any], timeout_s: float | None) -> list[Any]:
        """One answer of every rank, or `RpcFailed` with the first failure; a timeout leaves all answers behind."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for calls in self._calls:
            calls.put((method, arguments, named))
        results = []
        for rank in range(len(self.workers)):
            succeeded, result = self._next_answer(rank, method, deadline)
            if not succeeded:
                told = f"Worker failed with error '{result}', please check the stack trace above for the root cause"
                raise RpcFailed(told)
            results.append(result)
        return results

    def _next_answer(self, rank: int, method: str, deadline: float | None) -> Outcome:
        while not self._ending.is_set():
            try:
                return self._answers[rank].get(timeout=POLL_S)
            except queue.Empty:
                if deadline is not None and time.monotonic() > deadline:
                    raise RpcFailed(f"RPC call to {method} timed out.") from None
        raise Hangup

    def settle(self) -> None:
        """Until every rank did all that it was told, though nobody may wait for its answer any more."""
        for calls in self._calls:
            calls.join()

    @property
    def stale_answers(self) -> list[int]:
        """For each rank, the answers that nobody fetched and that the next calls will get."""
        return [answers.qsize() for answers in self._answers]

    def weights(self) -> list[Weights]:
        return [worker.weights_of_fake for worker in self.workers]

    def end(self) -> None:
        """Let go of the call that waits; the threads end after what they are doing."""
        self._ending.set()
        for calls in self._calls:
            calls.put(None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(JOIN_TIMEOUT_S)
            assert not thread.is_alive(), f"{thread.name} does not end: a worker's method hangs"
