"""The command line contract: which version is the target, what a pull says it did, verify and inspect."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error, flip_byte, names_version
from tests.toolkit import vime

TOUCHED = "model.embed_tokens.weight"
UNTOUCHED = "model.norm.weight"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Three versions published; no delta touches `UNTOUCHED`."""
    host = Host.create(tmp_path)
    for encoding in ("xor", "overwrite", "xor"):
        host.publish(encoding=encoding, only=[TOUCHED, "one"])
    return host


def _unfinish(host: Host, version: int) -> Path:
    """As the publisher leaves it before its last step: shards there, no index."""
    index = toolkit.version_path(host.shared, version) / toolkit.INDEX_NAME
    return index.rename(host.root / f"index-{version}")


# ---- what a pull says it did


def test_results_updated_and_already_current(host: Host) -> None:
    first = host.pulled(version=2)
    assert (first["result"], first["from_version"], first["seeded_from"]) == ("updated", None, 0)
    again = host.pulled(version=2)
    assert (again["result"], again["version"], again["from_version"]) == ("already_current", 2, 2)
    assert (again["bytes_written"], again["tensors_changed"], again["seeded_from"]) == (0, 0, None)
    further = host.pulled()
    assert (further["result"], further["from_version"], further["seeded_from"]) == ("updated", 2, None)
    assert further["tensors_changed"] == 2
    host.expect_local(3)


@pytest.mark.parametrize("target", [0, 1])
def test_an_explicit_version_below_rolls_back(target: int, host: Host) -> None:
    host.pulled()
    document = host.pulled(version=target)
    assert (document["result"], document["version"], document["from_version"]) == ("rolled_back", target, 3)
    host.expect_local(target)
    assert host.pulled()["result"] == "updated"
    host.expect_local(3)


def test_a_rollback_to_a_full_version_and_a_delta_above_it(host: Host) -> None:
    for step in (host.publish_full, host.publish, host.publish):
        step()
    host.pulled()
    for target in (5, 4):
        document = host.pulled(version=target)
        assert (document["result"], document["version"]) == ("rolled_back", target)
        host.expect_local(target)


# ---- dry runs


@pytest.mark.parametrize("at", [None, 0, 2])
def test_a_dry_run_changes_nothing_at_all(at: int | None, host: Host) -> None:
    if at is not None:
        host.pulled(version=at)
    before = everything(host.root)

    document = host.pulled("--dry-run")

    assert (document["result"], document["version"], document["from_version"]) == ("planned", 3, at)
    assert document["seeded_from"] == (0 if at is None else None)
    assert everything(host.root) == before
    assert host.local.exists() == (at is not None)
    host.pulled()
    host.expect_local(3)


def test_a_dry_run_is_refused_as_the_pull_would_be(host: Host) -> None:
    host.pulled(version=1)
    before = everything(host.root)
    expect_error(host.pull("--dry-run", version=9), 10, "version_missing")
    assert everything(host.root) == before
    shutil.rmtree(toolkit.version_path(host.shared, 2))
    expect_error(host.pull("--dry-run"), 13, "lineage_gap")
    host.expect_local(1)


# ---- targets


def test_an_explicit_version_that_is_missing(host: Host) -> None:
    host.pulled(version=1)
    error = expect_error(host.pull(version=9), 10, "version_missing")
    assert names_version(error["message"], 9) and error["retryable"] is True
    host.expect_local(1)


def test_an_explicit_version_that_is_not_ready(host: Host) -> None:
    host.pulled(version=1)
    _unfinish(host, 3)
    error = expect_error(host.pull(version=3), 10, "not_ready")
    assert names_version(error["message"], 3) and error["retryable"] is True
    host.expect_local(1)


def test_latest_passes_by_newer_versions_that_are_not_ready_and_names_them(host: Host) -> None:
    index = _unfinish(host, 3)

    result = host.pull()

    assert (result.code, result.document.get("version")) == (0, 2), result.stderr
    assert names_version(result.stderr, 3), result.stderr
    host.expect_local(2)
    index.rename(toolkit.version_path(host.shared, 3) / toolkit.INDEX_NAME)
    assert host.pulled()["version"] == 3
    host.expect_local(3)


def test_latest_passes_by_newer_versions_that_are_malformed_and_names_them(host: Host) -> None:
    toolkit.rewrite_index(
        toolkit.version_path(host.shared, 3), lambda index: index["metadata"].update(delta_encoding="rot13")
    )
    result = host.pull()
    assert (result.code, result.document.get("version")) == (0, 2), result.stderr
    assert names_version(result.stderr, 3), result.stderr
    expect_error(host.pull(version=3), 11, "malformed")
    host.expect_local(2)


@pytest.mark.parametrize("version", [None, 3])
def test_a_middle_version_absent_is_a_gap_and_not_ready_is_to_wait_for(version: int | None, host: Host) -> None:
    host.pulled(version=1)
    _unfinish(host, 2)
    assert names_version(expect_error(host.pull(version=version), 10, "not_ready")["message"], 2)
    host.expect_local(1)
    shutil.rmtree(toolkit.version_path(host.shared, 2))
    assert names_version(expect_error(host.pull(version=version), 13, "lineage_gap")["message"], 2)
    host.expect_local(1)


