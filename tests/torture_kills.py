"""Real processes and real SIGKILLs at random moments, one process or two at once on one LOCAL.

When a kill strikes is dealt from a seed; which operation it hits is the machine's. `KillStory` is one job on one host.
"""

import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, JOBS, bring_fresh, expect_no_lie, intent_path
from tests.kill_process import KillableRuns, Outcome
from tests.power_story import no_waits

SHAPES = {"few": (3, 6144), "many": (40, 1024)}  # how many tensors, and their KiB together
_WAIT_S = 60


class KillStory:
    """Use as a context manager: two warm processes run in it."""

    def __init__(self, root: Path, job: str, shape: str) -> None:
        self.name = f"{job}:{shape}"
        self.job = JOBS[job]
        tensors, kib = SHAPES[shape]
        self.host = Host.create(root / "host", model=toolkit.make_model(tensors=tensors, kib=kib))
        self._stack = ExitStack()
        self._stack.enter_context(no_waits())
        self.job.publish(self.host)
        self.met: Counter[str] = Counter()
        self._runs = [KillableRuns(root / f"scratch {number}") for number in range(2)]
        self._pool = ThreadPoolExecutor(2)
        bring_fresh(self.host, self.job)
        outcome = self._run(0)
        assert outcome.code == self.job.code, outcome.messages
        self._seconds = outcome.seconds

    def __enter__(self) -> "KillStory":
        return self

    def __exit__(self, *problem: object) -> None:
        self._pool.shutdown()
        self._stack.close()
        for runs in self._runs:
            runs.__exit__(None, None, None)

    def _run(self, who: int, *options: str, kill_after_s: float | None = None, after: Path | None = None) -> Outcome:
        host = self.host
        arguments: list[str | Path] = ["pull", "--shared", host.shared, "--local", host.local, "--base", host.base]
        arguments += ["--threads", "2", *options]
        arguments += [] if self.job.target is None else ["--version", str(self.job.target)]
        outcome = self._runs[who].run(arguments, kill_after_s=kill_after_s, after=after, traced=[host.base])
        self.met["kills"] += outcome.code is None
        if self.job.anchor_free:
            read_bytes = sum(outcome.read_bytes.values())
            assert read_bytes < HEADER_BYTES, f"a recovery from a mere kill read {read_bytes} bytes of the base"
        return outcome

    def kill_and_heal(self, number: int) -> None:
        """Raises AssertionError with what to deal again."""
        dice = random.Random(f"{self.name} {number}")
        try:
            bring_fresh(self.host, self.job)
            dice.choice([self._one, self._one, self._two])(dice)
            self._heal()
        except BaseException as problem:
            problem.args = (f"{problem}\nkill:{self.name}:{number}",)
            raise

    def _moment(self, dice: random.Random) -> tuple[float, Path | None]:
        if dice.random() < 0.3:
            return dice.uniform(0, self._seconds), None
        return dice.uniform(0, self._seconds / 2), intent_path(self.host.local)

    def _one(self, dice: random.Random) -> None:
        moment, after = self._moment(dice)
        self._run(0, kill_after_s=moment, after=after)
        self._expect_no_lie()
        if dice.random() < 0.5:
            self._run(0, kill_after_s=dice.uniform(0, self._seconds))
            self._expect_no_lie()

    def _two(self, dice: random.Random) -> None:
        """One is killed; the other waits for it, or is refused, or is killed as well."""
        moment, after = self._moment(dice)
        first = self._pool.submit(self._run, 0, kill_after_s=moment, after=after)
        how = dice.choice(["waits", "refused", "killed"])
        options = () if how == "refused" else ("--wait", str(_WAIT_S))
        kill_after_s = dice.uniform(0, 2 * self._seconds) if how == "killed" else None
        second = self._pool.submit(self._run, 1, *options, kill_after_s=kill_after_s)
        outcomes = (first.result(), second.result())
        self.met[f"two at once, the second {how}"] += 1
        for outcome in outcomes:
            assert outcome.code in (None, 20, self.job.code), outcome.messages
            if outcome.code == 20:
                self.met["told who holds the lock"] += 1
                assert "since" in outcome.messages and re.search(r"process \d+", outcome.messages), outcome.messages
        if how == "waits":
            assert outcomes[1].code == self.job.code, outcomes[1].messages
            self.host.expect_local(self.job.end)
        self._expect_no_lie()

    def _expect_no_lie(self) -> None:
        if not self.job.name.startswith("repair"):
            expect_no_lie(self.host)

    def _heal(self) -> None:
        healed = self._run(0)
        assert healed.code == self.job.code, healed.messages
        self.host.expect_local(self.job.end)
        assert not intent_path(self.host.local).exists()
        self.met["healed"] += 1
