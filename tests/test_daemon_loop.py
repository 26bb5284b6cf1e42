"""The loop of `watch`, in a thread of the test: when it makes a pass and when it does not, what it does not retry."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import no_more_passes, running, small_host, spoil
from tests.host import Host, flip_byte
from vime_sync import errors
from vime_sync.daemon import policy
from vime_sync.daemon.hints import Hints
from vime_sync.errors import SyncError
from vime_sync.local.lock import hold
from vime_sync.local.paths import local_paths
from vime_sync.plan import Result
from vime_sync.reconcile import reconcile
from vime_sync.reconcile.glance import Glance, take_glance


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


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


def test_v07_a_version_that_comes_during_a_pass_is_taken_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing wakes the loop any more: it looks once more by itself."""
    real = reconcile

    def slow(*arguments: object, **named: object) -> object:
        report = real(*arguments, **named)  # type: ignore[arg-type]
        if report.version == 1:
            host.publish()
        return report

    monkeypatch.setattr("vime_sync.daemon.loop.reconcile", slow)
    monkeypatch.setattr(Hints, "follow", lambda self, share: None)
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
        host.local.rename(host.root / "removed")
        daemon.wait_for(lambda: len([item for item in daemon.reports if item.seeded_from == 0]) >= 2, "a new seed")
    host.expect_local(1)


# ---- what ends it


def test_a_share_inside_local_ends_it(host: Host) -> None:
    with running(host, share=host.local / "inside") as daemon:
        assert daemon.ended().code == 2


def test_a_directory_of_others_ends_it(host: Host) -> None:
    host.local.mkdir()
    (host.local / "mine.txt").write_text("mine")
    with running(host) as daemon:
        assert daemon.ended().code == 23
    assert toolkit.snapshot(host.local) == {"mine.txt": ("file", b"mine")}


def test_a_file_in_the_place_of_local_ends_it(host: Host) -> None:
    host.local.write_text("a file")
    with running(host) as daemon:
        assert daemon.ended().code in (2, 21, 23)
    assert host.local.read_text() == "a file"


def test_all_else_is_tried_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in its turn, and the daemon goes on."""
    monkeypatch.setattr(policy, "_BACK_OFF_S", 0.01)
    trouble: list[SyncError] = [errors.LockHeld("l"), errors.NotReady("n"), errors.StreamChanged("s", version=1)]
    real = reconcile

    def troubled(*arguments: object, **named: object) -> object:
        if trouble:
            raise trouble.pop()
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("vime_sync.daemon.loop.reconcile", troubled)
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
