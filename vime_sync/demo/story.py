"""The story, step by step: a trainer publishes, the host follows, things go wrong, and each time all is proven.

A step that does not prove right ends the story: what comes after it would build on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vime_sync import fsio
from vime_sync.demo.daemon import Daemon
from vime_sync.demo.models import Task
from vime_sync.demo.telling import Listener, Proof, Step
from vime_sync.demo.trainer import COARSE_SHARE, Trainer
from vime_sync.demo.weights import digests, read_weights
from vime_sync.engines.http import Client
from vime_sync.engines.spec import EngineKind, EngineSettings, EngineSpec
from vime_sync.errors import DemoFailed, EngineUncertain, EngineUnreachable

_KILL_TRIES = 5
_ANSWER_S = 60.0
_CORRUPT = 12


class Story:
    def __init__(
        self, root: Path, trainer: Trainer, daemon: Daemon, engine_url: str, task: Task, listener: Listener
    ) -> None:
        self._root = root
        self._trainer = trainer
        self._daemon = daemon
        self._engine = Client(EngineSpec(EngineKind.VLLM, engine_url), EngineSettings())
        self._task = task
        self._listener = listener
        self._served: int | None = None
        self._answer: str | None = None
        self._before_kill = 0
        self._right_bytes = b""
        self._proofs: list[Proof] = []
        self._seconds = 0.0
        self.steps: list[Step] = []

    def play(self) -> None:
        """Every step; `steps` has those that were begun. Raises DemoFailed after the first that was not proven."""
        steps: tuple[tuple[str, Callable[[], str]], ...] = (
            ("first start", self._first_start),
            ("one delta", lambda: self._one_delta("xor")),
            ("one more", lambda: self._one_delta("overwrite")),
            ("catching up", self._catch_up),
            ("kill -9", self._kill),
            ("healing", self._heal),
            ("bad delta", self._corrupt),
            ("mended delta", self._mend),
            ("going back", self._roll_back),
        )
        for number, (title, step) in enumerate(steps, start=1):
            self._listener.heading(f"[{number}/{len(steps)}] {_HEADINGS[title]}")
            self._proofs, self._seconds = [], 0.0
            try:
                happened = step()
            except DemoFailed as problem:
                self._note(Proof("it goes as told", False, problem.message))
                self._end_step(title, "failed")
                raise
            self._end_step(title, happened)
            broken = [proof for proof in self._proofs if not proof.held]
            if broken:
                raise DemoFailed(f"{title}: not proven that {broken[0].claim}: {broken[0].detail}")

    def _end_step(self, title: str, happened: str) -> None:
        self.steps.append(Step(title, happened, self._served, self._seconds, tuple(self._proofs)))

    # ---- steps

    def _first_start(self) -> str:
        self._daemon.start()
        self._await_served(0)
        return "LOCAL copied from the base, and loaded"

    def _one_delta(self, encoding: str) -> str:
        self._publish(encoding)
        self._await_served(self._trainer.newest)
        return f"{encoding} delta patched in, and loaded"

    def _catch_up(self) -> str:
        self._daemon.stop()
        for encoding in ("xor", "overwrite", "xor"):
            self._publish(encoding)
        self._daemon.start()
        self._await_served(self._trainer.newest)
        passes, loads = self._daemon.passes_and_loads()
        self._note(Proof("three versions are one pass and one load", max(passes, loads) <= 1, f"{passes} and {loads}"))
        return "3 deltas in one pass, loaded once"

    def _kill(self) -> str:
        """Tried again where the daemon was done before the kill came."""
        for _ in range(_KILL_TRIES):
            self._daemon.stop()
            held = self._before_kill = self._trainer.newest
            for _ in range(3):
                self._publish("xor", COARSE_SHARE)
            self._daemon.start("--threads", "1")
            if self._daemon.kill_in_the_middle(self._trainer.block_count // 2):
                break
            self._listener.say("demo", "the kill came too late, the pass was done: once more")
            self._daemon.start()
            self._await_served(self._trainer.newest)
        else:
            raise DemoFailed(f"the daemon was too quick to be killed in the middle, {_KILL_TRIES} times")
        old, new, half_way = self._where_tensors_are(held, self._trainer.newest)
        found = f"{new} tensors at version {self._trainer.newest}, {half_way} half way, {old} still at version {held}"
        self._note(Proof("it was in the middle", bool(old or half_way) and bool(new or half_way), found))
        self._prove_answer(held)
        return "daemon killed amid its writes"

    def _heal(self) -> str:
        self._daemon.start()
        self._await_served(self._trainer.newest)
        return "the pass that was cut short is finished"

    def _corrupt(self) -> str:
        held = self._trainer.newest
        self._daemon.stop()
        self._publish("xor")
        shard = self._newest_shard()
        self._right_bytes = shard.read_bytes()
        spoilt = bytearray(self._right_bytes)
        spoilt[-len(spoilt) // 3] ^= 0xFF
        fsio.write_atomic(shard, bytes(spoilt), durable=False)
        self._listener.say(
            "demo", f"one byte of version {self._trainer.newest} is spoilt, before the daemon looks again"
        )
        self._daemon.start()
        with self._timed():
            problem = self._daemon.wait_until_refused(self._trainer.newest)
            self._daemon.wait_until_served(held, is_loaded_anew=False)
        claim = f"version {self._trainer.newest} is refused as corrupt"
        self._note(Proof(claim, problem.get("code") == _CORRUPT, str(problem.get("id"))))
        self._prove(held)
        return f"version {self._trainer.newest} refused, version {held} stays"

    def _mend(self) -> str:
        fsio.write_atomic(self._newest_shard(), self._right_bytes, durable=False)
        self._listener.say("trainer", f"published version {self._trainer.newest} again, this time whole")
        self._await_served(self._trainer.newest)
        return "published again, patched in, loaded"

    def _roll_back(self) -> str:
        self._daemon.stop()
        target = self._before_kill
        self._daemon.start("--version", str(target))
        self._await_served(target)
        self._daemon.stop()
        return f"back from version {self._trainer.newest}, by --version"

    # ---- hands

    def _publish(self, encoding: str, share: float | None = None) -> None:
        told = self._trainer.publish(encoding) if share is None else self._trainer.publish(encoding, share)
        self._listener.say("trainer", told)

    def _newest_shard(self) -> Path:
        directory = self._root / "share" / f"weight_v{self._trainer.newest:06}"
        return max(directory.glob("*.safetensors"), key=lambda path: path.stat().st_size)

    def _await_served(self, version: int) -> None:
        with self._timed():
            self._daemon.wait_until_served(version)
        self._prove(version)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds += time.monotonic() - started

    # ---- proofs

    def _note(self, proof: Proof) -> None:
        self._proofs.append(proof)
        self._listener.proof(proof)

    def _prove(self, version: int) -> None:
        """That the host's bytes and the engine's answer are the trainer's at that version."""
        self._prove_answer(version)
        try:
            found = digests(read_weights(self._root / "local"))
        except (OSError, ValueError) as problem:
            raise DemoFailed(f"LOCAL cannot be read: {problem}") from None
        right = self._trainer.right[version].digests
        wrong = [name for name in right.keys() | found.keys() if right.get(name) != found.get(name)]
        told = f"{len(right)} tensors" + (f", {len(wrong)} of them wrong" if wrong else "")
        self._note(Proof(f"every byte on disk is that of version {version}", not wrong, told))

    def _prove_answer(self, version: int) -> None:
        right = self._trainer.right[version].answer
        answer = self._ask()
        told = f"{answer!r}" if answer == right else f"{answer!r}, and the trainer's weights give {right!r}"
        self._note(Proof(f"the engine answers as the trainer's version {version} does", answer == right, told))
        if version != self._served and self._served is not None:
            self._note(Proof("the answer changed with the version", answer != self._answer, f"it was {self._answer!r}"))
        self._served, self._answer = version, answer

    def _ask(self) -> str:
        """The engine's answer, by HTTP. Raises DemoFailed where there is none."""
        try:
            answer = self._engine.tell("/v1/completions", self._task.request("demo"), timeout_s=_ANSWER_S)
        except (EngineUnreachable, EngineUncertain) as problem:
            raise DemoFailed(f"the engine does not answer: {problem.message}") from None
        choices = answer.fields.get("choices")
        if not answer.is_success or not isinstance(choices, list) or not choices:
            raise DemoFailed(f"the engine answered {answer.status}: {answer.reason}")
        return self._task.told(choices[0])

    def _where_tensors_are(self, old: int, new: int) -> tuple[int, int, int]:
        """How many tensors are at the old version, at the new one, and neither."""
        found = digests(read_weights(self._root / "local"))
        before, after = self._trainer.right[old].digests, self._trainer.right[new].digests
        differing = [name for name in before if before[name] != after[name]]
        at_old = sum(found.get(name) == before[name] for name in differing)
        at_new = sum(found.get(name) == after[name] for name in differing)
        return at_old, at_new, len(differing) - at_old - at_new


_HEADINGS = {
    "first start": "A fresh host: the base is copied, and the engine loads the copy",
    "one delta": "The trainer takes a step: only what changed travels",
    "one more": "Another step, in the other encoding",
    "catching up": "The daemon is stopped while three versions appear, and started again",
    "kill -9": "Three large versions behind, and the daemon is killed while it writes them",
    "healing": "Started again: it finishes what was cut short",
    "bad delta": "A delta with one wrong byte is published",
    "mended delta": "The same version, published right",
    "going back": "An operator wants an older version back",
}
