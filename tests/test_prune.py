"""`prune`: which old versions go from the share, that every host still gets where it must, and what refuses."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests import toolkit
from tests.ack_hosts import put, record
from tests.host import Host, everything, expect_error
from tests.kill_points import observing
from tests.prune_story import acked, create, prune, pruned, published, pull_fresh
from tests.toolkit import vime, vime_plain
from vime_sync import fsio


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return create(tmp_path)


@pytest.fixture
def acks(host: Host) -> Path:
    return host.root / "acks"


# ---- what goes


def test_what_nobody_needs_goes_and_everybody_still_arrives(host: Host) -> None:
    host.pulled(version=7)
    assert pruned(host, 2) == [1, 2, 3, 4, 5, 6]
    assert host.pulled()["version"] == 8
    host.expect_local(8)
    pull_fresh(host, "fresh")
    pull_fresh(host, "pinned", 7)
    assert pruned(host, 2) == []


def test_the_full_version_that_a_kept_delta_builds_on_stays(host: Host) -> None:
    assert pruned(host, 3) == [1, 2, 3]  # version 6 builds on 4
    for version in (4, 5, 6, 7, 8):
        pull_fresh(host, f"fresh{version}", version)


def test_deltas_on_the_base_all_stay(tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(kib=4))
    for _ in range(4):
        host.publish()
    document = prune(host, 1).document
    assert (document["removed"], document["anchor"], document["freed_bytes"]) == ([], 0, 0)
    assert document["reason"] == "version 4, the newest that is ready, builds on the base"
    pull_fresh(host, "fresh")


def test_a_host_that_is_behind_keeps_what_it_has_to_come_and_its_anchor(host: Host, acks: Path) -> None:
    host.pulled(version=5)
    acked(host, acks, host.local)
    put(acks, record("another", 8, first=8))
    assert pruned(host, 1, "--ack-dir", acks) == [1, 2, 3]
    toolkit.vime("pull", "--local", host.local)
    host.expect_local(8)
    acked(host, acks, host.local)
    assert pruned(host, 1, "--ack-dir", acks) == [4, 5, 6]
    pull_fresh(host, "fresh")


def test_a_host_at_the_base_keeps_everything(host: Host, acks: Path) -> None:
    put(acks, record("fresh", 0), record("new", 8, first=8))
    result = prune(host, 1, "--ack-dir", acks)
    assert (result.document["removed"], result.document["oldest_held"]) == ([], 0)
    assert "version 0, which host fresh (/nvme/ckpt) holds," in result.document["reason"]


def test_a_host_that_still_holds_the_old_run_does_not_hold_up_the_new_one(host: Host, acks: Path) -> None:
    put(acks, record("old", 2, stream="another run"))
    result = prune(host, 1, "--ack-dir", acks)
    assert result.document["removed"] == [1, 2, 3, 4, 5, 6]
    assert "host old (/nvme/ckpt) is at version 2 of another stream" in result.stderr


def test_without_acks_it_says_that_hosts_are_unknown(host: Host) -> None:
    assert "--keep alone decides" in prune(host, 1, "--dry-run").stderr


def test_what_a_trainer_is_writing_is_left_alone(host: Host) -> None:
    """Version 9 has no index yet; version 6 neither, and never will."""
    shutil.copytree(toolkit.version_path(host.shared, 8), toolkit.version_path(host.shared, 9))
    for version in (6, 9):
        (toolkit.version_path(host.shared, version) / toolkit.INDEX_NAME).unlink()
    result = prune(host, 1)
    assert (result.document["removed"], result.document["kept"]) == ([1, 2, 3, 4, 5], [6, 7, 8, 9])
    assert "version 6" in result.stderr and "it is left as it is" in result.stderr
    assert "version 9" not in result.stderr
    pull_fresh(host, "fresh")


def test_what_is_no_version_is_left_alone(host: Host) -> None:
    for name in ("weight_v1", "weight_v000001.tmp", "checkpoints", ".pruned-checkpoints", ".pruned-weight_v1"):
        (host.shared / name).mkdir()
        (host.shared / name / "mine").write_text("mine")
    (host.shared / "notes.txt").write_text("mine")
    (host.shared / ".pruned-weight_v000099").symlink_to(host.base)
    assert pruned(host, 1) == [1, 2, 3, 4, 5, 6]
    left = {path.name for path in host.shared.iterdir()}
    assert {"weight_v1", "weight_v000001.tmp", "checkpoints", ".pruned-checkpoints", "notes.txt"} <= left
    assert {".pruned-weight_v1", ".pruned-weight_v000099"} <= left
    assert len(list(host.base.iterdir())) > 3


@pytest.mark.parametrize("kind", ["file", "dangling", "link to a directory"])
def test_a_name_of_ours_that_is_taken_is_passed_over(host: Host, kind: str) -> None:
    """It is the user's, and no reason to end with 21 for ever."""
    taken = [host.shared / ".pruned-weight_v000001", host.shared / ".pruned-weight_v000001-2"]
    for path in taken:
        if kind == "file":
            path.write_text("mine")
        else:
            path.symlink_to("nowhere" if kind == "dangling" else host.base)
    before = {path: path.lstat() for path in taken}
    assert pruned(host, 1) == [1, 2, 3, 4, 5, 6]
    assert {path: path.lstat() for path in taken} == before
    assert sorted(host.shared.glob(".pruned-*")) == taken
    assert len(list(host.base.iterdir())) > 3


