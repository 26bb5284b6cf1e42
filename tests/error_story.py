"""One job and one error in it, told from a seed: struck, looked at, and healed (FIELD_GUIDE H6, S15).

The error comes from the operating system (`fault_calls`), at the n-th read or write below the share, the base or
LOCAL, once or until the run ends; in the job itself or in the recovery of a killed one. What then holds: a number in
LOCAL stands for its bytes, the run says whose disk it was, and a pull without the error reaches the target.
"""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.fault_calls import READ_FAULTS, WRITE_FAULTS, Fault, FaultyCalls
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, JOBS, SeededAnew, bring_fresh, expect_no_lie, intent_path, stated_version
from tests.kill_points import PULL_THREADS, KillSwitch, count_operations, run_until_killed, tracing
from tests.power_story import make_shape, no_waits, spoilt_bytes

PLACES = ("shared", "base", "local")
_MAY_SAY = {"shared": (10,), "base": (2, 10, 22), "local": (21,)}


@dataclass(frozen=True)
class Blow:
    """The `at`-th read (or write) below that directory. `killed_at`: in the recovery from a kill at that operation."""

    place: str
    writes: bool
    at: int
    fault: Fault
    for_good: bool
    killed_at: int | None = None

    def __str__(self) -> str:
        words = [self.place, "write" if self.writes else "read", str(self.at), self.fault.name]
        words += ["for_good" if self.for_good else "once"]
        return ":".join([*words, *([] if self.killed_at is None else [str(self.killed_at)])])

    @classmethod
    def parse(cls, text: str) -> "Blow":
        """What `str` gave."""
        place, kind, at, fault, how, *killed_at = text.split(":")
        kill = int(killed_at[0]) if killed_at else None
        return cls(place, kind == "write", int(at), Fault[fault], how == "for_good", kill)


class ErrorStory:
    """A host whose job meets an error again and again."""

    def __init__(self, root: Path, job: str, shape: str = "least") -> None:
        self.name = f"{job}:{shape}"
        self.job = JOBS[job]
        self.host = Host.create(root / "host", model=make_shape(shape))
        self.met: Counter[str] = Counter()
        with no_waits():
            self.job.publish(self.host)
            bring_fresh(self.host, self.job)
            self.operations = count_operations(lambda: self.job.run(self.host))
        self._totals: dict[tuple[str, bool, int | None], int] = {}

    def total(self, place: str, *, writes: bool, killed_at: int | None = None) -> int:
        """How many such calls the job makes when all goes well."""
        key = (place, writes, killed_at)
        if key not in self._totals:
            with no_waits():
                self._bring(killed_at)
                with FaultyCalls(self.host.root / place, writes=writes) as calls:
                    self.job.run(self.host)
            self._totals[key] = calls.seen
        return self._totals[key]

    def every(self, place: str, *, writes: bool, turn: int = 0) -> list[Blow]:
        """One at each call, faults by turns, once and for good."""
        faults = WRITE_FAULTS if writes else READ_FAULTS
        return [
            Blow(place, writes, at, faults[(at + turn) % len(faults)], bool((at + turn) // len(faults) % 2))
            for at in range(self.total(place, writes=writes))
        ]

    def deal(self, number: int) -> Blow:
        """The blow with that number: always the same."""
        dice = random.Random(f"{self.name} {number}")
        place, writes = dice.choice([*((place, False) for place in PLACES), ("local", True), ("local", True)])
        killed_at = dice.choice([None, dice.randrange(self.operations)])
        fault = dice.choice(WRITE_FAULTS if writes else READ_FAULTS)
        total = max(1, self.total(place, writes=writes, killed_at=killed_at))
        return Blow(place, writes, dice.randrange(total), fault, dice.random() < 0.5, killed_at)

    def strike(self, blow: Blow) -> None:
        """Raises AssertionError with all that happened."""
        events: list[str] = []
        try:
            with no_waits():
                self._strike(blow, events)
        except BaseException as problem:
            problem.args = (f"{problem}\n{'; '.join(events)}\nagain: scripts/torture --again error:{self.name}:{blow}",)
            raise

    def _bring(self, killed_at: int | None) -> None:
        bring_fresh(self.host, self.job)
        if killed_at is not None:
            run_until_killed(lambda: self.job.run(self.host), KillSwitch(killed_at))

    def _strike(self, blow: Blow, events: list[str]) -> None:
        host, job = self.host, self.job
        self._bring(blow.killed_at)
        before = stated_version(host.local)
        with FaultyCalls(
            host.root / blow.place, writes=blow.writes, at=blow.at, fault=blow.fault, for_good=blow.for_good
        ) as calls:
            result = job.run(host)
        if calls.struck is None:
            return
        self.met["errors"] += 1
        self.met[f"errors {blow.fault.name}"] += 1
        events.append(f"{calls.struck.call} of {calls.struck.path.relative_to(host.root)}: exit {result.code}")
        allowed = {job.code, *_MAY_SAY[blow.place]}
        if blow.fault is Fault.ENDED:  # as a file that is cut short, whatever its figures say
            allowed |= {10, 22} if blow.place != "local" else {12, 13, 22}
        if blow.place != "local" and job.start is not None and job.target is None:
            allowed.add(0)  # the newest version that can be read: perhaps the one that is here
        assert result.code in allowed, (result.code, result.stdout, result.stderr)
        assert "Traceback" not in result.stderr, result.stderr
        if result.code == 0:
            assert result.document["version"] == stated_version(host.local), result.document
        if not job.name.startswith("repair"):  # those begin with wrong bytes, and marks that say so
            expect_no_lie(host)
            if before is not None and blow.place != "local" and not job.cramped:
                assert stated_version(host.local) is not None, "the old version is not whole"
        self._heal(events)

    def _heal(self, events: list[str]) -> None:
        host, job = self.host, self.job
        spoilt = spoilt_bytes(host)
        events.append(f"{spoilt} bytes of no version")
        with tracing() as trace:
            result = job.run(host)
        assert result.code == job.code, (result.code, result.stdout, result.stderr)
        if job.code and stated_version(host.local) is None:
            # A bad publication, and shards that could not be made out under it: no version is called good.
            assert spoilt
            assert host.pull(*PULL_THREADS, version=job.end).code == 0
        host.expect_local(job.end)
        assert not intent_path(host.local).exists()
        if job.start is not None and job.anchor_free:
            read = trace.bytes_from(host.base)
            times = 2 if job.code == 0 else 5
            if read > times * spoilt + HEADER_BYTES:
                raise SeededAnew(f"{read} bytes of the base read")
        self.met["healed"] += 1
