"""The long run: many versions, random accidents of daemon, engines and trainer, and nothing wrong at the end.

`python -m tests.soak --versions 500 --seed N` (or scripts/soak) is the whole of it, with figures; a short one is part
of the test suite. What happens is dealt from the seed (`soak_plan`); who wins each race is the machine's.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests import soak_figures, toolkit
from tests.soak_flat import growth, not_flat, quiet
from tests.soak_local import check_local
from tests.soak_plan import ENGINES, Step, deal
from tests.soak_processes import EngineProcess, Figures, WatchProcess
from tests.soak_trainer import Trainer
from tests.soak_truth import PROMPTS, Client, Truth, Wrong
from tests.toolkit import make_model

# Far more than it ever takes to bring everybody to the newest version on a busy machine.
SETTLE_S = 120.0
_LOOK_S = 0.05
_TENSORS, _MODEL_KIB = 6, 192
_TROUBLE_WORDS = ("Traceback", "internal_error", "[local_damaged]")


@dataclass(frozen=True)
class Outcome:
    """What a run that went well had in it."""

    versions: int
    streams: int
    seconds: float
    accidents: Counter[str]
    answers: list[Counter[int]]
    unanswered: int
    samples: list[Figures]


class Soak:
    """One run in `root`. A context manager: no process and no thread outlives it."""

    def __init__(self, root: Path, seed: int, versions: int) -> None:
        self.steps = deal(seed, versions)
        self._versions = versions
        base, shared, self._local = root / "base", root / "shared", root / "local"
        self._acks = root / "acks"
        model = make_model(seed, _TENSORS, _MODEL_KIB)
        toolkit.write_checkpoint(base, model)
        shared.mkdir()
        self._truth, self._wrong = Truth(model), Wrong()
        self._trainer = Trainer(shared, base, model, self._truth, seed)
        self._engines = [EngineProcess(base, root / f"engine-{number}.log") for number in range(ENGINES)]
        options: list[str | Path] = ["--shared", shared, "--local", self._local, "--base", base]
        options += ["--ack-dir", self._acks, "--http", "0", "--log-format", "json"]
        options += ["--poll-interval", "0.5", "--engine-interval", "1"]
        for engine in self._engines:
            options += ["--engine", f"vllm={engine.url}"]
        self._watch = WatchProcess(options, root / "watch.log")
        dice = random.Random(seed + 2)
        self._orders = [dice.choices(range(len(PROMPTS)), k=97) for _ in self._engines]
        self._clients: list[Client] = []
        self._accidents: Counter[str] = Counter()
        self._samples: list[Figures] = []

    def __enter__(self) -> "Soak":
        return self

    def __exit__(self, *problem: object) -> None:
        for process in (self._watch, *self._engines):
            process.end()
        for client in self._clients:
            client.end()

    def run(self, say: "soak_figures.Say" = soak_figures.quietly) -> Outcome:
        """Raises AssertionError with what is wrong."""
        started = time.monotonic()
        for process in (*self._engines, self._watch):
            process.start()
        self._clients = [
            Client(engine, self._truth, self._wrong, order)
            for engine, order in zip(self._engines, self._orders, strict=True)
        ]
        try:
            for number, step in enumerate(self.steps):
                self._do(step)
                if step.settles:
                    seconds = self._settle()
                    say(f"step {number + 1} of {len(self.steps)}: {self._where()}, settled after {seconds:.2f} s")
                if step.then_engine is not None:
                    self._restart_in_peace(self._engines[step.then_engine])
            self._check_end()
        except AssertionError as problem:
            raise AssertionError(
                f"{problem}\nat {self._where()}; the daemon's log ends with\n{self._watch.tail()}"
            ) from None
        return Outcome(
            self._versions,
            self._trainer.streams,
            time.monotonic() - started,
            self._accidents,
            [client.judge.by_number for client in self._clients],
            sum(client.unanswered for client in self._clients),
            self._samples,
        )

    def _where(self) -> str:
        return f"version {self._trainer.version} of stream {self._trainer.streams}"

    def _do(self, step: Step) -> None:
        if step.prunes:
            self._accidents["the trainer prunes"] += 1
            self._trainer.prune()
        if step.begins_anew:
            self._accidents["the trainer begins anew"] += 1
            self._trainer.begin_anew()
        for kind in step.kinds:
            self._accidents[f"a version {kind}"] += 1
            self._trainer.publish(kind)
        self._revive()
        if step.daemon is not None or step.engine is not None:
            self._wrong.wait(0 if step.daemon == "kill_in_load" else step.accident_s)
            self._have_accident(step)
            if not step.stays_down or step.settles:
                self._revive()
        self._wrong.wait(step.pause_s)
        for process in (self._watch, *self._engines):
            process.check_alive()

    def _have_accident(self, step: Step) -> None:
        self._watch.check_alive()
        if step.daemon == "kill_in_load":
            self._kill_in_load()
        if step.engine is not None:
            self._accidents["an engine is killed"] += 1
            self._engines[step.engine].kill()
        if step.daemon == "kill":
            self._accidents["the daemon is killed at random"] += 1
            self._watch.kill()
        elif step.daemon == "term":
            self._accidents["the daemon is ended"] += 1
            self._watch.ask_to_end()
            self._watch.expect_end()

    def _restart_in_peace(self, engine: EngineProcess) -> None:
        """Nothing else happens: that it holds the base again must be noticed without a new version (E2)."""
        self._accidents["an engine is killed at rest"] += 1
        engine.kill()
        engine.start()
        self._settle()

    def _kill_in_load(self) -> None:
        """As soon as an engine is seen paused, if one is in the next second; it must be finished and resumed (E7)."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and not self._is_paused(self._engines[0]):
            self._wrong.wait(0)
        self._watch.kill()
        was_hit = any(self._is_paused(engine) for engine in self._engines)
        self._accidents[f"the daemon is killed, {'an engine' if was_hit else 'no engine'} being paused"] += 1

    @staticmethod
    def _is_paused(engine: EngineProcess) -> bool:
        return engine.is_up and engine.ask("/is_paused") == {"is_paused": True}

    def _revive(self) -> None:
        for process in (self._watch, *self._engines):
            if not process.is_up:
                process.start()
                if process is self._watch:
                    self._samples.clear()  # figures of one life only

    def _settle(self) -> float:
        """Until every engine holds the newest version; then a sample is taken."""
        started = time.monotonic()
        while any(engine.loaded_digest() != self._truth.newest_digest for engine in self._engines):
            self._wrong.wait(_LOOK_S)
            for process in (self._watch, *self._engines):
                process.check_alive()
            if time.monotonic() - started > SETTLE_S:
                held = [engine.ask("/weight_info") for engine in self._engines]
                raise AssertionError(f"after {SETTLE_S:g} s not every engine holds {self._where()}, but {held}")
        seconds = time.monotonic() - started
        looks = []
        for _ in range(6):
            looks.append(self._watch.figures())
            self._wrong.wait(_LOOK_S / 2)
        self._samples.append(quiet(looks))
        return seconds

    def _check_end(self) -> None:
        result = toolkit.vime(
            "wait", "--ack-dir", self._acks, "--version", str(self._trainer.version), "--hosts", "1",
            "--shared", self._trainer.shared, "--served", "--timeout", str(SETTLE_S),
        )  # fmt: skip
        assert result.code == 0, f"`wait --served` ended with {result.code}: {result.stderr}"
        self._wait_until_durable()
        assert not self._watch.children(), f"children of the daemon: {self._watch.children()}"
        self._watch.ask_to_end()
        self._watch.expect_end()
        for client in self._clients:
            client.end()
        self._wrong.wait(0)
        check_local(self._local, self._trainer.model, self._trainer.file_names)
        for engine in self._engines:
            assert engine.loaded_digest() == self._truth.newest_digest, "an engine changed while the daemon ended"
            assert engine.ask("/is_paused") == {"is_paused": False}, "an engine was left paused"
        newest = len(self._truth.names) - 1
        for client in self._clients:
            assert client.judge.by_number[newest], "nobody was answered with the newest version"
            assert client.judge.by_number[0], "nobody was answered with the base"
        log = self._watch.log.read_text(encoding="utf-8", errors="replace")
        for word in _TROUBLE_WORDS:
            assert word not in log, f"the daemon's log has {word!r}: {log[log.index(word) - 300 :][:2000]}"
        problems = not_flat(self._samples)
        assert not problems, "; ".join(problems)

    def _wait_until_durable(self) -> None:
        """By the daemon's record; older digest tables go then."""
        deadline = time.monotonic() + SETTLE_S
        (ack,) = self._acks.glob("*.json")
        while not json.loads(ack.read_bytes())["durable"]:
            assert time.monotonic() < deadline, "the last version does not become durable"
            self._wrong.wait(_LOOK_S)


