"""FIELD_GUIDE V2, V3, V9, V10: restarted trainers, and a share that shows less than before."""

import os
import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything, names_version
from tests.kill_points import no_disk_waits
from tests.toolkit import Model


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path)


def _publish(host: Host, *encodings: str) -> None:
    for encoding in encodings:
        if encoding == "full":
            host.publish_full()
        else:
            host.publish(encoding=encoding)


def _restart(
    host: Host, versions: int, *, run: int = 1, same_up_to: int = 0, encoding: str = "xor"
) -> dict[int, Model]:
    """The trainer begins again at `same_up_to` + 1 with other steps; returns what was true before."""
    before = dict(host.models)
    for number in [number for number in host.models if number > same_up_to]:
        del host.models[number]
        shutil.rmtree(toolkit.version_path(host.shared, number), ignore_errors=True)
    for number in range(same_up_to + 1, versions + 1):
        old = host.models[number - 1]
        host.models[number] = toolkit.step(old, 1000 * run + number)
        toolkit.publish_delta(host.shared, number, old, host.models[number], encoding=encoding)
    return before


# ---- V2: the stream was emptied and begun again at 1 while local is at 7


@pytest.mark.parametrize("versions", [1, 3, 7, 9])
def test_v02_a_restarted_stream_is_another_stream(versions: int, host: Host) -> None:
    _publish(host, *["xor"] * 7)
    host.pulled()
    before = _restart(host, versions)

    document = host.pulled()

    assert (document["result"], document["version"], document["new_stream"]) == ("updated", versions, True)
    assert (document["from_version"], document["seeded_from"]) == (7, 0)
    host.expect_local(versions)
    assert host.models[versions] != before.get(versions)
    again = host.pulled()
    assert (again["result"], again["new_stream"]) == ("already_current", False)
    host.publish()
    assert host.pulled()["seeded_from"] is None
    host.expect_local(versions + 1)


def test_v02_a_restart_is_seen_when_an_exact_version_is_asked_for(host: Host) -> None:
    _publish(host, *["xor"] * 3)
    host.pulled()
    _restart(host, 2)
    document = host.pulled(version=1)
    assert (document["result"], document["version"], document["new_stream"]) == ("updated", 1, True)
    host.expect_local(1)


def test_v02_a_stream_begun_again_with_a_full_version(host: Host) -> None:
    _publish(host, "xor", "xor")
    host.pulled()
    _restart(host, 0)
    host.models[1] = toolkit.step(host.models[0], 77)
    toolkit.publish_full(host.shared, 1, host.models[1], shards=3)
    document = host.pulled()
    assert (document["version"], document["new_stream"], document["seeded_from"]) == (1, True, 1)
    host.expect_local(1)


def test_v02_a_restarted_stream_that_is_not_ready_yet_changes_nothing(host: Host) -> None:
    """Its first version is still being written: 10, and the old bytes stay whole."""
    _publish(host, "xor", "xor")
    host.pulled()
    before = _restart(host, 1)
    (toolkit.version_path(host.shared, 1) / toolkit.INDEX_NAME).unlink()
    local = toolkit.snapshot(host.local)

    result = host.pull()

    assert result.code in (0, 10), result.stderr
    assert result.code == 10 or result.document["version"] == 2
    assert toolkit.snapshot(host.local) == local
    host.models.update(before)
    host.expect_local(2)


def test_v02_without_a_base_a_restarted_stream_of_deltas_is_refused_and_the_old_stays(host: Host) -> None:
    _publish(host, "full", "xor")
    assert toolkit.pull(host.shared, host.local).code == 0
    before = _restart(host, 1)
    local = everything(host.local)
    result = toolkit.pull(host.shared, host.local)
    assert result.code in (2, 13), result.stderr
    assert everything(host.local).keys() >= local.keys()
    host.models.update(before)
    host.expect_local(2)


# ---- V3: restarted under the same numbers while we are between polls


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("versions", [3, 5])
def test_v03_the_same_numbers_with_other_contents_are_another_stream(versions: int, encoding: str, host: Host) -> None:
    _publish(host, *[encoding] * 3)
    host.pulled()
    _restart(host, versions, encoding=encoding)

    document = host.pulled()

    assert (document["result"], document["version"], document["new_stream"]) == ("updated", versions, True)
    host.expect_local(versions)


def test_v03_a_trainer_resumed_in_the_middle(host: Host) -> None:
    """Version 1 is the same, 2 and 3 are not: whichever way it goes, it says so and ends right."""
    _publish(host, "xor", "xor", "xor")
    host.pulled()
    _restart(host, 4, same_up_to=1)
    document = host.pulled()
    assert (document["result"], document["version"], document["new_stream"]) == ("updated", 4, True)
    host.expect_local(4)


def test_v03_restarted_twice_between_two_looks(host: Host) -> None:
    _publish(host, "xor", "xor")
    host.pulled()
    _restart(host, 2, run=1)
    _restart(host, 2, run=2)
    assert host.pulled()["new_stream"] is True
    host.expect_local(2)
    _restart(host, 2, run=1)
    assert host.pulled()["new_stream"] is True
    host.expect_local(2)


