"""Every job killed before every durable operation, and the next pull heals it (promise 2).

The kills are exact: the run dies before its n-th operation and does nothing more. Kills at random moments of real
processes are in `test_kills.py`; blocks torn in the middle in `test_recovery_torn.py`.
"""

import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import (
    HEADER_BYTES,
    JOBS,
    Job,
    bring_fresh,
    create,
    expect_no_lie,
    expect_settled,
    expect_whole,
    stated_version,
)
from tests.kill_points import PULL_THREADS, KillSwitch, count_operations, no_disk_waits, run_until_killed, tracing

_PARTS = 2  # how many tests share the points of a job, so that they run side by side
_PAIRS = 16  # how many times a job is killed and its recovery too
_LOOK_AGAIN = 4  # after how many kills one healed LOCAL is looked at again by `pull` and `verify`
_EMPTIED = 12  # how many kills of a job are followed by the loss of the share

# What these rebuild is not in LOCAL.
NEEDS_SHARE = ("repair", "repair_shard", "identify", "replacement_in_place")
ANCHOR_FREE = [name for name, job in JOBS.items() if job.anchor_free]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _kills(host: Host, job: Job, points: Iterator[int] | range | list[int]) -> Iterator[int]:
    """Kill the job at each of these points; the caller finds LOCAL as the kill left it."""
    for point in points:
        bring_fresh(host, job)
        switch = KillSwitch(point)
        if run_until_killed(lambda: job.run(host), switch) is not None:
            return
        if not job.name.startswith("repair"):
            expect_no_lie(host)
        yield point


def _heal(host: Host, job: Job, point: int) -> None:
    """One pull ends as the job would have; where only a kill happened, no anchor is read."""
    with tracing() as trace:
        result = job.run(host)
    assert result.code == job.code, result.stderr
    assert stated_version(host.local) == job.end
    if job.anchor_free:
        assert trace.bytes_from(host.base) < HEADER_BYTES
    expect_settled(host, job.end, look_again=point % _LOOK_AGAIN == 0)


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("name", JOBS)
def test_h01_h02_a_kill_before_any_operation_heals(name: str, part: int, tmp_path: Path) -> None:
    job = JOBS[name]
    host = create(tmp_path, job)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    assert total > 10
    for point in _kills(host, job, range(part, total, _PARTS)):
        try:
            _heal(host, job, point)
        except BaseException:
            print(f"{name}: killed before operation {point} of {total}")
            raise


