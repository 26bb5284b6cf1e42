"""Linked directories in LOCAL: nothing is written, removed or believed through a link (FIELD_GUIDE H8)."""

import json
import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error
from tests.kill_jobs import expect_settled
from tests.kill_points import no_disk_waits
from tests.sealed import sealed
from tests.toolkit import INDEX_NAME, STATE_DIRECTORY


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """The base has its shards in `sub/`, and version 1 is a delta."""
    host = Host.create(tmp_path, model=toolkit.make_model(tensors=3, kib=4))
    (host.base / "sub").mkdir()
    for shard in sorted(host.base.glob("*.safetensors")):
        shard.rename(host.base / "sub" / shard.name)

    def into_sub(document: dict[str, dict[str, str]]) -> None:
        document["weight_map"] = {name: f"sub/{file}" for name, file in document["weight_map"].items()}

    toolkit.rewrite_index(host.base, into_sub)
    host.publish()
    return host


def _link_sub(host: Host) -> None:
    """LOCAL/sub becomes a link to the base's; LOCAL may be new."""
    host.local.mkdir(exist_ok=True)
    shutil.rmtree(host.local / "sub", ignore_errors=True)
    (host.local / "sub").symlink_to(host.base / "sub")


def _refused(host: Host, *options: str) -> None:
    base, local = everything(host.base), toolkit.snapshot(host.local)
    error = expect_error(host.pull(*options), 23, "not_ours")
    assert str(host.local / "sub") in error["message"]
    assert everything(host.base) == base
    assert toolkit.snapshot(host.local) == local


@pytest.mark.parametrize("end", ["removed", "replaced by an empty directory", "replaced by a copy"])
def test_a1_a_folder_linked_into_the_base_is_not_written_through(end: str, host: Host) -> None:
    host.pulled(version=0)
    _link_sub(host)

    for _ in range(2):
        _refused(host)

    (host.local / "sub").unlink()
    if end == "replaced by an empty directory":
        (host.local / "sub").mkdir()
    elif end == "replaced by a copy":
        shutil.copytree(host.base / "sub", host.local / "sub")
    base = everything(host.base)
    assert host.pulled()["version"] == 1
    expect_settled(host, 1)
    assert everything(host.base) == base


def test_a1_a_linked_folder_is_refused_although_the_state_calls_it_untouched(host: Host) -> None:
    """The stats that the state remembers are those of the files behind the link: nothing looks touched."""
    host.pulled(version=0)
    _link_sub(host)
    state_path = host.local / STATE_DIRECTORY / "state.json"
    document = json.loads(state_path.read_text(encoding="utf-8"))
    for name in document["vime_sync"]["stats"]:
        figures = (host.local / name).stat()
        document["vime_sync"]["stats"][name] = [
            figures.st_size,
            figures.st_mtime_ns,
            figures.st_ctime_ns,
            figures.st_ino,
        ]
    state_path.write_bytes(sealed(document, depth=2))

    _refused(host)


def test_a1_adopting_a_directory_with_a_linked_folder_is_refused(host: Host) -> None:
    _link_sub(host)
    for name in ("config.json", "tokenizer.json", INDEX_NAME):
        shutil.copyfile(host.base / name, host.local / name)

    _refused(host, "--adopt")

    (host.local / "sub").unlink()
    host.pulled("--adopt")
    expect_settled(host, 1)


def test_a1_a_full_version_without_the_folder_removes_nothing_behind_its_link(host: Host) -> None:
    host.pulled(version=0)
    _link_sub(host)
    base = everything(host.base)
    host.publish_full(2)

    result = host.pull(version=2)

    assert result.code in (0, 23), result.stderr
    assert everything(host.base) == base
    assert (host.local / "sub").is_symlink()  # the user's
    (host.local / "sub").unlink()
    host.pulled(version=2)
    expect_settled(host, 2)
    assert everything(host.base) == base


def test_a1_a_rollback_to_the_base_does_not_write_through_a_linked_folder(host: Host) -> None:
    host.pulled(version=0)
    host.pulled(version=1)
    shutil.rmtree(host.local / STATE_DIRECTORY / "kept")
    _link_sub(host)
    base = everything(host.base)

    result = host.pull(version=0)

    assert result.code == 23, result.stderr
    assert everything(host.base) == base
    (host.local / "sub").unlink()
    host.pulled(version=0)
    expect_settled(host, 0)


@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_d22_records_behind_a_link_are_not_ours(target: str, host: Host) -> None:
    host.pulled()
    elsewhere = host.root / "elsewhere"
    (host.local / STATE_DIRECTORY).rename(elsewhere)
    (host.local / STATE_DIRECTORY).symlink_to(host.root / target)
    before = everything(elsewhere)

    error = expect_error(toolkit.vime("verify", "--local", host.local), 23, "not_ours")

    assert STATE_DIRECTORY in error["message"]
    expect_error(host.pull(), 23, "not_ours")
    expect_error(host.pull("--adopt"), 23, "not_ours")
    assert everything(elsewhere) == before
    (host.local / STATE_DIRECTORY).unlink()
    elsewhere.rename(host.local / STATE_DIRECTORY)
    expect_settled(host, 1)
