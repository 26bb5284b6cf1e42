"""Published files whose names are taken in LOCAL: the user's stay (promise 5), ours make way, also for folders."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error
from tests.kill_jobs import expect_settled, models, state_path
from tests.kill_points import no_disk_waits
from tests.toolkit import DEFAULT_EXTRA_FILES, STATE_DIRECTORY
from vime_sync import fsio

_MIB = 1 << 20
_SPARE_BYTES = 64 * _MIB  # what a pass wants free beside what it writes


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _files(**contents: bytes) -> dict[str, bytes]:
    """The usual files of a checkpoint and these; `__` in a name stands for a slash, `_` for a dot."""
    named = {name.replace("__", "/").replace("_", "."): content for name, content in contents.items()}
    return {**DEFAULT_EXTRA_FILES, **named}


def _host(root: Path, **contents: bytes) -> Host:
    return Host.create(root, model=toolkit.make_model(tensors=3, kib=4), extra_files=_files(**contents))


# ---- no room for a second checkpoint


def test_a3_a_full_version_written_in_place_does_not_overwrite_a_users_file(tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=models(1200))
    host.pulled()
    (host.local / "extra.json").write_bytes(b"the user's")
    host.publish_full(extra_files=_files(extra_json=b"{}"))
    before = everything(host.local)

    with mock.patch.object(fsio, "free_bytes", lambda directory: _SPARE_BYTES + _MIB):
        error = expect_error(host.pull(), 23, "not_ours")
        assert "extra.json" in error["message"]
        assert toolkit.snapshot(host.local) == {
            name: entry for name, entry in before.items() if not name.startswith(STATE_DIRECTORY)
        }
        assert everything(host.local)[f"{STATE_DIRECTORY}/state.json"] == before[f"{STATE_DIRECTORY}/state.json"]
        expect_settled(host, 0)
        (host.local / "extra.json").unlink()
        document = host.pulled()
    assert document["version"] == 1
    expect_settled(host, 1)
    assert (host.local / "extra.json").read_bytes() == b"{}"


# ---- records lost


def _empty_state(local: Path) -> None:
    state_path(local).write_bytes(b"")


def _remove_tables(local: Path) -> None:
    for table in (local / STATE_DIRECTORY / "digests").iterdir():
        table.unlink()


def _empty_state_and_remove_tables(local: Path) -> None:
    _empty_state(local)
    _remove_tables(local)


@pytest.mark.parametrize("lose", [_empty_state, _remove_tables, _empty_state_and_remove_tables])
def test_a4_a_users_file_stays_the_users_when_our_records_are_lost(
    lose: Callable[[Path], None], tmp_path: Path
) -> None:
    host = _host(tmp_path)
    host.pulled(version=0)
    (host.local / "notes.txt").write_bytes(b"the user's")
    host.publish_full(extra_files=_files(notes_txt=b"the trainer's"))
    expect_error(host.pull(), 23, "not_ours")
    lose(host.local)

    for _ in range(2):
        error = expect_error(host.pull(), 23, "not_ours")
        assert "notes.txt" in error["message"]
        assert (host.local / "notes.txt").read_bytes() == b"the user's"
        assert toolkit.read_checkpoint(host.local) == host.models[0]

    (host.local / "notes.txt").rename(tmp_path / "notes.txt")
    host.pulled()
    expect_settled(host, 1)
    assert (host.local / "notes.txt").read_bytes() == b"the trainer's"


# ---- a file where a folder is to be, and the reverse


def _published(host: Host, version: int) -> dict[str, tuple[str, bytes | str]]:
    return toolkit.snapshot(host.base if version == 0 else toolkit.version_path(host.shared, version))


@pytest.mark.parametrize("cramped", [False, True])
@pytest.mark.parametrize("file_first", [True, False])
def test_b08_a_file_of_ours_makes_way_for_a_folder_and_the_reverse(
    file_first: bool, cramped: bool, tmp_path: Path
) -> None:
    as_file, as_folder = _files(sub=b"a file"), _files(sub__x_json=b"{}", sub__deeper__y_json=b"[]")
    first, second = (as_file, as_folder) if file_first else (as_folder, as_file)
    host = Host.create(tmp_path, model=models(1200) if cramped else models(4), extra_files=first)
    host.pulled()
    host.publish_full(extra_files=second)
    free = _SPARE_BYTES + _MIB if cramped else 1 << 40

    with mock.patch.object(fsio, "free_bytes", lambda directory: free):
        assert host.pulled()["version"] == 1

    expect_settled(host, 1)
    assert toolkit.snapshot(host.local).keys() == _published(host, 1).keys()
    assert {name: toolkit.snapshot(host.local)[name] for name in second} == {
        name: ("file", content) for name, content in second.items()
    }
    host.pulled(version=0)
    expect_settled(host, 0)
    assert toolkit.snapshot(host.local) == _published(host, 0)


@pytest.mark.parametrize("version", [1, 0])
def test_b08_a_users_file_in_the_place_of_a_published_folder_is_refused(version: int, tmp_path: Path) -> None:
    """Version 0 brings the folder back that version 1 did without."""
    if version == 1:
        host = _host(tmp_path)
        host.pulled()
        host.publish_full(extra_files=_files(notes__x_json=b"{}"))
    else:
        host = _host(tmp_path, notes__x_json=b"{}")
        host.publish_full()
        host.pulled()
    (host.local / "notes").write_bytes(b"the user's")
    before = toolkit.snapshot(host.local)

    error = expect_error(host.pull(version=version), 23, "not_ours")

    assert "notes" in error["message"]
    assert toolkit.snapshot(host.local) == before
    expect_settled(host, 1 - version)


def test_b08_a_users_folder_in_the_place_of_a_published_file_is_refused(tmp_path: Path) -> None:
    host = _host(tmp_path)
    host.pulled()
    (host.local / "notes" / "deep").mkdir(parents=True)
    (host.local / "notes" / "deep" / "plan.txt").write_bytes(b"the user's")
    host.publish_full(extra_files=_files(notes=b"a file"))
    before = toolkit.snapshot(host.local)

    error = expect_error(host.pull(), 23, "not_ours")

    assert "notes" in error["message"]
    assert toolkit.snapshot(host.local) == before
    expect_settled(host, 0)


def test_b08_a_users_empty_folder_in_the_place_of_a_published_file_is_no_trap(tmp_path: Path) -> None:
    host = _host(tmp_path)
    host.pulled()
    (host.local / "notes").mkdir()
    host.publish_full(extra_files=_files(notes=b"a file"))

    result = host.pull()

    assert result.code in (0, 23), result.stderr
    assert "Traceback" not in result.stderr
    if result.code == 23:
        expect_settled(host, 0)
        (host.local / "notes").rmdir()
        host.pulled()
    expect_settled(host, 1)
    assert (host.local / "notes").read_bytes() == b"a file"
