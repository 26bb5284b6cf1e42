"""What fuzzing LOCAL's records found, one story each: one that parses and is wrong is not believed (promises 1, 2, 5).

A spoilt record costs hashing at most. It never ends a command as a bug of ours, never leads out of LOCAL, and never has
a version called whole that is not.
"""

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import JOBS, bring_fresh, create
from tests.kill_points import PULL_THREADS, kill, no_disk_waits, operations, shard_writes
from tests.toolkit import STATE_DIRECTORY

Change = Callable[[dict[str, Any]], None]
INFINITE = float("inf")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _record(host: Host, name: str) -> Path:
    return host.local / STATE_DIRECTORY / name


def _change(host: Host, name: str, change: Change) -> None:
    path = _record(host, name)
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def _at_rest(root: Path) -> Host:
    """At version 2 of 3, with what a pass in place keeps; another base's worth of records."""
    host = create(root, JOBS["folded"], kib=4)
    bring_fresh(host, JOBS["folded"])
    host.pulled(*PULL_THREADS, version=2)
    return host


def _applying(root: Path) -> Host:
    host = create(root, JOBS["apply"], kib=4)
    bring_fresh(host, JOBS["apply"])
    kill(lambda: JOBS["apply"].run(host), 1, shard_writes(host.local))
    return host


def _replacing(root: Path) -> Host:
    host = create(root, JOBS["replacement"], kib=4)
    bring_fresh(host, JOBS["replacement"])
    kill(lambda: JOBS["replacement"].run(host), 1, operations("rename", ".safetensors"))
    return host


def _heals(host: Host, version: int) -> None:
    for command in (("status",), ("status", "--shared", str(host.shared)), ("verify",)):
        told = toolkit.vime(*command, "--local", host.local)
        assert "Traceback" not in told.stderr, told.stderr
    result = host.pull(*PULL_THREADS, version=version)
    assert "Traceback" not in result.stderr, result.stderr
    assert result.code == 0, result.stderr
    host.expect_local(version)
    assert toolkit.vime("verify", "--local", host.local).code == 0


# ---- what would lead out of LOCAL


@pytest.mark.parametrize("name", ["../canary", "sub/../../canary", "{root}/canary"])
def test_a_list_of_our_files_that_names_one_outside_removes_nothing_there(name: str, tmp_path: Path) -> None:
    host = create(tmp_path, JOBS["replacement"], kib=4)
    bring_fresh(host, JOBS["replacement"])
    canary = tmp_path / "canary"
    canary.write_bytes(b"mine")
    _change(host, "owner.json", lambda document: document["files"].append(name.format(root=tmp_path)))
    host.pull(*PULL_THREADS, version=2)
    assert canary.exists() and canary.read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["../canary", "{root}/canary"])
def test_an_intent_whose_file_lies_outside_puts_nothing_there(name: str, tmp_path: Path) -> None:
    host = _replacing(tmp_path)
    canary = tmp_path / "canary"
    canary.write_bytes(b"mine")
    outside = name.format(root=tmp_path)

    def change(document: dict[str, Any]) -> None:
        document["moves"][outside] = document["moves"].pop("config.json")
        document["state"]["stats"][outside] = document["state"]["stats"].pop("config.json")

    _change(host, "intent.json", change)
    result = host.pull(*PULL_THREADS, version=2)
    assert canary.read_bytes() == b"mine"
    assert "Traceback" not in result.stderr, result.stderr


def test_an_intent_whose_tensor_lies_in_a_file_outside_writes_nothing_there(tmp_path: Path) -> None:
    host = _applying(tmp_path)
    canary = tmp_path / "canary.safetensors"
    shutil.copy(next(iter(sorted(host.local.glob("*.safetensors")))), canary)
    before = canary.read_bytes()

    def change(document: dict[str, Any]) -> None:
        for work in document["work"]:
            work[1][0] = "../canary.safetensors"

    _change(host, "intent.json", change)
    result = host.pull(*PULL_THREADS, version=2)
    assert canary.read_bytes() == before
    assert "Traceback" not in result.stderr, result.stderr


