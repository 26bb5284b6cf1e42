"""FIELD_GUIDE, versions and runs: gaps, names, several versions at once, shares that come and go."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error, names_version


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path)


def _prune(host: Host, *versions: int) -> None:
    for version in versions:
        shutil.rmtree(toolkit.version_path(host.shared, version))


# ---- V4: old deltas pruned, a full version above the gap


def test_v04_a_full_version_above_the_gap_carries_an_old_host_over_it(host: Host) -> None:
    host.publish()
    host.pulled()
    host.publish()
    host.publish()
    host.publish_full()
    host.publish()
    _prune(host, 1, 2, 3)

    document = host.pulled()

    assert (document["result"], document["version"], document["from_version"]) == ("updated", 5, 1)
    assert document["seeded_from"] == 4
    assert document["new_stream"] is False
    host.expect_local(5)


def test_v04_a_fresh_host_seeds_from_the_full_version_too(host: Host) -> None:
    host.publish()
    host.publish()
    host.publish_full()
    host.publish(encoding="overwrite")
    _prune(host, 1, 2)

    document = host.pulled()

    assert (document["version"], document["from_version"], document["seeded_from"]) == (4, None, 3)
    host.expect_local(4)


def test_v04_a_full_version_needs_no_base(host: Host) -> None:
    host.publish()
    host.publish_full()
    host.publish()
    _prune(host, 1)
    shutil.rmtree(host.base)

    result = toolkit.pull(host.shared, host.local)

    assert (result.code, result.document.get("seeded_from")) == (0, 2), result.stderr
    host.expect_local(3)


# ---- V5: a gap and no anchor


def test_v05_a_gap_without_an_anchor_names_the_missing_version_and_stays(host: Host) -> None:
    host.publish()
    host.pulled()
    host.publish()
    host.publish()
    _prune(host, 2)
    before = toolkit.snapshot(host.local)

    error = expect_error(host.pull(), 13, "lineage_gap")

    assert names_version(error["message"], 2), error["message"]
    assert toolkit.snapshot(host.local) == before
    host.expect_local(1)
    status = toolkit.vime("status", "--local", host.local)
    assert (status.document["local_version"], status.document["state"]) == (1, "ready")


def test_v05_a_fresh_host_below_a_gap_gets_no_weights(host: Host) -> None:
    host.publish()
    host.publish()
    _prune(host, 1)

    error = expect_error(host.pull(), 13, "lineage_gap")

    assert names_version(error["message"], 1), error["message"]
    assert not list(host.local.rglob("*.safetensors"))


def test_v05_a_closed_gap_lets_the_host_go_on(host: Host, tmp_path: Path) -> None:
    host.publish()
    host.pulled()
    host.publish()
    host.publish()
    shutil.move(toolkit.version_path(host.shared, 2), tmp_path / "aside")
    expect_error(host.pull(), 13, "lineage_gap")

    shutil.move(tmp_path / "aside", toolkit.version_path(host.shared, 2))

    assert host.pulled()["version"] == 3
    host.expect_local(3)


# ---- V6: five versions appear at once


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_v06_five_versions_at_once_are_one_pass(encoding: str, tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(kib=2048))
    host.pulled(version=0)
    published = sum(
        path.stat().st_size for _ in range(5) for path in host.publish(encoding=encoding, density=0.002).iterdir()
    )
    checkpoint = sum(len(tensor.data) for tensor in host.models[0].values())

    document = host.pulled()

    assert (document["version"], document["from_version"], document["seeded_from"]) == (5, 0, None)
    changed = [name for name in host.models[0] if host.models[0][name] != host.models[5][name]]
    assert document["tensors_changed"] == len(changed)
    # Each tensor is written once however many versions behind; the rest is what was staged and recorded.
    assert 0 < document["bytes_written"] <= 1.5 * checkpoint + published
    host.expect_local(5)


def test_v06_a_tensor_changed_and_changed_back_ends_right(host: Host) -> None:
    host.pulled(version=0)
    for version in range(1, 5):
        host.models[version] = host.models[0] if version % 2 == 0 else toolkit.step(host.models[0], 7)
        toolkit.publish_delta(host.shared, version, host.models[version - 1], host.models[version])

    assert host.pulled()["version"] == 4
    host.expect_local(4)


# ---- V7: a newer version appears


def test_v07_a_version_published_between_two_pulls_is_taken_by_the_second(host: Host) -> None:
    host.publish()
    assert host.pulled()["version"] == 1
    host.publish(encoding="overwrite")

    document = host.pulled()

    assert (document["result"], document["version"], document["from_version"]) == ("updated", 2, 1)
    host.expect_local(2)


class _PublishWhenWriting:
    """An audit hook (they stay for good): a new version appears when a local shard is opened for writing."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.armed = True

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.armed or event != "open" or not str(arguments[0]).endswith(".safetensors"):
            return
        flags = arguments[2]
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            self.armed = False
            self.host.publish()


