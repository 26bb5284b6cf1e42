"""FIELD_GUIDE H3: power lost between two versions: journal, staged files and data in any mixture of old and new."""

import json
import random
import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, flip_byte
from tests.kill_jobs import JOBS, bring_fresh, create, expect_settled, hide_touch, models, stated_version
from tests.kill_points import (
    PULL_THREADS,
    Killed,
    KillSwitch,
    count_operations,
    kill,
    kill_tearing,
    no_disk_waits,
    observing,
    reboot,
    run_until_killed,
    shard_writes,
)
from tests.kill_power import Unsynced, bring_undurable, lose_page, lose_power, overwrite

_ROUNDS = 12


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


LOSSES = (
    "journal gone", "journal empty", "journal cut", "journal zeros", "journal garbage",
    "staged gone", "staged zeros", "staged empty",
)  # fmt: skip


def _lose(sync: Path, loss: str) -> None:
    """Spoil what a pass keeps beside its intent, which itself was durable."""
    what, fate = loss.split()
    if loss == "staged gone":
        shutil.rmtree(sync / "staged")
        return
    for path in [sync / "journal"] if what == "journal" else list((sync / "staged").iterdir()):
        size = path.stat().st_size
        if fate == "gone":
            path.unlink()
        elif fate == "empty":
            path.write_bytes(b"")
        elif fate == "cut":
            path.write_bytes(path.read_bytes()[:-7])
        elif fate == "zeros":
            path.write_bytes(bytes(size))
        else:
            overwrite(path, 11, random.Random(1).randbytes(60))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["apply", "apply_overwrite", "folded", "rollback"])
