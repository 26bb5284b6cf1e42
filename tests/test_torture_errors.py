"""FIELD_GUIDE H6, S15: an error of the operating system at every read and write of every job, and of its recovery.

`test_field_errors.py` fails every durable operation of ours; here the calls themselves fail, those that only read too:
in the share, in the base and in LOCAL; with an error number or with fewer bytes than asked for; once and for good.
More of it with ERROR_BLOWS=500 in the environment (dealt ones of each job), or scripts/torture --minutes.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.error_story import PLACES, Blow, ErrorStory
from tests.fault_calls import READ_FAULTS, WRITE_FAULTS, Fault, FaultyCalls
from tests.kill_jobs import JOBS

_JOBS = ("apply", "folded", "undo", "seed", "replacement", "replacement_in_place", "rollback", "repair", "identify")
_DEALT = int(os.environ.get("ERROR_BLOWS", "8"))
_SHARE = 4  # every so manieth call of a job is struck, others in each job; no divisor of how many faults there are


def _blows(story: ErrorStory, turn: int) -> Iterator[Blow]:
    for place in PLACES:
        for writes in (False, True):
            yield from story.every(place, writes=writes, turn=turn)[turn % _SHARE :: _SHARE]
    for number in range(_DEALT):
        yield story.deal(number)


@pytest.mark.parametrize("name", _JOBS)
def test_h06_s15_an_error_at_any_call(name: str, tmp_path: Path) -> None:
    story = ErrorStory(tmp_path, name)
    for blow in _blows(story, _JOBS.index(name)):
        story.strike(blow)
    assert story.met["errors"] > 40
    kinds = {fault.name for fault in (*READ_FAULTS, *WRITE_FAULTS)}
    assert {name for name in kinds if story.met[f"errors {name}"]} == kinds


def test_the_jobs_read_and_write_where_these_tests_think(tmp_path: Path) -> None:
    """Each job reads LOCAL and the share and writes LOCAL, and never writes anywhere else (promise 4)."""
    for name in JOBS:
        story = ErrorStory(tmp_path / name, name)
        assert story.total("shared", writes=False) > 10
        assert story.total("local", writes=False) > 10
        assert story.total("local", writes=True) > 10
        assert story.total("shared", writes=True) == 0
        assert story.total("base", writes=True) == 0


def test_a_blow_is_told_by_one_word(tmp_path: Path) -> None:
    for blow in (
        Blow("shared", False, 7, Fault.ESTALE, False),
        Blow("local", True, 0, Fault.FULL_WRITE, True, killed_at=12),
    ):
        assert Blow.parse(str(blow)) == blow


def test_a_short_write_is_what_it_says(tmp_path: Path) -> None:
    """The harness itself: half the bytes arrive, and for the disk that is full an error follows."""
    path = tmp_path / "file"
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    try:
        with FaultyCalls(tmp_path, writes=True, at=0, fault=Fault.SHORT_WRITE):
            assert os.pwrite(descriptor, b"0123", 0) == 2
            assert os.pwrite(descriptor, b"23", 2) == 2
        with FaultyCalls(tmp_path, writes=True, at=0, fault=Fault.FULL_WRITE), pytest.raises(OSError, match="space"):
            os.pwrite(descriptor, b"abcd", 0)
        assert path.read_bytes() == b"ab23"
        with FaultyCalls(tmp_path, writes=False, at=0, fault=Fault.SHORT_READ):
            assert os.pread(descriptor, 4, 0) == b"ab"
            assert os.pread(descriptor, 4, 0) == b"ab23"
    finally:
        os.close(descriptor)
