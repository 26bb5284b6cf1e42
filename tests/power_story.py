"""One job and a power loss in it, told from a seed: pulled, struck, healed, and looked at (FIELD_GUIDE H3).

`PowerStory` publishes once; each `strike` brings LOCAL to the moment before the job, on a disk whose unsynced writes
and names can be lost (`disk_model`), lets the power go at an operation, perhaps again during the recovery, and then
expects of an undisturbed pull what a good host owes: the target with exact bytes, no more of the base read than was
lost, and nothing lost any more when the power goes once it has said so.
"""

import functools
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import typer.main

from tests import toolkit
from tests.disk_model import DiskModel, Loss
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, JOBS, SeededAnew, expect_whole, intent_path, state_path, stated_version
from tests.kill_points import PULL_THREADS, KillSwitch, observing, run_until_killed, tracing
from tests.toolkit import Model, Result

SHAPES = {"few": (3, 2560), "many": (40, 240), "least": (2, 1700)}  # how many tensors, and their KiB together
_BY_HAND = ("repair", "identify", "repair_shard")  # their LOCAL is brought there by others too
_NO_WAY_BACK = ("rollback_overwrite",)  # what was kept for it is never synced; else only the anchor leads there
# From what lies in LOCAL a way leads to the target, but for what was lost: these need no second checkpoint.
_LEADS_ON = ("apply", "apply_overwrite", "folded", "undo", "rollback", "repair", "repair_shard")
_AGAIN = (0, 0, 0, 1, 1, 2)  # how often power goes (or a kill comes) during recovery too


class _DurableHost(Host):
    """Pulls with --durable."""

    def pull(self, *options: str | Path, version: int | None = None) -> Result:
        return super().pull("--durable", *options, version=version)


@dataclass(frozen=True)
class Strike:
    """Where power goes, and what that loses. `number` seeds all the rest."""

    number: int
    point: int
    loss: Loss


def make_shape(shape: str) -> Model:
    tensors, kib = SHAPES[shape]
    return toolkit.make_model(tensors=tensors, kib=kib)


_command = functools.cache(typer.main.get_command)


@contextmanager
def no_waits() -> Iterator[None]:
    """The model says what lasts: the real disk need not wait. The command line is built only once."""
    with mock.patch("os.fsync", lambda descriptor: None), mock.patch("typer.main.get_command", _command):
        yield


