"""New files built aside that changed before they were put in place, and records of them that are garbage.

FIELD_GUIDE H2: what a killed run left is believed only as far as it can be proven.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kill_jobs import JOBS, bring_fresh, create, expect_no_lie, expect_settled, intent_path
from tests.kill_points import Matching, kill, no_disk_waits, operations, reboot
from tests.toolkit import STATE_DIRECTORY


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _aside(local: Path, prefix: str = "", suffix: str = "") -> list[Path]:
    return sorted((local / STATE_DIRECTORY / "aside").glob(f"{prefix}*{suffix}"))


def _spoil(path: Path, offset: int, *, keep_times: bool) -> None:
    """Other bytes, same size; with `keep_times` as a disk does it that never got them."""
    figures = path.stat()
    content = bytearray(path.read_bytes())
    if content:
        content[offset] ^= 0xFF
    with path.open("r+b") as file:
        file.write(content)
    if keep_times:
        os.utime(path, ns=(figures.st_atime_ns, figures.st_mtime_ns))


@pytest.mark.parametrize("power_lost", [False, True], ids=["touched", "power lost"])
@pytest.mark.parametrize("offset", [20, -1], ids=["header", "data"])
@pytest.mark.parametrize("moved", [0, 1, 3])
@pytest.mark.parametrize("name", ["seed", "replacement"])
def test_a6_files_spoilt_between_the_intent_and_their_renaming(
    name: str, moved: int, offset: int, power_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOBS[name]
    host = create(tmp_path, job, kib=4)
    bring_fresh(host, job)
    kill(lambda: job.run(host), moved, _renames_into(host.local))
    assert intent_path(host.local).exists()
    left = [path for path in _aside(host.local) if path.suffix != ".json"]
    assert left
    for path in left:
        _spoil(path, offset if path.name.startswith("shard") else 0, keep_times=power_lost)
    if power_lost:
        reboot(monkeypatch)

    result = job.run(host)

    assert result.code == 0, result.stderr
    expect_settled(host, job.end)


def _renames_into(local: Path) -> Matching:
    """A file built aside takes its place in LOCAL."""

    def matching(operation: str, path: Path) -> bool:
        return operation == "rename" and path.is_relative_to(local) and STATE_DIRECTORY not in path.parts

    return matching


GARBAGE = ["0", "null", "[1, 2, 3]", '["a", {}, []]', '["a", [], {}]', '[null, {"x": 1}, {"x": 1}]', "[", "", '"abc"']


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", ["seed", "replacement"])
def test_b12_a_record_of_a_built_shard_that_is_garbage(name: str, garbage: str, tmp_path: Path) -> None:
    job = JOBS[name]
    host = create(tmp_path, job, kib=4)
    bring_fresh(host, job)
    kill(lambda: job.run(host), 0, operations("rename", "intent.json"))
    records = _aside(host.local, "shard-", ".json")
    assert records
    for path in records:
        path.write_text(garbage, encoding="utf-8")
    expect_no_lie(host)

    result = job.run(host)

    assert result.code == 0, result.stderr
    expect_settled(host, job.end)


def _as_directory(path: Path) -> None:
    path.unlink()
    (path / "inner").mkdir(parents=True)


def _as_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


OTHER_KINDS: list[Callable[[Path], None]] = [_as_directory, _as_link_to_itself, _as_pipe]


@pytest.mark.parametrize("make", OTHER_KINDS)
@pytest.mark.parametrize("prefix", ["shard-", "file-"])
def test_b12_something_else_in_the_place_of_a_built_file(
    prefix: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    job = JOBS["replacement"]
    host = create(tmp_path, job, kib=4)
    bring_fresh(host, job)
    kill(lambda: job.run(host), 0, operations("rename", "intent.json"))
    for path in _aside(host.local, prefix):
        if path.suffix != ".json":
            make(path)

    result = job.run(host)

    assert result.code == 0, result.stderr
    expect_settled(host, job.end)
