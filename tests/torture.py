"""The long torture: simulated power losses, real kills and whole lives of a host, for as long as asked.

`python -m tests.torture --minutes 60` (or scripts/torture). What happens is dealt from the seed; portions of all of it
are part of the test suite. Prints counts and rates; ends with 1 and the command that repeats what is wrong.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from tests.due_torture_machine import live
from tests.kill_jobs import JOBS, KILL_JOBS
from tests.power_story import PowerStory
from tests.torture_kills import SHAPES, KillStory

_BATCH = {"crash": 40, "kill": 20, "life": 3}  # of each kind in one go
_PAGE = 1_000_000  # a seed's numbers begin at this many times the seed
_LIFE_STEPS = 30
_CRASH_SHAPES, _WHEN = ("few", "many"), ("durable", "behind")
_DEFAULT_MINUTES = 5.0
_SAY_EVERY_S = 15.0


@dataclass(frozen=True)
class Batch:
    """`story` is crash:JOB:SHAPE:durable|behind, kill:JOB:SHAPE or life; then so many numbers from `first` on."""

    story: str
    first: int
    count: int


@dataclass
class Outcome:
    """What a batch met, and what was wrong: a message, and the case that repeats it."""

    met: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)


def do(batch: Batch) -> Outcome:
    """In a process of its own. Ends at the first thing that is wrong."""
    outcome = Outcome()
    kind, _, rest = batch.story.partition(":")
    number = batch.first
    with tempfile.TemporaryDirectory(prefix="vime-sync-torture-") as root:
        try:
            if kind == "crash":
                job, shape, when = rest.split(":")
                power = PowerStory(Path(root), job, shape, durable=when == "durable")
                outcome.met = power.met
                for number in range(batch.first, batch.first + batch.count):
                    power.strike(power.deal(number))
            elif kind == "kill":
                job, shape = rest.split(":")
                with KillStory(Path(root), job, shape) as kills:
                    outcome.met = kills.met
                    for number in range(batch.first, batch.first + batch.count):
                        kills.kill_and_heal(number)
            else:
                live(str(number), batch.count, _LIFE_STEPS)
                outcome.met["lives"] += batch.count
        except Exception as problem:
            notes = "\n".join(getattr(problem, "__notes__", []))
            outcome.wrong.append((f"{type(problem).__name__}: {problem}\n{notes}", f"{batch.story}:{number}"))
    return outcome


def deal(seed: int, kinds: tuple[str, ...]) -> Iterator[Batch]:
    """Batches without end, every story in turn."""
    dice = random.Random(seed)
    stories = {
        "crash": [
            f"crash:{job}:{shape}:{when}" for job in JOBS for shape in ("few", "many") for when in ("durable", "behind")
        ],
        "kill": [f"kill:{job}:{shape}" for job in KILL_JOBS for shape in SHAPES],
        "life": ["life"],
    }
    for mine in stories.values():
        dice.shuffle(mine)
    turns = {kind: itertools.cycle(stories[kind]) for kind in kinds}
    taken: Counter[str] = Counter()
    while True:
        for kind in kinds:
            story = next(turns[kind])
            yield Batch(story, seed * _PAGE + taken[story], _BATCH[kind])
            taken[story] += _BATCH[kind]


class Torture:
    """One run: batches in worker processes until all that was asked for is done."""

    def __init__(self, seed: int, crashes: int | None, kills: int | None, minutes: float | None, workers: int) -> None:
        self._seed, self._workers = seed, workers
        self._wanted = {"crash": ("power losses", crashes), "kill": ("kills", kills), "life": ("lives", None)}
        self._started = time.monotonic()
        self._until = None if minutes is None else self._started + 60 * minutes
        self.outcome = Outcome()

    def run(self, *, keep_going: bool = False) -> Outcome:
        said = self._started
        sources = {kind: deal(self._seed, (kind,)) for kind in self._wanted}
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, mp_context=context) as pool:
            running: set[Future[Outcome]] = set()
            while True:
                stop = self.outcome.wrong and not keep_going
                kinds = [] if stop else self._kinds_left()
                while kinds and len(running) < self._workers:
                    running.add(pool.submit(do, next(sources[self._most_behind(kinds)])))
                if not running:
                    return self.outcome
                done, running = wait(running, timeout=_SAY_EVERY_S, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(future.result())
                if time.monotonic() - said > _SAY_EVERY_S:
                    said = time.monotonic()
                    print(self.line(), flush=True)

    def _take(self, outcome: Outcome) -> None:
        self.outcome.met.update(outcome.met)
        for message, case in outcome.wrong:
            self.outcome.wrong.append((message, case))
            print(f"WRONG: {message}\nagain: {again(case)}", file=sys.stderr, flush=True)

    def _kinds_left(self) -> list[str]:
        """Those whose number is not reached; the others go on only for as long as minutes were asked for."""
        if self._until is not None and time.monotonic() > self._until:
            return []
        counted = any(number is not None for _, number in self._wanted.values())
        return [
            kind
            for kind, (name, number) in self._wanted.items()
            if (self.outcome.met[name] < number if number is not None else not counted)
        ]

    def _most_behind(self, kinds: list[str]) -> str:
        def share(kind: str) -> float:
            name, number = self._wanted[kind]
            return self.outcome.met[name] / (number or {"crash": 300, "kill": 100, "life": 5}[kind])

        return min(kinds, key=lambda kind: (share(kind), random.random()))

    def line(self) -> str:
        minutes = (time.monotonic() - self._started) / 60
        met = self.outcome.met
        parts = [f"{met[name]} {name} ({met[name] / minutes:.0f}/min)" for name, _ in self._wanted.values()]
        return f"{minutes:.1f} min: {', '.join(parts)}; {met['healed']} healed, {len(self.outcome.wrong)} wrong"

    def describe(self) -> list[str]:
        return [*(f"  {count:>6} {name}" for name, count in sorted(self.outcome.met.items())), self.line()]


def again(case: str) -> str:
    """The command that deals the same once more."""
    return f"scripts/torture --again {case}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--kills", type=int, default=None, help="so many real SIGKILLs")
    parser.add_argument("--crashes", type=int, default=None, help="so many simulated power losses")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first thing that is wrong")
    parser.add_argument("--again", default=None, metavar="CASE", help="one case that a failure named")
    options = parser.parse_args(arguments)
    if options.again is not None:
        story, _, number = options.again.rpartition(":")
        count = _BATCH["life"] if story == "life" else 1
        outcome = do(Batch(story, int(number), count))
        for message, _ in outcome.wrong:
            print(f"WRONG: {message}", file=sys.stderr)
        print("wrong again" if outcome.wrong else "nothing is wrong this time")
        return 1 if outcome.wrong else 0
    minutes = options.minutes
    if minutes is None and options.kills is None and options.crashes is None:
        minutes = _DEFAULT_MINUTES
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}, {options.workers} workers", flush=True)
    torture = Torture(seed, options.crashes, options.kills, minutes, options.workers)
    outcome = torture.run(keep_going=options.keep_going)
    print("\n".join(torture.describe()), flush=True)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