def test_links_are_not_followed(host: Host) -> None:
    """A version that is a link stays; of a link within a version only the link goes."""
    elsewhere = host.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    first = toolkit.version_path(host.shared, 1)
    first.rename(host.shared / "stored")
    first.symlink_to(host.shared / "stored")
    (toolkit.version_path(host.shared, 2) / "more").symlink_to(elsewhere)
    result = prune(host, 1)
    assert result.document["removed"] == [2, 3, 4, 5, 6]
    assert "is a link" in result.stderr
    assert (host.shared / "stored" / toolkit.INDEX_NAME).exists()
    assert (elsewhere / "mine").read_text() == "mine"


# ---- without an index


def test_a_version_without_an_index_is_nothing_that_others_can_build_on(host: Host) -> None:
    """To this host it is not ready, its tensors being others: what it skips it for must stay."""
    other = toolkit.make_model(9, kib=4)
    for number in (9, 10):
        toolkit.publish_full(host.shared, number, {"lora": other["one"]}, shards=1, index=False)
    result = prune(host, 1)
    assert result.document["removed"] == [1, 2, 3, 4, 5, 6]
    assert result.document["anchor"] == 7
    assert "no index in version 9-10: " in result.stderr and "it stays" in result.stderr
    pull_fresh(host, "fresh", 8)
    assert host.pulled()["version"] == 8
    host.expect_local(8)


def test_a_version_without_an_index_lets_nothing_go_and_stays_itself(tmp_path: Path) -> None:
    """To this host it is a full version; to another one it may be none."""
    host = Host.create(tmp_path, model=toolkit.make_model(kib=4))
    host.publish()
    host.publish_full()
    toolkit.publish_full(host.shared, 2, host.models[2], shards=1, index=False)
    host.publish()
    document = prune(host, 1).document
    assert (document["removed"], document["anchor"]) == ([], 0)
    assert document["reason"].endswith("builds on the base, or on a version without an index")
    host.publish_full()
    result = prune(host, 1)
    assert (result.document["removed"], result.document["kept"]) == ([1, 3], [2, 4])
    assert "no index in version 2: " in result.stderr
    pull_fresh(host, "fresh", 2)
    pull_fresh(host, "newest")


# ---- dry run, documents, words