def test_v07_a_version_that_appears_while_applying_is_not_lost(host: Host) -> None:
    host.pulled()
    host.publish()
    hook = _PublishWhenWriting(host)
    sys.addaudithook(hook)

    during = host.pulled()
    hook.armed = False

    assert 2 in host.models, "no local shard was opened for writing"
    assert during["version"] in (1, 2)
    host.expect_local(during["version"])
    assert host.pulled()["version"] == 2
    host.expect_local(2)


# ---- V8: names


def test_v08_names_that_are_no_versions_are_ignored(host: Host) -> None:
    published = host.publish()
    (host.shared / "run-17").mkdir()
    (host.shared / ".weight_v000004").mkdir()
    published.rename(host.shared / "weight_v1")
    shutil.copytree(host.shared / "weight_v1", host.shared / "weight_v000003.tmp")

    document = host.pulled()

    assert (document["version"], document["seeded_from"]) == (0, 0)
    host.expect_local(0)
    expect_error(host.pull(version=1), 10, "version_missing")
    expect_error(host.pull(version=3), 10, "version_missing")


def test_v08_seven_digits_are_a_version(host: Host) -> None:
    host.publish_full(1_000_000)
    host.publish()

    document = host.pulled()

    assert (document["version"], document["seeded_from"]) == (1_000_001, 1_000_000)
    host.expect_local(1_000_001)


# ---- V11 and its counterpart S16: an empty share is healthy on a fresh host, and never resets another


def test_v11_a_fresh_host_on_an_empty_share_is_seeded_with_the_base(host: Host) -> None:
    document = host.pulled()

    assert (document["result"], document["version"]) == ("updated", 0)
    assert (document["from_version"], document["seeded_from"]) == (None, 0)
    host.expect_local(0)

    again = host.pulled()
    assert (again["result"], again["bytes_written"]) == ("already_current", 0)


def test_v11_the_first_versions_of_the_trainer_then_follow(host: Host) -> None:
    host.pulled()
    for version in (1, 2):
        host.publish()
        document = host.pulled()
        assert (document["version"], document["seeded_from"]) == (version, None)
        host.expect_local(version)


def test_v11_an_explicit_version_of_an_empty_share_is_still_missing(host: Host) -> None:
    expect_error(host.pull(version=1), 10, "version_missing")


@pytest.mark.parametrize("seen", ["gone", "empty"])
def test_s16_a_share_that_vanished_resets_nothing(seen: str, host: Host) -> None:
    for _ in range(3):
        host.publish()
    host.pulled()
    before = toolkit.snapshot(host.local)
    host.shared.rename(host.root / "unmounted")
    if seen == "empty":
        host.shared.mkdir()

    error = expect_error(host.pull(), 10, "share_unreachable")

    assert error["retryable"] is True
    assert toolkit.snapshot(host.local) == before
    host.expect_local(3)
    assert seen == "gone" or everything(host.shared) == {}

    shutil.rmtree(host.shared, ignore_errors=True)
    (host.root / "unmounted").rename(host.shared)
    host.publish()
    assert host.pulled()["version"] == 4
    host.expect_local(4)


def test_s16_a_fresh_host_on_an_absent_share_gets_nothing(host: Host) -> None:
    host.shared.rmdir()
    expect_error(host.pull(), 10, "share_unreachable")
    assert not list(host.local.rglob("*.safetensors"))
