"""FIELD_GUIDE H19: LOCAL on a fresh mount, with hard links, copied, moved, or taken over from the peers."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error, flip_byte


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path)


def test_h19_a_lone_lost_and_found_counts_as_empty(host: Host) -> None:
    (host.local / "lost+found").mkdir(parents=True, mode=0o700)
    host.publish()

    assert host.pulled()["version"] == 1

    host.expect_local(1)
    assert (host.local / "lost+found").is_dir()
    host.publish_full()
    assert host.pulled()["version"] == 2
    assert (host.local / "lost+found").is_dir()


def _link_tree(source: Path, target: Path) -> None:
    """`cp -al`."""
    shutil.copytree(source, target, copy_function=os.link)


@pytest.mark.parametrize("full", [False, True])
def test_h19_an_adopted_cp_l_of_the_base_leaves_the_base_alone(full: bool, host: Host) -> None:
    _link_tree(host.base, host.local)
    base = everything(host.base)
    if full:
        host.publish_full()
    host.publish()

    assert host.pulled("--adopt")["version"] == max(host.models)

    assert everything(host.base) == base
    host.expect_local(max(host.models))
    assert {path.stat().st_nlink for path in host.local.glob("*.safetensors")} == {1}


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_h19_a_cp_l_backup_of_local_keeps_its_bytes(encoding: str, host: Host) -> None:
    host.publish()
    host.pulled()
    _link_tree(host.local, host.root / "backup")
    backup = toolkit.snapshot(host.root / "backup")
    host.publish(encoding=encoding)

    assert host.pulled()["version"] == 2

    assert toolkit.snapshot(host.root / "backup") == backup
    host.expect_local(2)


def _copy(local: Path, elsewhere: Path) -> None:
    shutil.copytree(local, elsewhere)


def _move(local: Path, elsewhere: Path) -> None:
    local.rename(elsewhere)


@pytest.mark.parametrize("relocate", [_copy, _move])
def test_h19_local_copied_or_moved_is_verified_and_goes_on(relocate: Callable[[Path, Path], None], host: Host) -> None:
    host.publish()
    host.pulled()
    elsewhere = host.root / "other-disk" / "local"
    elsewhere.parent.mkdir()
    relocate(host.local, elsewhere)
    host.publish()

    result = toolkit.pull(host.shared, elsewhere, base=host.base)

    assert result.code == 0, result.stderr
    assert (result.document["version"], result.document["from_version"]) == (2, 1)
    assert (result.document["tensors_repaired"], result.document["seeded_from"]) == (0, None)
    host.expect_local(2, elsewhere)
    if host.local.exists():
        host.expect_local(1)


def test_h19_rot_that_came_in_with_the_copy_is_found_and_healed(host: Host) -> None:
    host.publish(only=["model.embed_tokens.weight"])
    host.pulled()
    elsewhere = host.root / "copy"
    shutil.copytree(host.local, elsewhere)
    flip_byte(elsewhere, "model.norm.weight")
    host.publish(only=["model.embed_tokens.weight"])

    result = toolkit.pull(host.shared, elsewhere, base=host.base)

    assert result.code == 0, result.stderr
    assert (result.document["version"], result.document["tensors_repaired"]) == (2, 1)
    host.expect_local(2, elsewhere)
    verify = toolkit.vime("verify", "--local", elsewhere)
    assert verify.code == 0, verify.stderr


def test_h19_a_copy_without_our_state_is_the_users_until_adopted(host: Host) -> None:
    host.publish()
    host.pulled()
    elsewhere = host.root / "copy"
    shutil.copytree(host.local, elsewhere, ignore=shutil.ignore_patterns(toolkit.STATE_DIRECTORY))
    host.publish()
    expect_error(toolkit.pull(host.shared, elsewhere, base=host.base), 23, "not_ours")

    result = toolkit.pull(host.shared, elsewhere, "--adopt", base=host.base)

    assert (result.code, result.document.get("version")) == (0, 2), result.stderr
    host.expect_local(2, elsewhere)


def test_h19_the_peers_directory_is_ours_too(host: Host) -> None:
    """Their state file alone, over the right bytes: no --adopt is asked for."""
    host.publish()
    toolkit.write_checkpoint(host.local, host.models[1])
    (host.local / toolkit.STATE_DIRECTORY).mkdir()
    state = host.local / toolkit.STATE_DIRECTORY / "state.json"
    state.write_text(json.dumps({"version": "000001"}), encoding="utf-8")
    host.publish()

    assert host.pulled()["version"] == 2
    host.expect_local(2)