# ---- V9: a full-only trainer restarts and reaches the same number with the same names and shapes


def _full_run(host: Host, versions: int, run: int) -> None:
    for number in range(1, versions + 1):
        host.models[number] = toolkit.step(host.models[number - 1], 1000 * run + number)
        toolkit.publish_full(host.shared, number, host.models[number])


def test_v09_a_full_only_stream_restarted_to_the_same_number_is_another(host: Host) -> None:
    _full_run(host, 3, run=1)
    host.pulled()
    host.expect_local(3)
    _full_run(host, 3, run=2)

    document = host.pulled()

    assert (document["result"], document["version"], document["new_stream"]) == ("updated", 3, True)
    assert document["seeded_from"] == 3
    host.expect_local(3)
    assert host.pulled()["result"] == "already_current"


def test_v09_also_when_only_the_newest_is_kept_on_the_share(host: Host) -> None:
    _full_run(host, 3, run=1)
    for number in (1, 2):
        shutil.rmtree(toolkit.version_path(host.shared, number))
    host.pulled()
    _full_run(host, 3, run=2)
    for number in (1, 2):
        shutil.rmtree(toolkit.version_path(host.shared, number))
    assert host.pulled()["new_stream"] is True
    host.expect_local(3)


@pytest.mark.parametrize("single", [False, True])
def test_v09_same_names_sizes_and_times_are_told_apart_by_content(single: bool, host: Host) -> None:
    """The identity of a full version is its files' stats; equal size and mtime do not make other bytes the same."""
    host.models[1] = toolkit.step(host.models[0], 1)
    shards, index = (1, False) if single else (2, True)
    directory = toolkit.publish_full(host.shared, 1, host.models[1], shards=shards, index=index)
    times = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    host.pulled()
    host.models[1] = toolkit.step(host.models[0], 2)
    toolkit.publish_full(host.shared, 1, host.models[1], shards=shards, index=index)
    for path in directory.iterdir():
        os.utime(path, ns=(times[path.name], times[path.name]))

    document = host.pulled()

    assert (document["result"], document["version"], document["new_stream"]) == ("updated", 1, True)
    host.expect_local(1)


def test_v09_the_same_bytes_with_other_times_are_the_same_stream(host: Host) -> None:
    """A full version that was copied or touched: changed stats are hashed before they are believed."""
    _full_run(host, 1, run=1)
    host.publish()
    host.pulled()
    directory = toolkit.version_path(host.shared, 1)
    shutil.copytree(directory, host.root / "copy")
    shutil.rmtree(directory)
    shutil.copytree(host.root / "copy", directory, copy_function=shutil.copyfile)
    before = _inodes(host.local)

    document = host.pulled()

    assert (document["result"], document["version"], document["new_stream"]) == ("already_current", 2, False)
    assert document["bytes_written"] == 0
    assert _inodes(host.local) == before
    host.publish()
    assert host.pulled()["seeded_from"] is None
    host.expect_local(3)


def _inodes(local: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in local.glob("*.safetensors")}


# ---- V10: a remount shows only v1..v5 while local is at v7 of the same stream


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_v10_a_share_that_shows_less_takes_nothing_back(encoding: str, host: Host) -> None:
    _publish(host, *[encoding] * 7)
    host.pulled()
    kept = host.root / "kept"
    kept.mkdir()
    for number in (6, 7):
        toolkit.version_path(host.shared, number).rename(kept / str(number))
    before = toolkit.snapshot(host.local)

    result = host.pull()

    assert result.code == 0, result.stderr
    document = result.document
    assert (document["result"], document["version"], document["new_stream"]) == ("already_current", 7, False)
    assert document["bytes_written"] == 0
    assert names_version(result.stderr, 7) and names_version(result.stderr, 5), result.stderr
    assert toolkit.snapshot(host.local) == before

    for number in (6, 7):
        (kept / str(number)).rename(toolkit.version_path(host.shared, number))
    host.publish()
    document = host.pulled()
    assert (document["version"], document["seeded_from"], document["new_stream"]) == (8, None, False)
    host.expect_local(8)


def test_v10_a_remount_with_other_stats_is_the_same_stream(host: Host) -> None:
    """Another client of the share sees other inodes and times: identity is content."""
    _publish(host, *["xor"] * 7)
    host.pulled()
    remount = host.root / "remount"
    shutil.copytree(host.shared, remount, copy_function=shutil.copyfile)
    for number in (6, 7):
        shutil.rmtree(toolkit.version_path(remount, number))

    result = toolkit.pull(remount, host.local, base=host.base)

    assert (result.code, result.document.get("version"), result.document.get("new_stream")) == (0, 7, False)
    host.expect_local(7)


def test_v10_an_explicit_version_that_is_not_shown_is_missing(host: Host) -> None:
    _publish(host, *["xor"] * 7)
    host.pulled()
    shutil.rmtree(toolkit.version_path(host.shared, 6))
    assert host.pull(version=6).code == 10
    host.expect_local(7)
