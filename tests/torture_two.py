"""Two processes at once on one LOCAL: two pulls, or a pull and the peers' receiver, in real processes.

`TwoStory.meet` starts both within the length of one run, kills one of them now and then, and expects: nothing done by
turns (`two_processes`), bytes whole for whoever gets the lock, the refused one saying on whom it waits and since when,
and in the end the target. When they meet is dealt from a seed; what each has done by then is the machine's.
"""

import json
import random
import re
import shutil
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import JOBS, bring_fresh, expect_no_lie, intent_path, stated_version
from tests.kill_process import KillableRuns, Outcome
from tests.power_story import no_waits
from tests.two_processes import LOCKED, expect_no_turns

SHAPES = {"few": (3, 12288), "many": (120, 3072)}  # how many tensors, and their KiB together
_WAIT_S = 60
_TIME = re.compile(r"since \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")


class TwoStory:
    """One job on one host, done by two at once. Use as a context manager: two warm processes run in it."""

    def __init__(self, root: Path, job: str, shape: str) -> None:
        self.name = f"{job}:{shape}"
        self.job = JOBS[job]
        tensors, kib = SHAPES[shape]
        self.host = Host.create(root / "host", model=toolkit.make_model(tensors=tensors, kib=kib))
        self.met: Counter[str] = Counter()
        self._root = root
        self._stack = ExitStack()
        self._stack.enter_context(no_waits())
        self.job.publish(self.host)
        # What an undone job goes back to is where it began; of the others no one has shown more than these to be good.
        self._peer_versions = (1,) if self.job.code else (0, 1)
        for version in self._peer_versions:
            toolkit.write_checkpoint(root / f"peer {version}", self.host.models[version])
        self._pool = self._stack.enter_context(ThreadPoolExecutor(2))
        self._runs = [self._stack.enter_context(KillableRuns(root / f"scratch {number}")) for number in range(2)]
        bring_fresh(self.host, self.job)
        outcome = self._pull(0)
        assert outcome.code == self.job.code, outcome.messages
        self._seconds = outcome.seconds

    def __enter__(self) -> "TwoStory":
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def meet(self, number: int) -> None:
        """Raises AssertionError with what to deal again."""
        dice = random.Random(f"{self.name} {number}")
        try:
            for leftover in ("notes", "found"):
                path = self._root / leftover
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            bring_fresh(self.host, self.job)
            (self._two_of_ours if dice.random() < 0.5 else self._one_and_a_peer)(dice)
            self._expect_no_lie()
            self.met.update(expect_no_turns(self._notes))
            self._heal()
        except BaseException as problem:
            problem.args = (f"{problem}\ntwo:{self.name}:{number}",)
            raise

    @property
    def _notes(self) -> Path:
        return self._root / "notes"

    def _pull(self, who: int, *options: str, kill_after_s: float | None = None, after: Path | None = None) -> Outcome:
        host = self.host
        arguments: list[str | Path] = ["pull", "--shared", host.shared, "--local", host.local, "--base", host.base]
        arguments += ["--threads", "2", *options]
        arguments += [] if self.job.target is None else ["--version", str(self.job.target)]
        return self._runs[who].run(arguments, kill_after_s=kill_after_s, after=after, noted=self._notes)

    def _two_of_ours(self, dice: random.Random) -> None:
        """The first may be killed; the second waits, or is refused, or is killed as well."""
        kill_after_s = dice.choice([None, dice.uniform(0, self._seconds)])
        how = dice.choice(["waits", "refused", "killed"])
        options = () if how == "refused" else ("--wait", str(_WAIT_S))
        first = self._pool.submit(self._pull, 0, "--wait", str(_WAIT_S), kill_after_s=kill_after_s)
        self._wait_until_under_way(first, dice)
        second = self._pool.submit(
            self._pull, 1, *options, kill_after_s=dice.uniform(0, 2 * self._seconds) if how == "killed" else None
        )
        outcomes = (first.result(), second.result())
        self.met[f"two of ours, the second {how}"] += 1
        for outcome, other in (outcomes, outcomes[::-1]):
            self._expect_told(outcome, other)
        if how == "waits":
            assert outcomes[1].code == self.job.code, outcomes[1].messages
            self.host.expect_local(self.job.end)

    def _one_and_a_peer(self, dice: random.Random) -> None:
        """Both start within the length of a run; the peer waits for as long as it takes, as it does."""
        version = dice.choice(self._peer_versions)
        task = {
            "local": str(self.host.local),
            "source": str(self._root / f"peer {version}"),
            "found": str(self._root / "found"),
            "version": str(version),
        }
        self.host.local.mkdir(exist_ok=True)
        how = dice.choice(["waits", "refused", "killed"])
        options = () if how == "refused" else ("--wait", str(_WAIT_S))
        kill_after_s = dice.uniform(0, self._seconds) if how == "killed" else None

        def pull() -> "Future[Outcome]":
            return self._pool.submit(self._pull, 0, *options, kill_after_s=kill_after_s)

        def receive() -> "Future[Outcome]":
            return self._pool.submit(self._runs[1].run, (), noted=self._notes, peer=task)

        if dice.random() < 0.5:
            ours = pull()
            self._wait_until_under_way(ours, dice)
            peer, outcome = receive().result(), ours.result()
        else:
            theirs = receive()
            self._wait_until_under_way(theirs, dice, word=" locked ")
            ours = pull()
            peer, outcome = theirs.result(), ours.result()
        self.met[f"one of ours and a peer, ours {how}"] += 1
        assert peer.code == 0, f"something moved under the peer's lock: {peer.messages}"
        self._expect_told(outcome, peer)
        found = self._root / "found"
        if (found / "state.json").exists() and not self.job.name.startswith("repair"):
            number = int(json.loads((found / "state.json").read_bytes())["version"])
            assert toolkit.read_checkpoint(found) == self.host.models[number], (
                "what the peer found was between versions"
            )
            self.met["peers that found a whole version"] += 1

    def _wait_until_under_way(self, run: "Future[Outcome]", dice: random.Random, word: str = LOCKED) -> None:
        """Most of the time the other one comes when the first has the lock; without a pause, for it is not long."""
        if dice.random() < 0.2:
            return
        while not run.done():
            if self._notes.exists() and word in self._notes.read_text(encoding="utf-8"):
                return

    def _expect_told(self, outcome: Outcome, other: Outcome) -> None:
        allowed = (None, 0, 20, self.job.code)
        assert outcome.code in allowed, outcome.messages
        if outcome.code == 20:
            self.met["told who holds the lock"] += 1
            assert re.search(rf"process {other.pid}\b", outcome.messages), (other.pid, outcome.messages)
            ended = "since when is not known" in outcome.messages  # it has ended between two looks
            assert ended or _TIME.search(outcome.messages), outcome.messages

    def _expect_no_lie(self) -> None:
        if not self.job.name.startswith("repair"):
            expect_no_lie(self.host)

    def _heal(self) -> None:
        healed = self._pull(0)
        assert healed.code == self.job.code, healed.messages
        assert stated_version(self.host.local) == self.job.end
        self.host.expect_local(self.job.end)
        assert not intent_path(self.host.local).exists()
        self.met["healed"] += 1
