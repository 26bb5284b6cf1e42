"""What fuzzing LOCAL's records found, one story each: one that parses and is wrong is not believed (promises 1, 2, 5).

A spoilt record costs hashing at most. It never ends a command as a bug of ours, never leads out of LOCAL, and never has
a version called whole that is not.
"""

import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.kill_jobs import JOBS, bring_fresh, create
from tests.kill_points import PULL_THREADS, no_disk_waits
from tests.records_story import INTENTS, STATES, applying, at_rest, change_record, heals, record, replacing
from tests.sealed import Change


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


# ---- what would lead out of LOCAL


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("name", ["../canary", "sub/../../canary", "{root}/canary"])
def test_a_list_of_our_files_that_names_one_outside_removes_nothing_there(
    name: str, made: bool, tmp_path: Path
) -> None:
    host = create(tmp_path, JOBS["replacement"], kib=4)
    bring_fresh(host, JOBS["replacement"])
    canary = tmp_path / "canary"
    canary.write_bytes(b"mine")
    change_record(host, "owner.json", lambda document: document["files"].append(name.format(root=tmp_path)), made=made)
    host.pull(*PULL_THREADS, version=2)
    assert canary.exists() and canary.read_bytes() == b"mine"


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("name", ["../canary", "{root}/canary"])
def test_an_intent_whose_file_lies_outside_puts_nothing_there(name: str, made: bool, tmp_path: Path) -> None:
    host = replacing(tmp_path)
    canary = tmp_path / "canary"
    canary.write_bytes(b"mine")
    outside = name.format(root=tmp_path)

    def change(document: dict[str, Any]) -> None:
        document["moves"][outside] = document["moves"].pop("config.json")
        document["state"]["stats"][outside] = document["state"]["stats"].pop("config.json")

    change_record(host, "intent.json", change, made=made)
    result = host.pull(*PULL_THREADS, version=2)
    assert canary.read_bytes() == b"mine"
    assert "Traceback" not in result.stderr, result.stderr


@pytest.mark.parametrize("made", [False, True])
def test_an_intent_whose_tensor_lies_in_a_file_outside_writes_nothing_there(made: bool, tmp_path: Path) -> None:
    host = applying(tmp_path)
    canary = tmp_path / "canary.safetensors"
    shutil.copy(next(iter(sorted(host.local.glob("*.safetensors")))), canary)
    before = canary.read_bytes()

    def change(document: dict[str, Any]) -> None:
        for work in document["work"]:
            work[1][0] = "../canary.safetensors"

    change_record(host, "intent.json", change, made=made)
    result = host.pull(*PULL_THREADS, version=2)
    assert canary.read_bytes() == before
    assert "Traceback" not in result.stderr, result.stderr


# ---- what would have a version called whole that is not


@pytest.mark.parametrize("offset", [0, 128, 300, 10**6])
@pytest.mark.parametrize("version", [1, 2])
def test_an_intent_with_a_tensor_in_another_place(offset: int, version: int, tmp_path: Path) -> None:
    host = applying(tmp_path)

    def change(document: dict[str, Any]) -> None:
        document["work"][0][1][1] = offset

    change_record(host, "intent.json", change)
    heals(host, version)


def test_a_kept_pass_that_has_lost_its_tensors_takes_nothing_back(tmp_path: Path) -> None:
    host = at_rest(tmp_path)
    change_record(host, "kept/intent.json", lambda document: document.update(work=[]))
    heals(host, 1)


def test_an_intent_that_has_lost_its_tensors(tmp_path: Path) -> None:
    host = applying(tmp_path)
    change_record(host, "intent.json", lambda document: document.update(work=[]))
    heals(host, 2)


@pytest.mark.parametrize("made", [False, True])
def test_an_intent_that_has_lost_its_files(made: bool, tmp_path: Path) -> None:
    host = replacing(tmp_path)
    change_record(host, "intent.json", lambda document: document.update(moves={}), made=made)
    heals(host, 2)


def test_a_state_that_has_lost_its_files(tmp_path: Path) -> None:
    """Nothing says any more that bytes which rotted meanwhile were ever proven."""
    host = at_rest(tmp_path)
    change_record(host, "state.json", lambda document: document["vime_sync"].update(stats={}))
    shard = next(iter(sorted(host.local.glob("*.safetensors"))))
    rotten = bytearray(shard.read_bytes())
    rotten[-1] ^= 1
    shard.write_bytes(rotten)
    heals(host, 3)


# ---- what would end a command as a bug of ours, for ever


