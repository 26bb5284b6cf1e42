"""Real processes and real SIGKILLs at random moments. Two at once on one LOCAL are in `torture_two`.

When a kill strikes is dealt from a seed; which operation it hits is the machine's. `KillStory` is one job on one host.
"""

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, JOBS, SeededAnew, bring_fresh, expect_no_lie, intent_path
from tests.kill_process import KillableRuns, Outcome
from tests.power_story import no_waits, spoilt_bytes

SHAPES = {"few": (3, 6144), "many": (40, 1024)}  # how many tensors, and their KiB together


class KillStory:
    """Use as a context manager: a warm process runs in it."""

    def __init__(self, root: Path, job: str, shape: str) -> None:
        self.name = f"{job}:{shape}"
        self.job = JOBS[job]
        tensors, kib = SHAPES[shape]
        self.host = Host.create(root / "host", model=toolkit.make_model(tensors=tensors, kib=kib))
        self._stack = ExitStack()
        self._stack.enter_context(no_waits())
        self.job.publish(self.host)
        self.met: Counter[str] = Counter()
        self._runs = self._stack.enter_context(KillableRuns(root / "scratch"))
        bring_fresh(self.host, self.job)
        outcome = self._run()
        assert outcome.code == self.job.code, outcome.messages
        self._seconds = outcome.seconds

    def __enter__(self) -> "KillStory":
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def _run(self, kill_after_s: float | None = None, after: Path | None = None) -> Outcome:
        host = self.host
        arguments: list[str | Path] = ["pull", "--shared", host.shared, "--local", host.local, "--base", host.base]
        arguments += ["--threads", "2"]
        arguments += [] if self.job.target is None else ["--version", str(self.job.target)]
        lost_bytes = 0 if self.job.anchor_free else spoilt_bytes(host)  # a mere kill loses nothing
        outcome = self._runs.run(arguments, kill_after_s=kill_after_s, after=after, traced=[host.base])
        self.met["kills"] += outcome.code is None
        if self.job.anchor_free or self.job.name == "repair":
            read_bytes = sum(outcome.read_bytes.values())
            if read_bytes >= 2 * lost_bytes + HEADER_BYTES:
                raise SeededAnew(f"{read_bytes} bytes of the base were read, {lost_bytes} were lost")
        return outcome

    def kill_and_heal(self, number: int) -> None:
        """Raises AssertionError with what to deal again."""
        dice = random.Random(f"{self.name} {number}")
        try:
            bring_fresh(self.host, self.job)
            self._kill(dice)
            self._heal()
        except BaseException as problem:
            problem.args = (f"{problem}\nkill:{self.name}:{number}",)
            raise

    def _moment(self, dice: random.Random) -> tuple[float, Path | None]:
        if dice.random() < 0.3:
            return dice.uniform(0, self._seconds), None
        return dice.uniform(0, self._seconds / 2), intent_path(self.host.local)

    def _kill(self, dice: random.Random) -> None:
        moment, after = self._moment(dice)
        self._run(kill_after_s=moment, after=after)
        self._expect_no_lie()
        if dice.random() < 0.5:
            self._run(kill_after_s=dice.uniform(0, self._seconds))
            self._expect_no_lie()

    def _expect_no_lie(self) -> None:
        if not self.job.name.startswith("repair"):
            expect_no_lie(self.host)

    def _heal(self) -> None:
        healed = self._run()
        assert healed.code == self.job.code, healed.messages
        self.host.expect_local(self.job.end)
        assert not intent_path(self.host.local).exists()
        self.met["healed"] += 1