def test_h03_power_lost_in_the_middle_of_an_apply(
    name: str, loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged or recorded is gone or spoilt, and a written block is what it was before the pass."""
    job = JOBS[name]
    host = create(tmp_path, job, kib=2560)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host), shard_writes(host.local))
    for point in range(total):
        monkeypatch.undo()
        no_disk_waits(monkeypatch)
        bring_fresh(host, job)
        assert kill_tearing(lambda: job.run(host), host.local, point, lambda size: size // 2)
        assert job.start is not None
        lose_page(host, next(iter(host.models[0])), ("old", "zeros", "garbage")[point % 3], job.start)
        _lose(host.local / toolkit.STATE_DIRECTORY, loss)
        reboot(monkeypatch)
        try:
            result = job.run(host)
            assert result.code == job.code, result.stderr
            expect_settled(host, job.end)
        except BaseException:
            print(f"{name}: write {point} of {total} torn, {loss}")
            raise


@pytest.mark.parametrize("finish", [1, 2])
def test_h03_tensors_that_the_interrupted_pass_does_not_mention_are_hashed_too(
    finish: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 was committed and not durable when the pass to 2 began: both passes' tensors may be torn."""
    host = Host.create(tmp_path, model=models(1536))
    first, second, *_ = host.models[0]
    host.publish(only=[first])
    host.publish(only=[second])
    host.pulled(version=0)
    bring_undurable(host, 1)

    def pull() -> toolkit.Result:
        return host.pull(*PULL_THREADS)

    assert kill_tearing(pull, host.local, 0, lambda size: size // 2)
    lose_page(host, first, "old", 0)
    reboot(monkeypatch)

    result = host.pull(version=finish)

    assert result.code == 0, result.stderr
    assert stated_version(host.local) == finish
    expect_settled(host, finish)


@pytest.mark.parametrize("again", ["delta", "full"])
@pytest.mark.parametrize("loss", ["staged gone", "staged empty", "staged zeros"])
@pytest.mark.parametrize("name", ["apply", "folded", "rollback"])
def test_h03_v03_staged_bytes_lost_and_the_trainer_begun_again(
    name: str, loss: str, again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither forward nor back is open: what lies here is looked at as if nothing were known, not 22 for ever."""
    job = JOBS[name]
    host = create(tmp_path, job)
    bring_fresh(host, job)
    assert kill_tearing(lambda: job.run(host), host.local, 1, lambda size: size // 2)
    _lose(host.local / toolkit.STATE_DIRECTORY, loss)
    reboot(monkeypatch)
    for number in range(1, max(host.models) + 1):
        shutil.rmtree(toolkit.version_path(host.shared, number))
        del host.models[number]
    host.models[1] = toolkit.step(host.models[0], 99)
    if again == "full":
        toolkit.publish_full(host.shared, 1, host.models[1])
    else:
        toolkit.publish_delta(host.shared, 1, host.models[0], host.models[1])
    host.pulled(*PULL_THREADS)
    expect_settled(host, 1)


@pytest.mark.parametrize(
    ("fate", "booted"),
    [
        ("cut", False),
        ("empty", False),
        ("gone", False),
        ("cut", True),
        ("empty", True),
        ("gone", True),
        ("headless", True),
    ],
)
@pytest.mark.parametrize("name", ["apply", "undo", "rollback", "identify"])
def test_h03_h05_a_shard_cut_or_gone_under_an_apply(
    name: str, fate: str, booted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the intent knows of the bytes is not so any more: they are looked at, and only that shard is rebuilt."""
    job = JOBS[name]
    host = create(tmp_path, job)
    bring_fresh(host, job)
    assert kill_tearing(lambda: job.run(host), host.local, 1, lambda size: size // 2)
    shard = max(host.local.glob("*.safetensors"))
    content = shard.read_bytes()
    shard.unlink()
    if fate != "gone":
        shard.write_bytes({"cut": content[:-10], "empty": b"", "headless": bytes(100) + content[100:]}[fate])
    if booted:
        reboot(monkeypatch)
    result = job.run(host)
    assert result.code == job.code, result.stderr
    expect_settled(host, job.end)


@pytest.mark.parametrize("name", JOBS)
def test_h03_power_lost_anywhere_with_any_loss(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run dies at any operation; each file that it had not synced keeps its writes or loses some or all."""
    job = JOBS[name]
    host = create(tmp_path, job, kib=2560)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    for seed in range(_ROUNDS):
        generator = random.Random(f"{name} {seed}")
        monkeypatch.undo()
        no_disk_waits(monkeypatch)
        bring_fresh(host, job)
        before = {path: path.read_bytes() for path in host.local.rglob("*") if path.is_file()}
        unsynced = Unsynced(host.local)
        switch = KillSwitch(generator.randrange(total), also=unsynced)
        run_until_killed(lambda: job.run(host), switch)
        done = lose_power(generator, unsynced, before)
        reboot(monkeypatch)
        try:
            result = job.run(host)
            assert result.code == job.code, result.stderr
            assert stated_version(host.local) == job.end
            expect_settled(host, job.end)
        except BaseException:
            print(f"{name}, round {seed}: died before operation {switch.at} of {total}; {'; '.join(done) or 'no loss'}")
            raise


@pytest.mark.parametrize("name", ["apply", "replacement"])
def test_h03_a_run_killed_right_after_recovery_leaves_no_trust_in_what_it_did_not_hash(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power is lost in mid-pass; the recovery commits, and dies before it has hashed what the pass did not touch."""
    job = JOBS[name]
    host = create(tmp_path, job)
    bring_fresh(host, job)

    def under_way(operation: str, path: Path) -> bool:
        return operation in ("write", "rename") and path.suffix == ".safetensors" and path.parent == host.local

    kill(lambda: job.run(host), 0, under_way)
    reboot(monkeypatch)

    committed = False

    def die_after_the_state(operation: str, path: Path) -> None:
        nonlocal committed
        if committed:
            raise Killed
        committed = operation == "rename" and path.name == "state.json"

    with observing(die_after_the_state), pytest.raises(Killed):
        job.run(host)
    state = json.loads((host.local / toolkit.STATE_DIRECTORY / "state.json").read_bytes())
    assert state["vime_sync"]["durable"] is False
    flip_byte(host.local, "lm_head.weight")
    hide_touch(host.local, *(path.name for path in host.local.glob("*.safetensors")))
    result = job.run(host)
    assert result.code == job.code, result.stderr
    expect_settled(host, job.end)
