"""Records of LOCAL that somebody has made: their seals fit, and what they say makes no sense all the same.

Such a record is not believed either, and costs no more than one that is spoilt.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kill_jobs import JOBS, bring_fresh, create
from tests.kill_points import PULL_THREADS, kill, no_disk_waits, operations
from tests.records_story import INTENTS, STATES, applying, at_rest, change_record, heals, put, record
from tests.sealed import Change
from tests.toolkit import STATE_DIRECTORY
from vime_sync.local.intent import read_intent
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import read_state


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _made_intents() -> list[Change]:
    """Those of above, and more, that say by themselves that they make no sense."""
    return [
        *(change for number, change in enumerate(INTENTS) if number not in _BESIDE_THE_HEADERS),
        put("work", 0, 5, 0, 5, to="g" * 32), put("work", 0, 3, to="md5"), put("steps", 0, 1, to="full"),
        put("origin", "table", to="../../config.json"), put("origin", "stats", to={}), put("origin_version", to=7),
        put("block_bytes", to=True), put("forward_only", to=0), put("boot_id", to="a\nb"), put("boot_id", to=None),
        lambda document: document["work"].append(document["work"][0]),
        lambda document: document["work"][1].__setitem__(1, document["work"][0][1]),
    ]  # fmt: skip


# Their names and places make sense in themselves: tests/test_made_records.py.
_BESIDE_THE_HEADERS = {5, 14}


@pytest.mark.parametrize("change", _made_intents(), ids=range(len(_made_intents())))
def test_an_intent_that_was_made_and_makes_no_sense(change: Change, tmp_path: Path) -> None:
    host = applying(tmp_path)
    change_record(host, "intent.json", change, made=True)
    with pytest.raises(ValueError, match=r"intent\.json"):
        read_intent(LocalPaths(host.local))
    heals(host, 2)


MADE_STATES = [fields for fields in STATES if fields != {"damaged": ["nosuch"]}]


@pytest.mark.parametrize("fields", MADE_STATES, ids=[repr(fields)[:40] for fields in MADE_STATES])
def test_a_state_that_was_made_and_makes_no_sense(fields: dict[str, Any], tmp_path: Path) -> None:
    host = at_rest(tmp_path)
    change_record(host, "state.json", lambda document: document["vime_sync"].update(fields), made=True)
    assert read_state(LocalPaths(host.local)).state is None
    heals(host, 3)


def test_a_record_that_says_nothing_new_is_whole(tmp_path: Path) -> None:
    """The control: what is refused above is not refused for its seal."""
    host = applying(tmp_path)
    change_record(host, "intent.json", lambda document: None, made=True)
    assert read_intent(LocalPaths(host.local)) is not None
    host = at_rest(tmp_path / "other")
    change_record(host, "state.json", lambda document: None, made=True)
    assert read_state(LocalPaths(host.local)).state is not None


def test_a_list_of_our_files_that_is_spoilt_in_the_middle_of_a_replacement(tmp_path: Path) -> None:
    """The intent lists them too: what the new version lacks goes, what the user put there stays (promises 2, 5)."""
    host = create(tmp_path, JOBS["replacement"], kib=4)
    bring_fresh(host, JOBS["replacement"])
    change_record(host, "owner.json", lambda document: document["files"].append("old.bin"), made=True)
    (host.local / "old.bin").write_bytes(b"ours, of a version before")
    (host.local / "notes.txt").write_bytes(b"mine")
    kill(lambda: JOBS["replacement"].run(host), 1, operations("rename", ".safetensors"))
    (host.local / "old.bin").write_bytes(b"ours, of a version before")
    record(host, "owner.json").write_bytes(b"\0")
    heals(host, 2)
    assert not (host.local / "old.bin").exists()
    assert (host.local / "notes.txt").read_bytes() == b"mine"
    assert json.loads(record(host, "owner.json").read_bytes())["files"] == sorted(
        str(path.relative_to(host.local)) for path in host.local.rglob("*")
        if path.is_file() and STATE_DIRECTORY not in path.parts and path.name != "notes.txt"
    )  # fmt: skip


@pytest.mark.parametrize("made", [False, True])
def test_a_shard_of_the_users_outlives_a_spoilt_state(made: bool, tmp_path: Path) -> None:
    """In a directory of ours a state that cannot be read is not the peers', and so neither are the files in it."""
    host = at_rest(tmp_path)
    mine = host.local / "mine.safetensors"
    mine.write_bytes(b"mine")
    change_record(host, "state.json", lambda document: document.update(version="000001"), made=made)
    assert host.pull(*PULL_THREADS, version=3).code == 0
    assert mine.read_bytes() == b"mine"
    mine.unlink()
    host.expect_local(3)