# ---- what would have a version called whole that is not


@pytest.mark.parametrize("offset", [0, 128, 300, 10**6])
@pytest.mark.parametrize("version", [1, 2])
def test_an_intent_with_a_tensor_in_another_place(offset: int, version: int, tmp_path: Path) -> None:
    host = _applying(tmp_path)

    def change(document: dict[str, Any]) -> None:
        document["work"][0][1][1] = offset

    _change(host, "intent.json", change)
    _heals(host, version)


def test_a_kept_pass_that_has_lost_its_tensors_takes_nothing_back(tmp_path: Path) -> None:
    host = _at_rest(tmp_path)
    _change(host, "kept/intent.json", lambda document: document.update(work=[]))
    _heals(host, 1)


def test_an_intent_that_has_lost_its_tensors(tmp_path: Path) -> None:
    host = _applying(tmp_path)
    _change(host, "intent.json", lambda document: document.update(work=[]))
    _heals(host, 2)


def test_an_intent_that_has_lost_its_files(tmp_path: Path) -> None:
    host = _replacing(tmp_path)
    _change(host, "intent.json", lambda document: document.update(moves={}))
    _heals(host, 2)


def test_a_state_that_has_lost_its_files(tmp_path: Path) -> None:
    """Nothing says any more that bytes which rotted meanwhile were ever proven."""
    host = _at_rest(tmp_path)
    _change(host, "state.json", lambda document: document["vime_sync"].update(stats={}))
    shard = next(iter(sorted(host.local.glob("*.safetensors"))))
    rotten = bytearray(shard.read_bytes())
    rotten[-1] ^= 1
    shard.write_bytes(rotten)
    _heals(host, 3)


# ---- what would end a command as a bug of ours, for ever


STATES: list[dict[str, Any]] = [
    {"table": "a\0b"}, {"table": "\ud800"}, {"anchor_table": "a\0b"}, {"anchor_table": "../x"}, {"share": 5},
    {"share": "a\0b"}, {"share": "\ud800"}, {"base": [1]}, {"base": "\0"}, {"damaged": [1, None]}, {"damaged": [[1]]},
    {"damaged": "abc"}, {"damaged": ["nosuch"]}, {"damaged": ["\ud800"]}, {"stats": {"a\0b": [1, 2, 3, 4]}},
    {"stats": {"\ud800": [1, 2, 3, 4]}}, {"stats": {"../x": [1, 2, 3, 4]}}, {"repairs": INFINITE},
    {"lineage": [[INFINITE, "base", "x", "y"]]}, {"lineage": [[0, "base", "\ud800", "y"]]},
]  # fmt: skip


@pytest.mark.parametrize("fields", STATES, ids=[repr(fields)[:40] for fields in STATES])
def test_a_state_that_parses_and_makes_no_sense(fields: dict[str, Any], tmp_path: Path) -> None:
    host = _at_rest(tmp_path)
    _change(host, "state.json", lambda document: document["vime_sync"].update(fields))
    _heals(host, 3)


def test_a_state_with_one_letter_of_a_files_name_flipped(tmp_path: Path) -> None:
    host = _at_rest(tmp_path)
    path = _record(host, "state.json")
    path.write_bytes(path.read_bytes().replace(b'"tokenizer.json"', b'"uokenizer.json"'))
    _heals(host, 3)


MANIFESTS = [
    '{"files": ["a\\u0000b"]}', '{"files": ["\\ud800"]}', '{"files": [""]}', '{"files": ["."]}', '{"files": 1}',
    '{"files": ["' + "x" * 300 + '"]}', '{"files": ["' + "d/" * 3000 + '"]}', "[" * 100_000, "", "\0",
]  # fmt: skip


