"""The loop of `watch`, in a thread of the test: when it makes a pass and when it does not, what it does not retry."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import RunningDaemon, running, settings_for, small_host
from tests.host import Host, flip_byte
from vime_sync import errors
from vime_sync.daemon import loop as loop_module
from vime_sync.daemon import policy, unready
from vime_sync.errors import SyncError
from vime_sync.local.lock import hold
from vime_sync.local.paths import local_paths
from vime_sync.plan import Result
from vime_sync.reconcile.glance import Glance, take_glance


def spoil(directory: Path) -> None:
    """One bit of a published delta: every header still fits, the bytes do not."""
    shard = next(directory.glob("*.safetensors"))
    toolkit.rewrite_shard(shard, lambda header, data: data.__setitem__(len(data) - 1, data[-1] ^ 1))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


def no_more_passes(daemon: RunningDaemon, looks: int = 30) -> None:
    """It goes on looking, and finds nothing to do."""
    daemon.wait_for_looks(2)
    passes = len(daemon.passes)
    daemon.wait_for_looks(looks)
    assert len(daemon.passes) == passes, daemon.passes[passes:]


# ---- a glance


def test_a_glance_at_an_untouched_host_is_always_the_same(host: Host) -> None:
    host.publish()
    host.pulled()
    paths = local_paths(host.local)
    first = take_glance(paths, host.shared, host.base, 1, None)
    toolkit.read_checkpoint(host.local)
    toolkit.read_checkpoint(host.base)
    for path in host.shared.rglob("*.safetensors"):
        path.read_bytes()
    (host.local / "of the user.txt").write_text("mine")
    assert take_glance(paths, host.shared, host.base, 1, None) == first
    assert first.versions == (1,)


@pytest.mark.parametrize(
    "change",
    [
        lambda host: host.publish(),
        lambda host: toolkit.version_path(host.shared, 7).mkdir(),
        lambda host: (toolkit.version_path(host.shared, 1) / "late.safetensors").write_bytes(b""),
        lambda host: toolkit.rewrite_index(toolkit.version_path(host.shared, 1), lambda index: None),
        lambda host: shutil.rmtree(toolkit.version_path(host.shared, 1)),
        lambda host: host.shared.rename(host.root / "gone"),
        lambda host: (host.local / ".weight_sync" / "state.json").unlink(),
        lambda host: (host.base / "new.txt").write_text("new"),
        lambda host: shutil.rmtree(host.base),
    ],
    ids=["version", "empty-version", "shard", "index", "removed", "unmounted", "state", "base", "no-base"],
)
def test_a_glance_differs_where_a_pass_may_find_something(host: Host, change: Callable[[Host], object]) -> None:
    host.publish()
    host.pulled()
    paths = local_paths(host.local)
    before = take_glance(paths, host.shared, host.base, 1, None)
    change(host)
    assert take_glance(paths, host.shared, host.base, 1, None) != before


def test_a_share_that_is_empty_is_told_from_one_that_is_away(host: Host) -> None:
    paths = local_paths(host.local)
    empty = take_glance(paths, host.shared, host.base, 0, None)
    away = take_glance(paths, host.root / "away", host.base, 0, None)
    assert empty == Glance((), (), None, empty.base) and away.versions is None


def test_a_glance_never_raises(host: Host) -> None:
    (host.root / "file").write_text("no directory")
    loop = host.root / "loop"
    loop.symlink_to(loop)
    for share in (None, host.root / "file", loop, host.root / "absent"):
        take_glance(local_paths(host.root / "file"), share, loop, 0, 3)


# ---- passes, and none for ever


def test_a_pass_of_ours_is_no_reason_for_another(host: Host) -> None:
    """Its own record, what it synced behind the loop and what it read are nothing new."""
    with running(host) as daemon:
        for version in range(1, 4):
            host.publish()
            daemon.wait_for_version(version)
        no_more_passes(daemon)
        # At most one more for each: what may have come while it was at it.
        assert len(daemon.passes) <= 8
    host.expect_local(3)


def test_nothing_to_do_costs_no_pass_and_no_busy_loop(host: Host) -> None:
    host.publish()
    with running(host, poll_interval_s=30) as daemon:
        daemon.wait_for_version(1)
        daemon.wait_for(lambda: daemon.teller.board.snapshot.document.get("durable"), "the sync")
        looks = len(daemon.looks)
        daemon.wake.poke()
        daemon.wait_for(lambda: len(daemon.looks) > looks, "one look")
        daemon.wake.poke()
        daemon.wait_for(lambda: len(daemon.looks) > looks + 1, "another look")
        assert len(daemon.looks) == looks + 2
        assert len(daemon.passes) <= 2


@pytest.mark.parametrize("state", ["empty share", "pinned", "unready", "bad", "malformed"])
def test_no_state_of_rest_makes_passes(host: Host, state: str) -> None:
    version: int | None = None
    if state == "pinned":
        host.publish()
        host.publish()
        version = 1
    elif state == "unready":
        host.publish()
        (toolkit.version_path(host.shared, 2)).mkdir()
    elif state == "bad":
        spoil(host.publish())
    elif state == "malformed":
        host.publish()
        toolkit.rewrite_index(host.publish(), lambda index: index["metadata"].update(version="000009"))
    with running(host, version=version) as daemon:
        daemon.wait_for(lambda: daemon.passes, "a pass")
        daemon.wait_for_looks(10)
        no_more_passes(daemon)


def test_v06_five_versions_at_once_are_one_pass(host: Host) -> None:
    with running(host) as daemon:
        daemon.wait_for_version(0)
        hidden = host.root / "hidden"
        host.shared.rename(hidden)
        daemon.wait_for_error("share_unreachable")
        published = Host(host.root / "trainer", host.models)
        shutil.copytree(hidden, published.shared)
        for _ in range(5):
            published.publish()
        published.shared.rename(host.shared)
        report = daemon.wait_for_version(5)
        assert (report.from_version, report.result) == (0, Result.UPDATED)
        assert not [item for item in daemon.reports if 0 < item.version < 5]
    host.expect_local(5)


def test_v07_a_version_that_comes_during_a_pass_is_taken_at_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing wakes the loop any more: it looks once more by itself."""
    real = loop_module.reconcile

    def slow(*arguments: object, **named: object) -> object:
        report = real(*arguments, **named)  # type: ignore[arg-type]
        if report.version == 1:
            host.publish()
        return report

    monkeypatch.setattr(loop_module, "reconcile", slow)
    monkeypatch.setattr(loop_module.Hints, "follow", lambda self, share: None)
    host.publish()
    with running(host, poll_interval_s=3600) as daemon:
        daemon.wait_for_version(2)