def test_a_dry_run_says_the_same_and_changes_nothing(host: Host) -> None:
    before = everything(host.root)
    planned = prune(host, 1, "--dry-run").document
    assert everything(host.root) == before
    done = prune(host, 1).document
    assert (planned.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert planned == done
    assert done == {
        "schema": "vime-sync/prune/1",
        "removed": [1, 2, 3, 4, 5, 6],
        "kept": [7, 8],
        "anchor": 7,
        "freed_bytes": sum(len(content[1]) for name, content in before.items() if content[0] == "file" and goes(name)),
        "reason": "version 8, the newest that is ready, builds on the full version 7",
        "oldest_held": None,
        "left_by_kills": 0,
    }


def goes(name: str) -> bool:
    return any(name.startswith(f"shared/weight_v00000{version}/") for version in range(1, 7))


def test_in_words(host: Host) -> None:
    options = ("--shared", host.shared, "--keep", "2")
    planned = vime_plain("prune", *options, "--dry-run").stdout.splitlines()
    done = vime_plain("prune", *options).stdout.splitlines()
    assert planned[0].startswith("would remove 6 versions (1-6), ") and done[0].startswith("removed 6 versions (1-6), ")
    assert planned[1:] == done[1:]
    assert done[1:] == [
        "  kept: 2 (7-8)",
        "  because version 7, the oldest of the newest 2, is a full version",
    ]
    assert vime_plain("prune", *options).stdout.startswith("nothing to remove\n")
    assert vime_plain("prune", *options, "--quiet").stdout == ""


def test_in_words_where_all_build_on_the_base(tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(kib=4))
    host.publish()
    assert vime_plain("prune", "--shared", host.shared, "--keep", "1").stdout.splitlines() == [
        "nothing to remove",
        "  kept: 1 (1)",
        "  because version 1, the newest that is ready, builds on the base",
        "  a full version published now and then lets what is below it go",
    ]


def test_keep_must_be_one_at_least(host: Host) -> None:
    before = everything(host.root)
    for keep in ("0", "-1", "all"):
        expect_error(vime("prune", "--shared", host.shared, "--keep", keep), 2, "usage")
    expect_error(vime("prune", "--shared", host.shared), 2, "usage")
    expect_error(vime("prune", "--keep", "1"), 2, "usage")
    assert everything(host.root) == before


# ---- refused


def test_a_share_that_shows_nothing_is_not_pruned(host: Host, acks: Path) -> None:
    put(acks, record("a", 8, first=8))
    shutil.rmtree(host.shared)
    expect_error(prune(host, 1), 10, "share_unreachable")
    host.shared.mkdir()
    assert "looks unmounted" in expect_error(prune(host, 1, "--ack-dir", acks), 10, "share_unreachable")["message"]
    document = prune(host, 1).document
    assert (document["removed"], document["anchor"], document["reason"]) == ([], None, "there is no version")


def test_records_that_cannot_tell_refuse(host: Host, acks: Path) -> None:
    before = everything(host.shared)
    expect_error(prune(host, 1, "--ack-dir", acks), 21, "local_io")
    acks.mkdir()
    assert "no host" in expect_error(prune(host, 1, "--ack-dir", acks), 10, "share_unreachable")["message"]
    path = put(acks, record("a", 8, first=8), record("b", 8, first=8))
    path.write_bytes(path.read_bytes()[:40])
    error = expect_error(prune(host, 1, "--ack-dir", acks), 21, "local_io")
    assert str(path) in error["message"] and "nothing was removed" in error["message"]
    expect_error(prune(host, 1, "--ack-dir", path), 2, "usage")
    assert everything(host.shared) == before
    path.unlink()
    assert pruned(host, 1, "--ack-dir", acks) == [1, 2, 3, 4, 5, 6]


def test_a_version_that_cannot_be_read_may_be_needed(host: Host) -> None:
    walk = fsio.walk

    def failing(directory: Path, *, follow_links: bool, skip: frozenset[str]) -> Iterator[tuple[str, Path]]:
        if directory.name == "weight_v000003":
            raise OSError(errno.EIO, "Input/output error", str(directory))
        return walk(directory, follow_links=follow_links, skip=skip)

    with mock.patch("vime_sync.fsio.walk", failing):
        assert "version 3" in expect_error(prune(host, 1), 10, "share_unreachable")["message"]
    assert published(host) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_share_that_may_not_be_written_stops_it(host: Host) -> None:
    def refuse(operation: str, path: Path) -> None:
        if operation == "rename":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with observing(refuse):
        assert "version 1" in expect_error(prune(host, 1), 21, "local_io")["message"]
    assert published(host) == [1, 2, 3, 4, 5, 6, 7, 8]
