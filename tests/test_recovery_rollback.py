"""FIELD_GUIDE V1: a target below the local version is a rollback: xor backwards, kept values, else an anchor."""

import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, names_version
from tests.kill_points import no_disk_waits, tracing


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


@pytest.mark.parametrize("chain", ["xor xor xor", "overwrite overwrite overwrite", "xor overwrite xor"])
@pytest.mark.parametrize("stepwise", [True, False])
@pytest.mark.parametrize("target", [0, 1, 2])
def test_v01_a_target_below_rolls_back_and_says_so(chain: str, stepwise: bool, target: int, host: Host) -> None:
    _publish(host, *chain.split())
    for version in (0, 1, 2, 3) if stepwise else (3,):
        host.pulled(version=version)

    document = host.pulled(version=target)

    assert (document["result"], document["version"], document["from_version"]) == ("rolled_back", target, 3)
    assert document["new_stream"] is False
    host.expect_local(target)
    again = host.pulled(version=target)
    assert (again["result"], again["bytes_written"]) == ("already_current", 0)
    assert host.pulled()["version"] == 3  # `latest` is up again
    host.expect_local(3)


def test_v01_xor_goes_backwards_without_the_base(host: Host) -> None:
    _publish(host, "xor", "xor", "xor")
    host.pulled()
    shutil.rmtree(host.base)

    document = host.pulled(version=1)

    assert (document["result"], document["seeded_from"]) == ("rolled_back", None)
    host.expect_local(1)


def test_v01_xor_rolls_back_a_seeded_host_below_where_it_was_seeded(host: Host) -> None:
    """LOCAL never was at version 1: the seed folded both deltas; backwards is a way all the same."""
    _publish(host, "xor", "xor")
    host.pulled(version=2)
    with tracing() as trace:
        document = host.pulled(version=1)
    assert (document["result"], document["seeded_from"]) == ("rolled_back", None)
    assert trace.bytes_from(host.base, ".safetensors") < 64 * 1024  # headers at most
    host.expect_local(1)


def test_v01_kept_overwrite_values_go_backwards_without_the_base(host: Host) -> None:
    _publish(host, "overwrite", "overwrite")
    host.pulled(version=1)
    host.pulled(version=2)
    shutil.rmtree(host.base)

    document = host.pulled(version=1)

    assert (document["result"], document["seeded_from"]) == ("rolled_back", None)
    host.expect_local(1)


def test_v01_a_full_version_in_between_is_rolled_back_over_from_an_anchor(host: Host) -> None:
    _publish(host, "xor", "full", "xor")
    host.pulled()
    document = host.pulled(version=1)
    assert (document["result"], document["seeded_from"]) == ("rolled_back", 0)
    host.expect_local(1)


def test_v01_a_full_version_itself_is_a_target(host: Host) -> None:
    _publish(host, "xor", "full", "xor", "xor")
    host.pulled()
    assert host.pulled(version=2)["result"] == "rolled_back"
    host.expect_local(2)


def test_v01_a_pruned_delta_above_the_target_is_gone_around(host: Host) -> None:
    """Backwards is cut, the base and the deltas up to the target are there."""
    _publish(host, "xor", "xor", "xor")
    host.pulled()
    shutil.rmtree(toolkit.version_path(host.shared, 2))
    document = host.pulled(version=1)
    assert (document["result"], document["seeded_from"]) == ("rolled_back", 0)
    host.expect_local(1)


def test_v01_no_way_back_names_the_missing_version_and_changes_nothing(host: Host) -> None:
    _publish(host, "xor", "xor", "xor")
    host.pulled()
    shutil.rmtree(toolkit.version_path(host.shared, 2))
    shutil.rmtree(host.base)
    before = toolkit.snapshot(host.local)

    result = host.pull(version=1)

    assert result.code in (2, 13, 22), result.stderr
    assert names_version(result.error["message"], 2) or names_version(result.error["message"], 0)
    assert toolkit.snapshot(host.local) == before
    host.expect_local(3)


def test_v01_a_bad_delta_found_while_going_backwards_leaves_the_higher_version(host: Host) -> None:
    """The frame of version 2 was spoilt on the share after it was applied; there is no base to go around."""
    _publish(host, "xor", "xor")
    host.pulled()
    shard = next(toolkit.version_path(host.shared, 2).glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-3] ^= 0x5A
    shard.write_bytes(content)
    shutil.rmtree(host.base)

    result = host.pull(version=1)

    assert result.code in (11, 12, 13, 22), result.stderr
    host.expect_local(2)
    assert toolkit.vime("verify", "--local", host.local).code == 0


@pytest.mark.parametrize("share", ["gone", "empty"])
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_v01_a_rollback_by_kept_values_needs_neither_share_nor_base(encoding: str, share: str, tmp_path: Path) -> None:
    """Operators roll back when something is wrong: what is here must be enough."""
    host = Host.create(tmp_path)
    for _ in range(2):
        host.publish(encoding=encoding)
    for version in (1, 2):
        host.pulled(version=version)
    host.base.rename(host.root / "base-away")
    host.shared.rename(host.root / "shared-away")
    if share == "empty":
        host.shared.mkdir()

    result = toolkit.vime("pull", "--local", host.local, "--version", "1")

    assert result.code == 0, result.stderr
    assert (result.document["result"], result.document["version"]) == ("rolled_back", 1)
    host.expect_local(1)