def describe(outcome: Outcome) -> list[str]:
    """For people."""
    lines = [f"{outcome.versions} versions in {outcome.streams} streams, {outcome.seconds:.0f} s"]
    lines += [f"  {count:>5} times {what}" for what, count in sorted(outcome.accidents.items())]
    for number, answers in enumerate(outcome.answers):
        lines.append(f"engine {number}: {answers.total()} answers, of {len(answers)} models; none of a mix")
    lines.append(f"{outcome.unanswered} prompts without an answer, their engine being down")
    first, last, grown = outcome.samples[0], outcome.samples[-1], growth(outcome.samples)
    lines.append(
        f"the daemon's last life, {len(outcome.samples)} samples: resident {first.resident_bytes >> 10} KiB at first, "
        f"{last.resident_bytes >> 10} KiB at the end, {grown.resident_bytes >> 10} KiB more after warm-up; "
        f"descriptors {first.descriptors}, {last.descriptors}; threads {first.threads}, {last.threads}"
    )
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--versions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None, help="what happens; without it another one each time")
    parser.add_argument("--keep", action="store_true", help="leave the directory with logs and files there")
    parser.add_argument("--no-figures", action="store_true", help="leave out latency and idle load")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    with contextlib.ExitStack() as stack:
        if options.keep:
            root = Path(tempfile.mkdtemp(prefix="vime-sync-soak-"))
        else:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vime-sync-soak-")))
        print(f"seed {seed}, in {root}", flush=True)
        try:
            with Soak(root, seed, options.versions) as soak:
                outcome = soak.run(lambda text: print(text, flush=True))
        except AssertionError as problem:
            print(f"WRONG: {problem}\nseed {seed}; again: {again(options.versions, seed)}", file=sys.stderr)
            return 1
        print("\n".join(describe(outcome)), flush=True)
        if not options.no_figures:
            print("\n".join(soak_figures.measure(root / "figures")), flush=True)
    return 0


def again(versions: int, seed: int) -> str:
    """The command that deals the same once more."""
    return f"scripts/soak --versions {versions} --seed {seed}"


if __name__ == "__main__":
    sys.exit(main())
