"""`prune` beside trainers, readers, another prune, and kills: no half version, and the next one ends what is left."""

import errno
import os
import shutil
import signal
from pathlib import Path
from unittest import mock

import pytest

from tests import toolkit
from tests.host import Host, expect_error, flip_byte
from tests.kill_points import count_operations, kill, observing, operations
from tests.prune_story import create, prune, pruned, published, pull_fresh
from tests.toolkit import vime


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return create(tmp_path)


def test_a_trainer_that_begins_anew_in_the_middle_stops_it(host: Host) -> None:
    """It has written another version 2 under the name of one that was to go."""

    def begin_anew(operation: str, path: Path) -> None:
        if operation == "rename" and path.name == ".pruned-weight_v000002":
            toolkit.publish_full(host.shared, 2, host.models[8])

    with observing(begin_anew):
        error = expect_error(prune(host, 1), 10, "stream_changed")
    assert "version 2" in error["message"]
    assert published(host) == [2, 3, 4, 5, 6, 7, 8]
    assert toolkit.read_checkpoint(toolkit.version_path(host.shared, 2)) == host.models[8]


def test_nothing_goes_once_the_version_that_all_build_on_has_gone(host: Host) -> None:
    def take_away(operation: str, path: Path) -> None:
        if operation == "remove_tree" and path.name == ".pruned-weight_v000002" and path.exists():
            shutil.rmtree(toolkit.version_path(host.shared, 7))

    with observing(take_away):
        assert "version 7" in expect_error(prune(host, 1), 10, "stream_changed")["message"]
    assert published(host) == [3, 4, 5, 6, 8]


def test_a_signal_stops_it_between_two_versions(host: Host) -> None:
    def signalled(operation: str, path: Path) -> None:
        if operation == "rename" and path.name == ".pruned-weight_v000002":
            os.kill(os.getpid(), signal.SIGTERM)

    with observing(signalled):
        expect_error(prune(host, 1), 128 + signal.SIGTERM, "interrupted")
    assert published(host) == [3, 4, 5, 6, 7, 8]
    assert not list(host.shared.glob(".pruned-*"))
    assert pruned(host, 1) == [3, 4, 5, 6]


def test_a_version_that_somebody_else_removed_is_no_stumbling_block(host: Host) -> None:
    """Somebody takes version 3 away by hand just before this one comes to it."""

    def other(operation: str, path: Path) -> None:
        if operation == "remove_tree" and path.name == ".pruned-weight_v000002":
            shutil.rmtree(toolkit.version_path(host.shared, 3), ignore_errors=True)

    with observing(other):
        assert prune(host, 1).code == 0
    assert published(host) == [7, 8]


def test_a_version_still_open_elsewhere_is_removed_by_the_next_prune(host: Host) -> None:
    def busy(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY if path.exists() else errno.ENOENT, "not now", str(path))

    with mock.patch("vime_sync.fsio.shutil.rmtree", busy):
        result = prune(host, 3)
    assert (result.code, result.document["removed"]) == (0, [1, 2, 3])
    assert "the next prune removes it" in result.stderr
    assert prune(host, 3).document["left_by_kills"] == 3
    assert not list(host.shared.glob(".pruned-*"))


def test_killed_at_any_point_it_leaves_whole_versions_and_the_next_one_ends_it(host: Host, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(host.shared, kept)
    steps = count_operations(lambda: prune(host, 1))
    assert steps >= 3 + 6 * 3  # the lock; and each version: rename, sync, remove
    for at in range(steps):
        shutil.rmtree(host.shared)
        shutil.copytree(kept, host.shared)
        kill(lambda: prune(host, 1), at)
        left = published(host)
        assert left == list(range(left[0], 9))  # the oldest went first
        for version in left:
            found = vime("inspect", toolkit.version_path(host.shared, version))
            assert found.code == 0, (at, found.stderr)
        assert prune(host, 1).code == 0
        assert published(host) == [7, 8]
        assert not list(host.shared.glob(".pruned-*"))


def test_killed_in_the_middle_of_a_tree_it_is_no_half_version(host: Host) -> None:
    """The files go one by one: a real kill can come between two of them."""
    removed = toolkit.version_path(host.shared, 1)
    kill(lambda: prune(host, 1), 0, operations("remove_tree", ".pruned-weight_v000001"))
    aside = host.shared / ".pruned-weight_v000001"
    assert aside.is_dir() and not removed.exists()
    next(aside.iterdir()).unlink()
    document = vime("inspect", host.shared).document
    assert [version["version"] for version in document["versions"]] == [2, 3, 4, 5, 6, 7, 8]
    pull_fresh(host, "fresh")
    assert prune(host, 1, "--dry-run").document["left_by_kills"] == 1
    assert aside.exists()
    assert prune(host, 1).document["left_by_kills"] == 1
    assert not aside.exists()


def test_a_pull_whose_deltas_are_pruned_under_it_takes_another_way(host: Host) -> None:
    """It was at 5 and on its way over 6: afterwards there is only 7 and what follows (FIELD_GUIDE S15)."""
    host.pulled(version=5)
    done: list[int] = []

    def meanwhile(operation: str, path: Path) -> None:
        if operation == "unlink" and path.name == "state.json" and not done:
            done.append(1)
            with observing(lambda operation, path: None):
                assert prune(host, 1).code == 0

    with observing(meanwhile):
        assert host.pulled()["version"] == 8
    host.expect_local(8)
    assert done and published(host) == [7, 8]


def test_a_host_mends_itself_after_a_prune(host: Host) -> None:
    """Rot in a tensor, and the anchor that the host came from is gone: the full version above it does."""
    host.pulled(version=8)
    pruned(host, 1)
    flip_byte(host.local, "one")
    assert vime("verify", "--local", host.local).code == 22
    assert host.pulled()["tensors_repaired"] == 1
    host.expect_local(8)
