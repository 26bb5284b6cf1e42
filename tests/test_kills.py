"""FIELD_GUIDE H1, H2 with real SIGKILLs: 300 at random moments, every one heals to the right bytes.

Each kill strikes somewhere in the length of an undisturbed run of the same job, three out of four once the job has
begun to write; a third of the recoveries are killed as well. This is the one place where tests depend on time, and
only the places where the kills land do. A line on stderr tells what was met; a failure names its seed.
"""

import random
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, JOBS, KILL_JOBS, Job, bring_fresh, create, expect_no_lie, intent_path
from tests.kill_points import no_disk_waits
from tests.kill_process import KillableRuns, Outcome

_KILLS = 300
_PARTS = 2
_KILLS_PER_TEST = -(-_KILLS // (len(KILL_JOBS) * _PARTS))
_MEASURED = 3
_KIB = 6144  # 2.7, 2.0 and 1.3 MiB, and the odd ones
_SEED = 20240
_TWICE = 0.45  # how often recovery is killed too; some of those kills come too late

# What tells that a job writes. New files are built aside first; the renames under an intent take but a moment.
_UNDER_WAY = {"seed": ("aside", "intent.json"), "replacement": ("aside", "intent.json")}
_INTENT = ("intent.json",)


@dataclass
class _Tally:
    """What one test met."""

    kills: int = 0
    landed: int = 0
    between: int = 0
    twice: int = 0
    anchor_bytes: int = 0
    ratios: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        worst, middle = max(self.ratios), statistics.median(self.ratios)
        return (
            f"kills of {name}: {self.kills}, {self.landed} before the end, {self.between} between two versions, "
            f"{self.twice} recoveries killed too; {self.kills} healed, {self.anchor_bytes} bytes of the base read; "
            f"healing took {middle:.2f} x an undisturbed run (median), {worst:.2f} x (worst)"
        )


class _Story:
    """One job on one host, killed again and again."""

    def __init__(self, host: Host, job: Job, runs: KillableRuns, seed: str) -> None:
        self.host, self.job, self.runs = host, job, runs
        self.generator = random.Random(seed)
        self.tally = _Tally()
        sync = host.local / toolkit.STATE_DIRECTORY
        self.seconds = statistics.median(self._undisturbed(None).seconds for _ in range(_MEASURED))
        self.moments: list[tuple[Path, float]] = []
        for name in _UNDER_WAY.get(job.name, _INTENT):
            windows = [self._undisturbed(sync / name).window_s for _ in range(_MEASURED)]
            seen = [window for window in windows if window is not None]
            if seen:  # an intent over a few renames can come and go between two looks
                self.moments.append((sync / name, statistics.median(seen)))
        assert self.moments, "nothing told that the job was under way"

    def _run(
        self, *, kill_after_s: float | None = None, after: Path | None = None, version: int | None = None
    ) -> Outcome:
        target = self.job.target if version is None else version
        host = self.host
        arguments: list[str | Path] = [
            "pull",
            "--shared",
            host.shared,
            "--local",
            host.local,
            "--base",
            host.base,
            "--threads",
            "2",
        ]
        arguments += [] if target is None else ["--version", str(target)]
        return self.runs.run(arguments, kill_after_s=kill_after_s, after=after, traced=[host.base])

    def _undisturbed(self, after: Path | None) -> Outcome:
        bring_fresh(self.host, self.job)
        outcome = self._run(after=after)
        assert outcome.code == self.job.code, outcome.messages
        self.host.expect_local(self.job.end)
        return outcome

    def kill_and_heal(self) -> None:
        bring_fresh(self.host, self.job)
        if self.generator.random() < 0.25:
            killed = self._run(kill_after_s=self.generator.uniform(0, self.seconds))
        else:
            moment, window_s = self.generator.choice(self.moments)
            killed = self._run(kill_after_s=self.generator.uniform(0, window_s), after=moment)
        self.tally.kills += 1
        self.tally.landed += killed.code is None
        self.tally.between += killed.code is None and intent_path(self.host.local).exists()
        if self.job.name != "repair":
            expect_no_lie(self.host)
        if self.generator.random() < _TWICE:
            again = self._run(kill_after_s=self.generator.uniform(0, self.seconds))
            self.tally.twice += again.code is None
            self._note_reads(again)
        healed = self._run()
        assert healed.code == self.job.code, healed.messages
        self.tally.ratios.append(healed.seconds / self.seconds)
        self._note_reads(healed)
        self.host.expect_local(self.job.end)
        assert not intent_path(self.host.local).exists()
        current = self.host.pulled(version=self.job.end)
        assert (current["result"], current["bytes_written"]) == ("already_current", 0)

    def _note_reads(self, outcome: Outcome) -> None:
        read_bytes = sum(outcome.read_bytes.values())
        self.tally.anchor_bytes += read_bytes
        if self.job.anchor_free:
            assert read_bytes < HEADER_BYTES, "a recovery from a mere kill read the base"


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("name", KILL_JOBS)
def test_h01_h02_every_real_kill_heals(
    name: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_disk_waits(monkeypatch)
    job = JOBS[name]
    host = create(tmp_path / "host", job, kib=_KIB)
    with KillableRuns(tmp_path / "scratch") as runs:
        story = _Story(host, job, runs, f"{_SEED} {name} {part}")
        for number in range(_KILLS_PER_TEST):
            try:
                story.kill_and_heal()
            except BaseException:
                print(f"{name}, part {part}, kill {number}; the seed is {_SEED}")
                raise
    assert story.tally.landed > 0
    with capsys.disabled():  # the stderr of a worker reaches the terminal, its stdout does not
        print(f"\n{story.tally.line(name)}", file=sys.stderr, flush=True)
