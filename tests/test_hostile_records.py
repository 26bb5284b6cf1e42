"""Records under LOCAL/.weight_sync that hold numbers no version has, or are no files at all (FIELD_GUIDE H4)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host import Host
from tests.kill_jobs import JOBS, bring_fresh, create, expect_settled, state_path
from tests.kill_points import kill, no_disk_waits, shard_writes
from tests.toolkit import STATE_DIRECTORY, vime


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _records(local: Path) -> Path:
    return local / STATE_DIRECTORY


def _bring(root: Path, *, killed: bool) -> Host:
    """LOCAL at version 1 of 2, or killed on the way from 1 to 2."""
    job = JOBS["apply"]
    host = create(root, job, kib=4)
    bring_fresh(host, job)
    if killed:
        kill(lambda: job.run(host), 1, shard_writes(host.local))
    return host


def _heals(host: Host) -> None:
    for command in (("status",), ("status", "--shared", str(host.shared))):
        standing = vime(*command, "--local", host.local)
        assert standing.code in (0, 21), standing.stderr
        assert "Traceback" not in standing.stderr
    result = host.pull()
    assert (result.code, result.document.get("version")) == (0, 2), result.stderr
    assert "Traceback" not in result.stderr
    expect_settled(host, 2)


STATES = [
    '{"version": 1e999}',
    '{"version": -1e999}',
    '{"version": NaN}',
    '{"version": "1e999"}',
    '{"version": -1}',
    '{"version": "000001", "vime_sync": {"stats": 1e999}}',
    '{"version": "' + "9" * 5000 + '"}',
    '{"version": ' + "9" * 5000 + "}",
    "[" * 5000,
]


@pytest.mark.parametrize("content", STATES, ids=range(len(STATES)))
def test_b12_a_state_with_a_number_that_no_version_has(content: str, tmp_path: Path) -> None:
    host = _bring(tmp_path, killed=False)
    state_path(host.local).write_text(content, encoding="utf-8")
    _heals(host)


def _directory(place: Path) -> None:
    (place / "inner").mkdir(parents=True)
    (place / "inner" / "file").write_bytes(b"x")


def _loop(place: Path) -> None:
    """A link to itself."""
    place.symlink_to(place)


def _replace(host: Host, name: str, form: Callable[[Path], None]) -> None:
    place = _records(host.local) / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    form(place)


NAMES = ["state.json", "owner.json", "holder.json", "intent.json", "journal", "kept/intent.json"]
TEMPORARY_NAMES = ["state.json.new", "owner.json.new", "holder.json.new", "intent.json.new"]
STRAY_NAMES = ["staged/x", "digests/x", "aside/x", "kept/x"]


@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed"])
@pytest.mark.parametrize("name", [*NAMES, *STRAY_NAMES])
def test_b12_a_directory_in_the_place_of_a_record(name: str, killed: bool, tmp_path: Path) -> None:
    host = _bring(tmp_path, killed=killed)
    _replace(host, name, _directory)
    _heals(host)


@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed"])
@pytest.mark.parametrize("name", TEMPORARY_NAMES)
def test_b12_a_directory_under_the_temporary_name_of_a_record(name: str, killed: bool, tmp_path: Path) -> None:
    host = _bring(tmp_path, killed=killed)
    _replace(host, name, _directory)
    _heals(host)


@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed"])
@pytest.mark.parametrize("name", NAMES)
def test_b12_a_link_to_itself_in_the_place_of_a_record(name: str, killed: bool, tmp_path: Path) -> None:
    host = _bring(tmp_path, killed=killed)
    _replace(host, name, _loop)
    _heals(host)


@pytest.mark.parametrize("name", ["digests", "kept", "staged", "aside"])
def test_b12_a_file_in_the_place_of_a_folder_of_records(name: str, tmp_path: Path) -> None:
    host = _bring(tmp_path, killed=False)
    place = _records(host.local) / name
    if place.is_dir():
        place.rename(tmp_path / "away")
    place.write_bytes(b"x")
    _heals(host)