class PowerStory:
    """A host whose job is struck again and again."""

    def __init__(self, root: Path, job: str, shape: str, *, durable: bool) -> None:
        self.name = f"{job}:{shape}:{'durable' if durable else 'behind'}"
        self.job = JOBS[job]
        kind = _DurableHost if durable else Host
        self.host = kind.create(root, model=make_shape(shape))
        self.met: Counter[str] = Counter()
        with no_waits():
            self.job.publish(self.host)
            self.job.bring(self.host)
            self._operations: list[str] = []
            with observing(lambda operation, path: self._operations.append(operation)):
                result = self.job.run(self.host)
        assert result.code == self.job.code, result.stderr

    @property
    def total(self) -> int:
        """How many operations the undisturbed job does."""
        return len(self._operations)

    def sync_boundaries(self) -> list[int]:
        """The operations right before and right after each sync, of data or of names."""
        syncs = {n for n, operation in enumerate(self._operations) if operation.startswith("sync")}
        return sorted({*syncs, *(number + 1 for number in syncs if number + 1 < self.total)})

    def deal(self, number: int) -> Strike:
        """The strike with that number: always the same."""
        dice = random.Random(f"{self.name} {number}")
        return Strike(number, dice.randrange(self.total + 1), dice.choice([*Loss, Loss.ANY, Loss.TORN]))

    def strike(self, strike: Strike) -> None:
        """Raises AssertionError with all that happened."""
        dice = random.Random(f"{self.name} {strike.number} {strike.point} {strike.loss.value}")
        events: list[str] = []
        try:
            with no_waits():
                self._strike(strike, dice, events)
        except BaseException as problem:
            problem.args = (f"{problem}\n{self.name}, strike {strike}: {'; '.join(events)}",)
            raise

    def _strike(self, strike: Strike, dice: random.Random, events: list[str]) -> None:
        host, job = self.host, self.job
        shutil.rmtree(host.local, ignore_errors=True)
        with DiskModel(host.local, host.root / "limbo") as disk:
            job.bring(host)
            if job.name in _BY_HAND:
                disk.rescan()
            if dice.random() < 0.2:
                self._stop(dice.randrange(self.total), events)
            run_until_killed(lambda: job.run(host), KillSwitch(strike.point))
            self._lose_power(disk, strike.loss, dice, events, strike.point)
            for _ in range(dice.choice(_AGAIN)):
                point = dice.randrange(self.total)
                if dice.random() < 0.75:
                    run_until_killed(lambda: job.run(host), KillSwitch(point))
                    self._lose_power(disk, dice.choice(list(Loss)), dice, events, point)
                else:
                    self._stop(point, events)
            self._heal(events)
            self._expect_lasting(disk, dice)

    def _stop(self, point: int, events: list[str]) -> None:
        """The run ends there, and the host goes on."""
        switch = KillSwitch(point)
        run_until_killed(lambda: self.job.run(self.host), switch)
        self.met["stops"] += switch.struck
        events.append(f"killed before operation {point}")

    def _lose_power(self, disk: DiskModel, loss: Loss, dice: random.Random, events: list[str], point: int) -> None:
        lost = disk.crash(loss, dice)
        self.met["power losses"] += 1
        self.met["power losses that lost something"] += bool(lost)
        events.append(f"power lost before operation {point} ({loss.value}): {', '.join(lost) or 'nothing'}")
        # A repair begins with bytes that only the next pull finds wrong.
        if not self.job.name.startswith("repair") and is_called_durable(self.host.local):
            expect_whole(self.host)

    def _heal(self, events: list[str]) -> None:
        host, job = self.host, self.job
        spoilt = spoilt_bytes(host)
        events.append(f"{spoilt} bytes of no version")
        with tracing() as trace:
            result = job.run(host)
        if job.cramped and result.code == 21 and spoilt:
            result = host.pull(*PULL_THREADS, version=job.target)  # a lost shard is built anew beside what is there
        assert result.code == job.code, (result.code, result.stdout, result.stderr)
        mostly_lost = 2 * spoilt >= sum(len(tensor.data) for tensor in host.models[0].values())
        if job.code and stated_version(host.local) is None:
            # A bad publication, and shards lost under it: nothing leads on, and no version is called good.
            assert spoilt
            assert host.pull(*PULL_THREADS, version=job.end).code == 0
        assert stated_version(host.local) == job.end
        host.expect_local(job.end)
        assert not intent_path(host.local).exists()
        if job.start is not None and job.anchor_free and job.name not in _NO_WAY_BACK:
            read = trace.bytes_from(host.base)
            times = 2 if job.code == 0 else 5  # what proves bad is tried, undone and looked into
            if read > times * spoilt + HEADER_BYTES:
                raise SeededAnew(f"{read} bytes of the base read")
        seeded = result.document.get("seeded_from") is not None
        if seeded and job.name in _LEADS_ON and not mostly_lost:
            raise SeededAnew("a second checkpoint was built")
        self.met["seeded anew, as most was lost"] += seeded and job.name in _LEADS_ON
        self.met["healed"] += 1

    def _expect_lasting(self, disk: DiskModel, dice: random.Random) -> None:
        """What a pull has called good is on the disk: whatever else goes, and nothing is hashed or written again."""
        if self.job.code:
            result = self.host.pull(*PULL_THREADS, version=self.job.end)
            assert result.code == 0, result.stderr
        disk.crash(dice.choice([Loss.DROPPED, Loss.TORN, Loss.ANY]), dice)
        self.host.expect_local(self.job.end)
        with tracing() as trace:
            again = self.host.pulled(*PULL_THREADS, version=self.job.end)
        assert (again["result"], again["bytes_written"]) == ("already_current", 0), again
        assert trace.bytes_from(self.host.local, ".safetensors") < HEADER_BYTES, "hashed again what was durable"
        self.host.expect_local(self.job.end)


def is_called_durable(local: Path) -> bool:
    """Whether the records on the disk say that a version is whole and lasts."""
    try:
        ours = json.loads(state_path(local).read_bytes())["vime_sync"]
    except (FileNotFoundError, ValueError, KeyError):
        return False
    return bool(ours["durable"] and not ours["damaged"])


def _versions_known(host: Host) -> set[int]:
    """The versions that tensors may be at without being lost."""
    stated = stated_version(host.local)
    if stated is not None:
        return {stated}
    try:
        intent = json.loads(intent_path(host.local).read_bytes())
        if intent["origin"]["damaged"]:
            return {intent["origin_version"]}
    except (FileNotFoundError, ValueError, KeyError):
        pass
    return set(host.models)


def spoilt_bytes(host: Host) -> int:
    """How much of LOCAL is no version's: of shards that are cut, gone or headless all of it.

    Under a committed number it is what is not that version's: committed and not synced, the older bytes count as lost.
    So they do in the middle of a pass that repairs them.
    """
    models = [host.models[version] for version in _versions_known(host)]
    spoilt = 0
    for shard in sorted(host.base.glob("*.safetensors")):
        header, data = toolkit.split_shard(shard)
        content = shard.read_bytes()
        begins = len(content) - len(data)
        try:
            held = (host.local / shard.name).read_bytes()
        except FileNotFoundError:
            held = b""
        whole = len(held) == len(content) and held[:begins] == content[:begins]
        for name, spec in header.items():
            if name == "__metadata__":
                continue
            begin, end = (begins + offset for offset in spec["data_offsets"])
            if not whole or all(held[begin:end] != model[name].data for model in models):
                spoilt += end - begin
    return spoilt