@pytest.mark.parametrize("fields", STATES[::5], ids=[repr(fields)[:40] for fields in STATES[::5]])
def test_a_state_that_parses_and_makes_no_sense(fields: dict[str, Any], tmp_path: Path) -> None:
    host = at_rest(tmp_path)
    change_record(host, "state.json", lambda document: document["vime_sync"].update(fields))
    heals(host, 3)


def test_a_state_with_one_letter_of_a_files_name_flipped(tmp_path: Path) -> None:
    host = at_rest(tmp_path)
    path = record(host, "state.json")
    path.write_bytes(path.read_bytes().replace(b'"tokenizer.json"', b'"uokenizer.json"'))
    heals(host, 3)


MANIFESTS = [
    '{"files": ["a\\u0000b"]}', '{"files": ["\\ud800"]}', '{"files": [""]}', '{"files": ["."]}', '{"files": 1}',
    '{"files": ["' + "x" * 300 + '"]}', '{"files": ["' + "d/" * 3000 + '"]}', "[" * 100_000, "", "\0",
]  # fmt: skip


@pytest.mark.parametrize("text", MANIFESTS, ids=range(len(MANIFESTS)))
def test_a_list_of_our_files_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    host = create(tmp_path, JOBS["replacement"], kib=4)
    bring_fresh(host, JOBS["replacement"])
    record(host, "owner.json").write_text(text, encoding="utf-8")
    heals(host, 2)


# Without a seal that fits all are alike; those of them that are made are in test_fuzz_made_records.py.
@pytest.mark.parametrize("change", INTENTS[::5], ids=range(len(INTENTS[::5])))
def test_an_intent_that_parses_and_makes_no_sense(change: Change, tmp_path: Path) -> None:
    host = applying(tmp_path)
    change_record(host, "intent.json", change)
    heals(host, 2)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": 1e999}', "\ud800", '{"schema": "vime-sync/replace-intent/1"}']
)
def test_an_intent_that_is_none(text: str, tmp_path: Path) -> None:
    host = applying(tmp_path)
    record(host, "intent.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    heals(host, 2)


HOLDERS = ["[" * 100_000, '{"pid": 1e999, "since": "x"}', '{"pid": -1, "since": "a\\nb"}', '{"pid": 1}', "[]", "\0"]


@pytest.mark.parametrize("text", HOLDERS, ids=range(len(HOLDERS)))
def test_a_holder_that_makes_no_sense_is_told_all_the_same(text: str, tmp_path: Path) -> None:
    """Somebody else holds the lock: 20, whatever stands in the file beside it."""

    host = at_rest(tmp_path)
    with record(host, "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record(host, "holder.json").write_text(text, encoding="utf-8")
        result = host.pull()
    assert (result.code, result.error.get("id")) == (20, "lock_held"), result.stderr[-500:]
    assert "\n" not in result.error["message"]


TROUBLES = ['{"a": 1}', '{"message": [1], "id": {}}', "[" * 100_000, '{"id": "x", "message": "\\ud800"}']


@pytest.mark.parametrize("text", TROUBLES, ids=range(len(TROUBLES)))
def test_a_remembered_error_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    host = at_rest(tmp_path)
    record(host, "last_error.json").write_text(text, encoding="utf-8")
    for arguments in ((), ("--json",)):
        told = toolkit.vime_plain("status", "--local", host.local, *arguments)
        assert told.code == 0, told.stderr[-500:]


ENGINES = [
    '{"vllm=http://127.0.0.1:9": {"weights": null, "told": [], "open": 1, "leave_paused": 2, "error": [1]}}',
    '{"\\ud800": {"weights": [1, 2, 3], "told": 1, "open": 1, "leave_paused": 2, "error": "\\ud800", "error_id": 0}}',
    '{"": {"weights": [1e999, 2, 3], "told": 1, "open": 1, "leave_paused": 2, "error": "x", "error_id": "nosuch"}}',
    '{"vllm=http://127.0.0.1:9": {"weights": [1, 2], "told": null, "open": 0, "leave_paused": 0, "error": "x"}}',
]  # fmt: skip


@pytest.mark.parametrize("text", ENGINES, ids=range(len(ENGINES)))
def test_remembered_engines_that_make_no_sense(text: str, tmp_path: Path) -> None:
    """The engine is away: 30, and not a bug of ours."""
    host = at_rest(tmp_path)
    record(host, "engines.json").write_text(f'{{"schema": "vime-sync/engines/1", "engines": {text}}}', encoding="utf-8")
    for arguments in ((), ("--json",)):
        told = toolkit.vime_plain("status", "--local", host.local, *arguments)
        assert told.code == 0, told.stderr[-500:]
    result = host.pull("--engine", "vllm=http://127.0.0.1:9")
    assert "Traceback" not in result.stderr, result.stderr[-800:]
    assert result.code in (30, 31, 32)
