"""Which version the loop of `watch` goes to: bad, unready and pinned ones, new streams, shares that go and come."""

import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import no_more_passes, running, settings_for, small_host, spoil
from tests.host import Host, flip_byte
from vime_sync.daemon import policy, unready
from vime_sync.plan import Result


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


# ---- bad versions


def test_a_bad_version_is_tried_once_and_the_old_one_stays(host: Host) -> None:
    host.publish()
    spoil(host.publish())  # before it is looked at: files that change after the look are rightly tried again
    with running(host) as daemon:
        problem = daemon.wait_for_error("checksum_mismatch")
        assert problem.version == 2
        daemon.wait_for_version(1)
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


def stall(monkeypatch: pytest.MonkeyPatch, *, heartbeat_s: float) -> None:
    """Ten minutes are over soon, and what is waited for is looked at often."""
    monkeypatch.setattr(unready, "STALLED_S", 0.3)
    monkeypatch.setattr(policy, "HEARTBEAT_S", heartbeat_s)
    monkeypatch.setattr(policy, "_BACK_OFF_CAP_S", 0.1)
    monkeypatch.setattr(policy, "_BACK_OFF_S", 0.05)


def test_s04_a_version_that_is_never_finished_is_malformed_in_the_end(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    stall(monkeypatch, heartbeat_s=0.1)
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
    stall(monkeypatch, heartbeat_s=60)
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