@pytest.mark.parametrize("name", JOBS)
def test_h01_h02_a_kill_during_recovery_heals_too(name: str, tmp_path: Path) -> None:
    job = JOBS[name]
    host = create(tmp_path, job)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    generator = random.Random(name)
    first = sorted(generator.sample(range(total), min(_PAIRS, total)))
    for point in _kills(host, job, first):
        switch = KillSwitch(generator.randrange(total // 2))
        killed_again = run_until_killed(lambda: job.run(host), switch) is None
        try:
            _heal(host, job, point)
        except BaseException:
            again = f", and recovery before its operation {switch.at}" if killed_again else ""
            print(f"{name}: killed before operation {point} of {total}{again}")
            raise


@pytest.mark.parametrize("name", [name for name in JOBS if name not in NEEDS_SHARE])
def test_h01_h02_with_the_share_emptied_after_the_kill_recovery_ends_at_a_whole_version(
    name: str, tmp_path: Path
) -> None:
    """Where recovery needs no anchor the base is gone too. What the pull says is 10 (or, with version 0 here, 0)."""
    job = JOBS[name]
    host = create(tmp_path / "host", job)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    points = sorted(random.Random(name).sample(range(total), min(_EMPTIED, total)))
    kept = tmp_path / "kept"
    for point in _kills(host, job, points):
        kept.mkdir()
        for version in list(host.shared.iterdir()):
            version.rename(kept / version.name)
        if job.anchor_free:
            host.base.rename(kept / "base")
        try:
            result = host.pull()
            assert result.code in ((0, 10) if job.start in (0, None) else (10,)), result.stderr
            assert expect_whole(host) in {job.start or 0, job.end}
            assert toolkit.vime("verify", "--local", host.local).code == 0
        except BaseException:
            print(f"{name}: killed before operation {point} of {total}, share emptied")
            raise
        for entry in list(kept.iterdir()):
            entry.rename(host.base if entry.name == "base" else host.shared / entry.name)
        kept.rmdir()
        _heal(host, job, point)


@pytest.mark.parametrize("name", NEEDS_SHARE)
def test_h01_h02_what_cannot_be_healed_without_the_share_is_never_called_ready(name: str, tmp_path: Path) -> None:
    job = JOBS[name]
    host = create(tmp_path / "host", job)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    points = sorted(random.Random(name).sample(range(total), min(_EMPTIED, total)))
    away = tmp_path / "away"
    for point in _kills(host, job, points):
        host.shared.rename(away)
        host.shared.mkdir()
        try:
            result = host.pull()
            assert result.code in (10, 22), result.stderr
            status = toolkit.vime("status", "--local", host.local)
            if status.document["state"] == "ready":
                expect_whole(host)
        except BaseException:
            print(f"{name}: killed before operation {point} of {total}, share emptied")
            raise
        shutil.rmtree(host.shared)
        away.rename(host.shared)
        _heal(host, job, point)


@pytest.mark.parametrize("again", ["xor", "full"])
@pytest.mark.parametrize("name", [name for name in JOBS if not JOBS[name].cramped])
def test_v02_v03_a_kill_and_then_a_trainer_that_begins_again(name: str, again: str, tmp_path: Path) -> None:
    """What the killed run was made for is not published any more; nothing of it may stand under a number."""
    job = JOBS[name]
    host = create(tmp_path / "host", job)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    shutil.copytree(host.shared, tmp_path / "before")
    other = Host(host.root, {0: host.models[0]})
    for number in (1, 2):
        other.models[number] = toolkit.step(other.models[number - 1], 70 + number)
    for point in _kills(host, job, sorted(random.Random(name + again).sample(range(total), min(_EMPTIED, total)))):
        shutil.rmtree(host.shared)
        host.shared.mkdir()
        if again == "full":
            toolkit.publish_full(host.shared, 1, other.models[1], shards=3)
        else:
            toolkit.publish_delta(host.shared, 1, other.models[0], other.models[1])
        toolkit.publish_delta(host.shared, 2, other.models[1], other.models[2], encoding="overwrite")
        try:
            for version in (2, 0, 1):
                result = host.pull(*PULL_THREADS, version=version)
                assert (result.code, result.document.get("version")) == (0, version), result.stderr
                other.expect_local(version)
            expect_settled(other, 1)
        except BaseException:
            print(f"{name}: killed before operation {point} of {total}, then begun again ({again})")
            raise
        shutil.rmtree(host.shared)
        shutil.copytree(tmp_path / "before", host.shared)


# ---- nothing is done over that was done


@dataclass(frozen=True)
class _SmallSteps(Host):
    """A trainer that changes one small tensor of a large model, and the last one of a pass."""

    @property
    def small(self) -> list[str]:
        return [list(self.models[0])[11], "one"]

    def publish(self, *, encoding: str = "xor", only: Iterable[str] | None = None, density: float = 0.01) -> Path:
        return super().publish(encoding=encoding, only=self.small if only is None else only, density=density)


@pytest.mark.parametrize("name", ANCHOR_FREE)
def test_h01_recovery_touches_only_what_the_job_touches(name: str, tmp_path: Path) -> None:
    """Killed anywhere, no heal reads or writes the tensors that the job had nothing to do with."""
    job = JOBS[name]
    host = _SmallSteps.create(tmp_path, model=toolkit.make_model(tensors=12, kib=6144))
    assert isinstance(host, _SmallSteps)
    job.publish(host)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    touched = sum(len(host.models[0][tensor].data) for tensor in host.small)
    model = sum(len(tensor.data) for tensor in host.models[0].values())
    # A heal hashes what was begun and finishes it; a bad delta is then tried once more, undone and looked into.
    times = 4 if job.code == 0 else 10
    for point in _kills(host, job, range(0, total, 5)):
        with tracing() as trace:
            result = job.run(host)
        assert result.code == job.code, result.stderr
        read = trace.bytes_from(host.local, ".safetensors")
        where = f"killed before operation {point} of {total}"
        assert read < times * touched + 64 * 1024 < model, where
        assert result.document.get("bytes_written", 0) <= 2 * touched, where
        expect_whole(host)
