"""The long torture: simulated crashes, errors, real kills and whole lives of a host, for as long as asked.

`python -m tests.torture --minutes 60` (or scripts/torture). What happens is dealt from the seed (`torture_batch`);
portions of all of it are part of the test suite. Prints counts and rates; ends with 1 and the command that repeats
what is wrong.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from tests.torture_batch import Batch, Outcome, deal, do

_DEFAULT_MINUTES = 5.0
_SAY_EVERY_S = 15.0
_ROOM_BYTES = 2 << 30  # for that a RAM disk is preferred: the harness itself says what lasts

# Of the work until the numbers are reached: a part of the time for each kind.
_PARTS = {"crash": 0.45, "kill": 0.25, "two": 0.10, "error": 0.12, "life": 0.08}


@dataclass(frozen=True)
class Wanted:
    """How much is asked for; None where it is for as long as the rest goes on."""

    crashes: int | None = None
    kills: int | None = None
    minutes: float | None = None

    def kinds(self, done: Outcome, seconds: float) -> list[str]:
        """What is still to be dealt: all of it until every number is reached, or the time is over."""
        if self.minutes is not None and seconds > 60 * self.minutes:
            return []
        missing = [
            kinds
            for number, found, kinds in (
                (self.crashes, crashes(done), ["crash"]),
                (self.kills, done.met["kills"], ["kill", "two"]),
            )
            if number is not None and found < number
        ]
        if self.crashes is None and self.kills is None:
            return list(_PARTS)
        return [*(kind for kinds in missing for kind in kinds), "error", "life"] if missing else []


def crashes(outcome: Outcome) -> int:
    """Power losses and stops on the model of a disk."""
    return outcome.met["power losses"] + outcome.met["stops"]


class Torture:
    """One run: batches in worker processes until all that was asked for is done."""

    def __init__(self, seed: int, wanted: Wanted, workers: int) -> None:
        self._seed, self._wanted, self._workers = seed, wanted, workers
        self._started = time.monotonic()
        self._spent_s = dict.fromkeys(_PARTS, 0.0)
        self.outcome = Outcome()

    def run(self, *, keep_going: bool = False) -> Outcome:
        said = self._started
        sources = {kind: deal(self._seed, kind) for kind in _PARTS}
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, mp_context=context) as pool:
            running: dict[Future[Outcome], tuple[str, float]] = {}
            while True:
                stop = self.outcome.wrong and not keep_going
                now = time.monotonic()
                kinds = [] if stop else self._wanted.kinds(self.outcome, now - self._started)
                while kinds and len(running) < self._workers:
                    kind = self._most_behind(kinds, [kind for kind, _ in running.values()])
                    running[pool.submit(do, next(sources[kind]))] = (kind, now)
                if not running:
                    return self.outcome
                done, _ = wait(running, timeout=_SAY_EVERY_S, return_when=FIRST_COMPLETED)
                now = time.monotonic()
                for future in done:
                    kind, begun = running.pop(future)
                    self._spent_s[kind] += now - begun
                    self._take(future.result())
                if now - said > _SAY_EVERY_S:
                    said = now
                    print(self.line(), flush=True)

    def _most_behind(self, kinds: list[str], running: list[str]) -> str:
        """The kind that had least of its part of the time; those under way count as a second more."""
        return min(kinds, key=lambda kind: (self._spent_s[kind] + 1 + 10 * running.count(kind)) / _PARTS[kind])

    def _take(self, outcome: Outcome) -> None:
        self.outcome.met.update(outcome.met)
        self.outcome.seeded_anew += outcome.seeded_anew
        for message, case in outcome.wrong:
            self.outcome.wrong.append((message, case))
            print(f"WRONG: {message}\nagain: {again(case)}", file=sys.stderr, flush=True)

    def line(self) -> str:
        minutes = max(1e-6, (time.monotonic() - self._started) / 60)
        met = self.outcome.met
        counts = {
            "crashes": crashes(self.outcome),
            "kills": met["kills"],
            "errors": met["errors"],
            "lives": met["lives"],
        }
        parts = [f"{count} {name} ({count / minutes:.0f}/min)" for name, count in counts.items()]
        return f"{minutes:.1f} min: {', '.join(parts)}; {met['healed']} healed, {len(self.outcome.wrong)} wrong"

    def describe(self) -> list[str]:
        outcome = self.outcome
        return [
            *(f"  {count:>6} {name}" for name, count in sorted(outcome.met.items()) if count),
            self.line(),
            f"wrong bytes, lies and hosts that did not heal: {len(outcome.wrong) - outcome.seeded_anew}",
            f"whole re-seeds where a path exists: {outcome.seeded_anew}",
        ]


def again(case: str) -> str:
    """The command that deals the same once more."""
    return f"scripts/torture --again {case}"


def _repeat(case: str) -> int:
    outcome = do(Batch.of_case(case))
    for message, _ in outcome.wrong:
        print(f"WRONG: {message}", file=sys.stderr)
    print("wrong again" if outcome.wrong else "nothing is wrong this time")
    return 1 if outcome.wrong else 0


def _use_memory() -> None:
    """A disk that loses power is simulated: real ones would only make it slow."""
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and os.access(memory, os.W_OK):
        if shutil.disk_usage(memory).free >= _ROOM_BYTES:
            os.environ["TMPDIR"] = str(memory)
        tempfile.tempdir = None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--kills", type=int, default=None, help="so many real SIGKILLs")
    parser.add_argument("--crashes", type=int, default=None, help="so many simulated power losses and stops")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first thing that is wrong")
    parser.add_argument("--again", default=None, metavar="CASE", help="one case that a failure named")
    options = parser.parse_args(arguments)
    _use_memory()
    if options.again is not None:
        return _repeat(options.again)
    minutes = options.minutes
    if minutes is None and options.kills is None and options.crashes is None:
        minutes = _DEFAULT_MINUTES
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}, {options.workers} workers", flush=True)
    torture = Torture(seed, Wanted(options.crashes, options.kills, minutes), options.workers)
    outcome = torture.run(keep_going=options.keep_going)
    print("\n".join(torture.describe()), flush=True)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