def test_a_heartbeat_finds_rot_that_no_stat_tells_of(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is looked at every second changes: the heartbeat takes the stats of every local file."""
    monkeypatch.setattr(policy, "HEARTBEAT_S", 0.2)
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        flip_byte(host.local, "lm_head.weight")
        daemon.wait_for(lambda: any(item.tensors_repaired for item in daemon.reports), "a repair")
        daemon.wait_for_looks(2)
        assert daemon.teller.board.snapshot.document["state"] == "ready"
    host.expect_local(1)


def test_what_verify_marked_is_mended_at_once(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        daemon.wait_for(lambda: daemon.teller.board.snapshot.document.get("durable"), "the sync")
        flip_byte(host.local, "lm_head.weight")
        assert toolkit.vime("verify", "--local", host.local).code == 22
        daemon.wait_for(lambda: any(item.tensors_repaired for item in daemon.reports), "a repair")
    host.expect_local(1)


def test_local_removed_while_it_runs_is_seeded_again(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        daemon.wait_for(lambda: daemon.teller.board.snapshot.document.get("durable"), "the sync")
        shutil.rmtree(host.local)
        daemon.wait_for(lambda: len([item for item in daemon.reports if item.seeded_from == 0]) >= 2, "a new seed")
    host.expect_local(1)


# ---- bad versions


def test_a_bad_version_is_tried_once_and_the_old_one_stays(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        spoil(host.publish())
        problem = daemon.wait_for_error("checksum_mismatch")
        assert problem.version == 2
        no_more_passes(daemon)
        mismatches = [item for item in daemon.errors if item.id == "checksum_mismatch"]
        assert len(mismatches) == 1, mismatches
        host.expect_local(1)


def test_s18_a_bad_version_that_is_republished_is_taken(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        spoil(host.publish())
        daemon.wait_for_error("checksum_mismatch")
        toolkit.publish_delta(host.shared, 2, host.models[1], host.models[2])
        daemon.wait_for_version(2)
        daemon.wait_for(lambda: daemon.teller.trouble is None, "no trouble any more")
        assert daemon.messages("passes go well again") or daemon.messages("version 2", "updated")
    host.expect_local(2)


def test_below_a_bad_version_the_good_ones_are_served(host: Host) -> None:
    """Three versions wait, the newest is bad: not to be had at all is worse than one below."""
    for _ in range(2):
        host.publish()
    spoil(host.publish())
    with running(host) as daemon:
        problem = daemon.wait_for_error("checksum_mismatch")
        assert problem.version == 3
        daemon.wait_for_version(2)
        no_more_passes(daemon)
        assert daemon.teller.trouble is not None and daemon.teller.trouble.id == "checksum_mismatch"
    host.expect_local(2)


def test_below_a_bad_version_in_the_middle_too(host: Host) -> None:
    """Deltas above it build on it and are of no use: the one below is the best that can be had."""
    host.publish()
    spoil(host.publish())
    host.publish()
    with running(host) as daemon:
        problem = daemon.wait_for_error("checksum_mismatch")
        assert problem.version == 2
        daemon.wait_for_version(1)
        no_more_passes(daemon)
    host.expect_local(1)


def test_a_full_version_above_a_bad_delta_leads_on(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        spoil(host.publish())
        daemon.wait_for_error("checksum_mismatch")
        host.publish_full()
        daemon.wait_for_version(3)
        no_more_passes(daemon)
    host.expect_local(3)


def test_rot_heals_also_while_the_newest_version_is_bad(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad publication may last for days; this host's own bytes are looked after all the same."""
    monkeypatch.setattr(policy, "HEARTBEAT_S", 0.2)
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        spoil(host.publish())
        daemon.wait_for_error("checksum_mismatch")
        daemon.wait_for_looks(3)
        flip_byte(host.local, "lm_head.weight")
        daemon.wait_for(lambda: any(item.tensors_repaired for item in daemon.reports), "a repair")
    host.expect_local(1)


# ---- not ready


def test_not_ready_and_then_ready(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        directory = host.publish()
        index = directory / toolkit.INDEX_NAME
        content = index.read_bytes()
        index.unlink()
        daemon.wait_for_looks(5)
        no_more_passes(daemon, 10)
        assert daemon.reports[-1].version in (1, 2)
        index.write_bytes(content)
        daemon.wait_for_version(2)
    host.expect_local(2)


def stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes are over at the next pass, and passes come often."""
    monkeypatch.setattr(unready, "STALLED_S", 0.3)
    monkeypatch.setattr(policy, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(policy, "_BACK_OFF_CAP_S", 0.1)
    monkeypatch.setattr(policy, "_BACK_OFF_S", 0.05)


def test_s04_a_version_that_is_never_finished_is_malformed_in_the_end(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall(monkeypatch)
    host.publish()
    directory = host.publish()
    shard = next(directory.glob("*.safetensors"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-3])
    with running(host) as daemon:
        daemon.wait_for_version(1)
        assert daemon.wait_for(lambda: daemon.messages("skipped", "not complete"), "not ready first")
        daemon.wait_for(lambda: daemon.messages("unchanged for"), "malformed in the end")
        assert daemon.teller.trouble is not None and daemon.teller.trouble.id == "malformed"
        # Its writer was only slow: it is taken all the same.
        shard.write_bytes(whole)
        daemon.wait_for_version(2)
    host.expect_local(2)


def test_s04_where_there_is_nothing_else_it_is_the_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned version that is cut: first waited for, then the publisher's fault, and not looked at again."""
    stall(monkeypatch)
    shard = next(host.publish().glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-3])
    with running(host, version=1) as daemon:
        daemon.wait_for_error("not_ready")
        assert daemon.wait_for_error("malformed").version == 1
        no_more_passes(daemon)


# ---- targets


def test_a_pinned_version_stays(host: Host) -> None:
    for _ in range(2):
        host.publish()
    with running(host, version=1) as daemon:
        daemon.wait_for_version(1)
        host.publish()
        daemon.wait_for_looks(5)
        assert {item.version for item in daemon.reports} == {1}
        no_more_passes(daemon)
    host.expect_local(1)


def test_pinned_below_is_a_rollback_and_latest_leads_up_again(host: Host) -> None:
    for _ in range(3):
        host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(3)
        daemon.use(settings_for(host, version=1))
        report = daemon.wait_for_version(1)
        assert report.result is Result.ROLLED_BACK
        no_more_passes(daemon)
        host.expect_local(1)
        seen = len(daemon.passes)
        daemon.use(settings_for(host))
        daemon.wait_for(lambda: [item.version for item in daemon.reports[seen:] if item.version == 3], "up again")
    host.expect_local(3)


def test_a_pinned_version_that_is_still_to_come(host: Host) -> None:
    host.publish()
    with running(host, version=2) as daemon:
        daemon.wait_for_error("version_missing")
        host.publish()
        daemon.wait_for_version(2)


# ---- a new stream


def restart_trainer(host: Host) -> Host:
    """The stream is emptied and begun again from the base; returns it with what its versions are."""
    for directory in host.shared.iterdir():
        shutil.rmtree(directory)
    fresh = Host(host.root, {0: host.models[0]})
    fresh.models[1] = toolkit.step(host.models[0], 99)
    toolkit.publish_delta(host.shared, 1, host.models[0], fresh.models[1])
    return fresh


def test_v02_a_trainer_that_began_anew_is_followed(host: Host) -> None:
    for _ in range(3):
        host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(3)
        fresh = restart_trainer(host)
        report = daemon.wait_for_version(1)
        assert report.new_stream
        no_more_passes(daemon)
    fresh.expect_local(1)


def test_v03_the_same_number_of_another_stream_too(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        fresh = restart_trainer(host)
        daemon.wait_for(lambda: any(item.new_stream for item in daemon.reports), "the new stream")
        no_more_passes(daemon)
    fresh.expect_local(1)


def test_on_new_stream_fail_ends_it_and_changes_nothing(host: Host) -> None:
    for _ in range(2):
        host.publish()
    with running(host, refuse_new_stream=True) as daemon:
        daemon.wait_for_version(2)
        restart_trainer(host)
        problem = daemon.ended()
        assert (problem.code, problem.id) == (13, "new_stream")
    host.expect_local(2)


# ---- the share


def test_a_share_that_goes_and_comes_back(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        away = host.root / "away"
        host.shared.rename(away)
        daemon.wait_for_error("share_unreachable")
        daemon.wait_for_looks(5)
        assert len(daemon.errors) <= 2, "it does not wait between its tries"
        away.rename(host.shared)
        host.publish()
        daemon.wait_for_version(2)
        assert daemon.messages("passes go well again")


def test_s16_an_empty_share_in_its_place_resets_nothing(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        away = host.root / "away"
        host.shared.rename(away)
        host.shared.mkdir()
        daemon.wait_for_error("share_unreachable")
        host.expect_local(1)
        host.shared.rmdir()
        away.rename(host.shared)
        daemon.wait_for(lambda: daemon.messages("passes go well again"), "all well again")
    host.expect_local(1)


def test_damage_while_the_share_is_away_does_not_end_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to heal is only out of reach for now: that is to wait, not to give up for good (22)."""
    monkeypatch.setattr(policy, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(policy, "_BACK_OFF_CAP_S", 0.1)
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        away = host.root / "away"
        host.shared.rename(away)
        daemon.wait_for_error("share_unreachable")
        flip_byte(host.local, "lm_head.weight")
        daemon.wait_for(lambda: len(daemon.errors) >= 3, "more tries")
        away.rename(host.shared)
        daemon.wait_for(lambda: any(item.tensors_repaired for item in daemon.reports), "a repair")
    host.expect_local(1)


# ---- what ends it


@pytest.mark.parametrize(
    ("spoiled", "code"),
    [
        (lambda host: {"share": host.local / "inside"}, 2),
        (lambda host: (host.local.mkdir(), (host.local / "mine.txt").write_text("mine")) and {}, 23),
        (lambda host: host.local.write_text("a file") and {}, None),
    ],
    ids=["nested", "not-ours", "a-file"],
)
def test_what_only_an_operator_can_mend_ends_it(
    host: Host, spoiled: Callable[[Host], dict[str, object]], code: int | None
) -> None:
    with running(host, **spoiled(host)) as daemon:
        problem = daemon.ended()
        assert problem.code == code if code is not None else problem.code in (2, 21, 23)


def test_all_else_is_tried_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in its turn, and the daemon goes on."""
    monkeypatch.setattr(policy, "_BACK_OFF_S", 0.01)
    trouble: list[SyncError] = [errors.LockHeld("l"), errors.NotReady("n"), errors.StreamChanged("s", version=1)]
    real = loop_module.reconcile

    def troubled(*arguments: object, **named: object) -> object:
        if trouble:
            raise trouble.pop()
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(loop_module, "reconcile", troubled)
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        assert len(daemon.errors) == 3


# ---- others on the same LOCAL


def test_h12_a_lock_that_is_held_for_a_while(host: Host) -> None:
    host.publish()
    with running(host) as daemon:
        daemon.wait_for_version(1)
        with hold(local_paths(host.local), wait_s=60, check_stop=lambda: None):
            host.publish()
            assert "held by" in daemon.wait_for_error("lock_held").message
            daemon.wait_for_looks(10)
            assert len(daemon.errors) < 10, "it does not wait between its tries"
        daemon.wait_for_version(2)
    host.expect_local(2)
