"""Names of directories that are never the checkpoint's, names that are not UTF-8, and folders nested very deep."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, expect_error, names_version
from tests.kill_jobs import expect_settled
from tests.kill_points import no_disk_waits
from tests.toolkit import DEFAULT_EXTRA_FILES, STATE_DIRECTORY, vime

_DEPTH = 1100  # past what Python's own recursion allows
_NOT_UTF8 = os.fsdecode(b"x\xff")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    yield Host.create(tmp_path, model=toolkit.make_model(tensors=3, kib=4))
    # Deep folders are more than shutil.rmtree can bear.
    subprocess.run(["rm", "-rf", *(str(entry) for entry in tmp_path.iterdir())], check=True)


# ---- directories that are nobody's checkpoint


def _move_shards_into(version: Path, folder: str) -> None:
    (version / folder).mkdir(parents=True)
    for shard in sorted(version.glob("*.safetensors")):
        shard.rename(version / folder / shard.name)

    def named_there(document: dict[str, dict[str, str]]) -> None:
        document["weight_map"] = {name: f"{folder}/{file}" for name, file in document["weight_map"].items()}

    toolkit.rewrite_index(version, named_there)


FOLDERS = [STATE_DIRECTORY, f"{STATE_DIRECTORY}/aside", f"sub/{STATE_DIRECTORY}", ".git", "lost+found", "a/.git/b"]


@pytest.mark.parametrize("fresh", [False, True], ids=["at version 0", "fresh"])
@pytest.mark.parametrize("kind", ["full", "delta"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a7_shards_in_a_directory_that_is_never_the_checkpoints(
    folder: str, kind: str, fresh: bool, host: Host
) -> None:
    if not fresh:
        host.pulled(version=0)
    directory = host.publish_full() if kind == "full" else host.publish()
    _move_shards_into(directory, folder)
    before = toolkit.snapshot(host.local)

    for _ in range(2):
        error = expect_error(host.pull(version=1), 11, "malformed")
        assert folder in error["message"] and names_version(error["message"], 1)
        assert toolkit.snapshot(host.local) == before
    expect_error(vime("inspect", directory), 11, "malformed")

    host.publish_full()
    host.pulled()
    expect_settled(host, 2)


@pytest.mark.parametrize("name", [STATE_DIRECTORY, ".git", "lost+found"])
@pytest.mark.parametrize("where", ["base", "full version"])
def test_a7_a_file_with_the_name_of_such_a_directory_is_not_copied(where: str, name: str, host: Host) -> None:
    if where == "base":
        (host.base / name).write_bytes(b"hostile")
        host.pulled(version=0)
    else:
        host.publish_full(extra_files={**DEFAULT_EXTRA_FILES, name: b"hostile"})
        host.pulled()

    assert (host.local / STATE_DIRECTORY).is_dir()
    assert name == STATE_DIRECTORY or not (host.local / name).exists()
    expect_settled(host, 0 if where == "base" else 1)


# ---- names that are not UTF-8


@pytest.mark.parametrize("kind", ["full", "delta"])
def test_c15_a_leftover_in_a_version_whose_name_is_not_utf8(kind: str, host: Host) -> None:
    host.pulled(version=0)
    directory = host.publish_full() if kind == "full" else host.publish()
    for name in (_NOT_UTF8, f"{_NOT_UTF8}.safetensors", f"sub/{_NOT_UTF8}"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(b"left over")

    host.pulled()

    expect_settled(host, 1)
    for command in (("inspect", directory), ("status", "--local", host.local, "--shared", host.shared)):
        assert vime(*command).code == 0


def test_c15_a_file_of_the_base_whose_name_is_not_utf8(host: Host) -> None:
    (host.base / _NOT_UTF8).write_bytes(b"content")
    host.publish()

    host.pulled(version=0)
    host.pulled()

    expect_settled(host, 1)
    assert (host.local / _NOT_UTF8).read_bytes() == b"content"
    assert vime("inspect", host.base).code == 0
    host.publish_full()  # without it: it goes, as it was ours
    host.pulled()
    expect_settled(host, 2)
    assert not (host.local / _NOT_UTF8).exists()


def test_c15_a_file_of_the_users_whose_name_is_not_utf8(host: Host) -> None:
    host.local.mkdir()
    (host.local / _NOT_UTF8).write_bytes(b"the user's")
    (host.local / f"{_NOT_UTF8}.safetensors").write_bytes(b"the user's")

    expect_error(host.pull(version=0), 23, "not_ours")
    host.pulled("--adopt", version=0)

    expect_settled(host, 0)
    assert (host.local / _NOT_UTF8).read_bytes() == b"the user's"


# ---- nested deep


def _nest(directory: Path, *, leaf: bool) -> None:
    """Folders so deep below `directory`, made without a name that grows too long for the system."""
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(_DEPTH):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    if leaf:
        os.close(os.open("leaf", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=here))
    os.close(here)


def _leaf(directory: Path) -> Path:
    return directory / "/".join(["d"] * _DEPTH) / "leaf"


@pytest.mark.parametrize("leaf", [False, True], ids=["empty", "with a file"])
@pytest.mark.parametrize("kind", ["full", "delta"])
def test_c16_folders_nested_deep_in_a_version(kind: str, leaf: bool, host: Host) -> None:
    host.pulled(version=0)
    directory = host.publish_full() if kind == "full" else host.publish()
    _nest(directory, leaf=leaf)

    host.pulled()

    host.expect_local(1)
    assert _leaf(host.local).exists() == (leaf and kind == "full")
    assert vime("verify", "--local", host.local).code == 0
    assert vime("inspect", directory).code == 0
    if leaf and kind == "full":
        host.publish_full()  # without them
        host.pulled()
        host.expect_local(2)
        assert not (host.local / "d").exists()


@pytest.mark.parametrize("leaf", [False, True], ids=["empty", "with a file"])
def test_c16_folders_of_the_users_nested_deep(leaf: bool, host: Host) -> None:
    host.pulled(version=0)
    _nest(host.local, leaf=leaf)
    for publish in (host.publish, host.publish_full):
        publish()
        host.pulled()
    host.expect_local(2)
    assert vime("verify", "--local", host.local).code == 0
    assert _leaf(host.local).parent.is_dir()
    assert _leaf(host.local).exists() == leaf