@pytest.mark.parametrize("shared", [None, "gone"])
def test_version_0_needs_no_share(shared: str | None, host: Host) -> None:
    share = None if shared is None else host.root / shared
    result = toolkit.pull(share, host.local, base=host.base, version=0)
    assert (result.code, result.document.get("version")) == (0, 0), result.stderr
    host.expect_local(0)


# ---- verify


def test_verify_names_a_rotten_tensor_and_the_next_pull_heals_it(host: Host) -> None:
    host.pulled()
    assert vime("verify", "--local", host.local).code == 0
    flip_byte(host.local, UNTOUCHED)

    error = expect_error(vime("verify", "--local", host.local), 22, "damaged")

    assert error["tensors"] == [UNTOUCHED]
    assert UNTOUCHED in error["message"]
    status = vime("status", "--local", host.local).document
    assert (status["state"], status["local_version"]) == ("damaged", 3)
    healed = host.pulled()
    assert (healed["result"], healed["version"]) == ("updated", 3)
    assert healed["tensors_repaired"] >= 1
    host.expect_local(3)
    assert vime("verify", "--local", host.local).code == 0
    assert vime("status", "--local", host.local).document["state"] == "ready"


def test_rot_in_a_tensor_of_the_chain_is_rebuilt_along_it(host: Host) -> None:
    host.pulled()
    flip_byte(host.local, TOUCHED)
    expect_error(vime("verify", "--local", host.local), 22, "damaged")
    host.publish(only=[TOUCHED])

    document = host.pulled()

    assert (document["version"], document["tensors_repaired"]) == (4, 1)
    host.expect_local(4)


def _change_config(local: Path) -> str:
    (local / "config.json").write_bytes(b'{"hidden_size": 65}')
    return "config.json"


def _lose_tokenizer(local: Path) -> str:
    (local / "tokenizer.json").unlink()
    return "tokenizer.json"


def _cut_shard(local: Path) -> str:
    shard = next(local.glob("*.safetensors"))
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    return shard.name


def _lose_shard(local: Path) -> str:
    shard = next(local.glob("*.safetensors"))
    shard.unlink()
    return shard.name


@pytest.mark.parametrize("spoil", [_change_config, _lose_tokenizer, _cut_shard, _lose_shard])
def test_verify_finds_spoiled_files_and_the_next_pull_heals_them(spoil: Callable[[Path], str], host: Host) -> None:
    host.pulled()
    right = toolkit.snapshot(host.local)
    name = spoil(host.local)

    error = expect_error(vime("verify", "--local", host.local), 22, "damaged")

    assert name in error["message"], error
    assert host.pulled()["result"] == "updated"
    assert toolkit.snapshot(host.local) == right
    host.expect_local(3)


# ---- inspect


def test_inspect_lists_a_stream(host: Host) -> None:
    host.publish_full()
    (host.shared / "weight_v000003.tmp").mkdir()
    result = toolkit.vime_plain("inspect", host.shared)
    assert result.code == 0, result.stderr
    for version in (1, 2, 3, 4):
        assert names_version(result.stdout, version), result.stdout
    assert all(word in result.stdout for word in ("xor", "overwrite", "full")), result.stdout


def test_inspect_explains_a_delta_and_a_checkpoint(host: Host) -> None:
    delta = toolkit.vime_plain("inspect", toolkit.version_path(host.shared, 2))
    assert delta.code == 0, delta.stderr
    assert "overwrite" in delta.stdout and "xxh3-128" in delta.stdout
    checkpoint = toolkit.vime_plain("inspect", host.base)
    assert checkpoint.code == 0, checkpoint.stderr
    assert str(len(host.models[0])) in checkpoint.stdout


def _wrong_number(version: Path) -> None:
    toolkit.rewrite_index(version, lambda index: index["metadata"].update(version="000007"))


def _garbage_header(version: Path) -> None:
    toolkit.join_shard(next(version.glob("*.safetensors")), b"{not json", b"\0" * 4096)


@pytest.mark.parametrize(("spoil", "where"), [(_wrong_number, "shared"), (_garbage_header, "shared")])
def test_inspect_of_a_malformed_version_exits_11_with_the_reason(
    spoil: Callable[[Path], None], where: str, host: Host
) -> None:
    version = toolkit.version_path(host.root / where, 2)
    spoil(version)
    error = expect_error(vime("inspect", version), 11, "malformed")
    assert "weight_v000002" in error["message"]


def test_inspect_of_a_malformed_checkpoint_exits_11_with_the_reason(host: Host) -> None:
    _garbage_header(host.base)
    error = expect_error(vime("inspect", host.base), 11, "malformed")
    assert ".safetensors" in error["message"]
