"""FIELD_GUIDE H12: two processes at once on one LOCAL never do anything by turns, whoever of them is ours.

More of it with MEETINGS=100 in the environment, or scripts/torture.
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.kill_jobs import KILL_JOBS
from tests.torture_two import TwoStory
from tests.two_processes import expect_no_turns

_MEETINGS = int(os.environ.get("MEETINGS", "6"))
_JOBS = ("apply", "seed", "rollback", "repair") if _MEETINGS == 6 else KILL_JOBS


def test_h12_two_processes_never_do_anything_by_turns(tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    for number, name in enumerate(_JOBS):
        with TwoStory(tmp_path / name, name, ("few", "many")[number % 2]) as story:
            for meeting in range(_MEETINGS):
                story.meet(meeting)
            met.update(story.met)
    assert met["met while the other held the lock"] > len(_JOBS)
    assert any("a peer" in name for name in met)


def test_what_is_done_by_turns_is_seen(tmp_path: Path) -> None:
    """The check itself can fail."""
    notes = tmp_path / "notes"
    ours = ["7 starts \n", "7 create /l/.weight_sync/holder.json.new\n", "7 write /l/a\n", "7 write /l/b\n"]
    theirs = ["8 starts \n", "8 locked /l\n", "8 peer writes a\n"]
    notes.write_text("".join([*ours, *theirs]), encoding="utf-8")
    assert expect_no_turns(notes)["had the lock"] == 2
    notes.write_text("".join([*ours[:3], *theirs, ours[3]]), encoding="utf-8")
    with pytest.raises(AssertionError, match="by turns"):
        expect_no_turns(notes)