@pytest.mark.parametrize("text", MANIFESTS, ids=range(len(MANIFESTS)))
def test_a_list_of_our_files_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    host = create(tmp_path, JOBS["replacement"], kib=4)
    bring_fresh(host, JOBS["replacement"])
    _record(host, "owner.json").write_text(text, encoding="utf-8")
    _heals(host, 2)


def _set(*path: Any, to: Any) -> Change:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


INTENTS = [
    _set("block_bytes", to=INFINITE), _set("block_bytes", to=0), _set("block_bytes", to=1.5), _set("origin", to=None),
    _set("origin", "stats", to={"x": [INFINITE, 1, 1, 1]}), _set("work", 0, 0, to="nosuch"), _set("work", 0, 0, to=7),
    _set("work", 0, 1, 0, to="a\0b"), _set("work", 0, 1, 0, to="nosuch.safetensors"), _set("work", 0, 1, 2, to=10**15),
    _set("work", 0, 1, 2, to=-1), _set("work", 0, 1, 2, to=2.5), _set("work", 0, 5, 0, 0, to=2**31),
    _set("work", 0, 5, 0, 0, to=None), _set("work", 0, 5, 0, 1, to=10**15), _set("work", 0, 5, 0, 2, to=1),
    _set("work", 0, 5, 0, 3, to=10**30), _set("work", 0, 2, to=None), _set("work", 0, 4, to="zz"),
    _set("steps", to=[]), _set("steps", 0, 0, to=9), _set("steps", 0, 3, to=True),
    _set("lineage", to=[[9, "full", "x", "y"]]),
]  # fmt: skip


@pytest.mark.parametrize("change", INTENTS, ids=range(len(INTENTS)))
def test_an_intent_that_parses_and_makes_no_sense(change: Change, tmp_path: Path) -> None:
    host = _applying(tmp_path)
    _change(host, "intent.json", change)
    _heals(host, 2)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": 1e999}', "\ud800", '{"schema": "vime-sync/replace-intent/1"}']
)
def test_an_intent_that_is_none(text: str, tmp_path: Path) -> None:
    host = _applying(tmp_path)
    _record(host, "intent.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    _heals(host, 2)


HOLDERS = ["[" * 100_000, '{"pid": 1e999, "since": "x"}', '{"pid": -1, "since": "a\\nb"}', '{"pid": 1}', "[]", "\0"]


@pytest.mark.parametrize("text", HOLDERS, ids=range(len(HOLDERS)))
def test_a_holder_that_makes_no_sense_is_told_all_the_same(text: str, tmp_path: Path) -> None:
    """Somebody else holds the lock: 20, whatever stands in the file beside it."""

    host = _at_rest(tmp_path)
    with _record(host, "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _record(host, "holder.json").write_text(text, encoding="utf-8")
        result = host.pull()
    assert (result.code, result.error.get("id")) == (20, "lock_held"), result.stderr[-500:]
    assert "\n" not in result.error["message"]


TROUBLES = ['{"a": 1}', '{"message": [1], "id": {}}', "[" * 100_000, '{"id": "x", "message": "\\ud800"}']


@pytest.mark.parametrize("text", TROUBLES, ids=range(len(TROUBLES)))
def test_a_remembered_error_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    host = _at_rest(tmp_path)
    _record(host, "last_error.json").write_text(text, encoding="utf-8")
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
    host = _at_rest(tmp_path)
    _record(host, "engines.json").write_text(
        f'{{"schema": "vime-sync/engines/1", "engines": {text}}}', encoding="utf-8"
    )
    for arguments in ((), ("--json",)):
        told = toolkit.vime_plain("status", "--local", host.local, *arguments)
        assert told.code == 0, told.stderr[-500:]
    result = host.pull("--engine", "vllm=http://127.0.0.1:9")
    assert "Traceback" not in result.stderr, result.stderr[-800:]
    assert result.code in (30, 31, 32)
