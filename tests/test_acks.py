"""The records of who holds what: what stands in them, under which name, and how they are written."""

import json
import os
import threading
from pathlib import Path

import pytest
import xxhash

from tests.ack_hosts import LOCAL, put, record
from vime_sync import fsio
from vime_sync.acks import (
    Ack,
    AckEngine,
    check_host_name,
    default_host_name,
    make_ack,
    read_acks,
    withdraw_ack,
    write_ack,
)
from vime_sync.errors import LocalIOError, UsageError
from vime_sync.model import LineageEntry, LocalState, VersionKind


def read(directory: Path) -> tuple[Ack, ...]:
    """All records of a directory in which nothing looks wrong."""
    reading = read_acks(directory)
    assert reading.warnings == ()
    return reading.acks


def state(version: int, first: int = 0) -> LocalState:
    kinds = (VersionKind.FULL if first else VersionKind.BASE, *[VersionKind.DELTA] * (version - first))
    numbers = range(first, version + 1)
    lineage = tuple(
        LineageEntry(number, kind, f"id-{number}", "stats") for number, kind in zip(numbers, kinds, strict=True)
    )
    return LocalState(version, lineage, "table", {}, "boot", True, None, None, "anchor")


# ---- the record


def test_a_record_says_what_is_committed_and_where(tmp_path: Path) -> None:
    engines = (
        AckEngine("http://127.0.0.1:8000", "at_version", 2),
        AckEngine("http://h/hook?key=s3cret", "failed", None),
    )
    ack = make_ack("a1", Path(LOCAL), state(2), "00ff", engines)
    path = put(tmp_path, ack)
    assert path.name == f"a1-{xxhash.xxh3_128_hexdigest(b'a1' + bytes(1) + b'/nvme/ckpt')[:12]}.json"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert json.loads(path.read_text()) == {
        "schema": "vime-sync/ack/1",
        "host": "a1",
        "local": "/nvme/ckpt",
        "version": 2,
        "lineage": "00ff",
        "chain": [[0, "id-0"], [1, "id-1"], [2, "id-2"]],
        "engines": [
            {"url": "http://127.0.0.1:8000", "state": "at_version", "version": 2},
            {"url": "http://h/hook", "state": "failed", "version": None},
        ],
        "durable": True,
    }
    assert read(tmp_path) == (ack,)


def test_the_chain_is_cut_at_its_old_end(tmp_path: Path) -> None:
    ack = make_ack("a1", Path(LOCAL), state(1000), "00ff")
    assert [number for number, _ in ack.chain] == list(range(969, 1001))
    assert put(tmp_path, ack).stat().st_size < 4096


def test_it_is_written_only_when_it_says_something_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(fsio, "observer", lambda operation, path: written.append(operation))
    assert write_ack(tmp_path, record("a1", 1))
    assert "sync" not in written and "rename" in written
    written.clear()
    assert not write_ack(tmp_path, record("a1", 1))
    assert written == []
    assert write_ack(tmp_path, record("a1", 2))
    assert [ack.version for ack in read(tmp_path)] == [2]


def test_the_directory_is_made_below_one_that_is_there(tmp_path: Path) -> None:
    put(tmp_path / "acks", record("a1", 1))
    assert [ack.host for ack in read(tmp_path / "acks")] == ["a1"]
    with pytest.raises(LocalIOError) as caught:
        put(tmp_path / "not mounted" / "acks", record("a1", 1))
    assert str(tmp_path / "not mounted") in caught.value.hint and "Mount" in caught.value.hint
    assert not (tmp_path / "not mounted").exists()


def test_two_daemons_of_one_host_do_not_meet(tmp_path: Path) -> None:
    one, other = record("a1", 3, local="/nvme0/ckpt"), record("a1", 4, local="/nvme1/ckpt")
    put(tmp_path, other, one)
    assert read(tmp_path) == (one, other)


def test_32_daemons_write_at_the_same_time(tmp_path: Path) -> None:
    acks = [record("a1", 3, local=f"/nvme/{number:02}") for number in range(32)]
    start = threading.Barrier(len(acks))

    def daemon(ack: Ack) -> None:
        start.wait(60)
        write_ack(tmp_path / "acks", ack)

    threads = [threading.Thread(target=daemon, args=(ack,)) for ack in acks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert read(tmp_path / "acks") == tuple(acks)


@pytest.mark.parametrize("host", ["../../etc/x", "/abs", "..", ".hidden", "a/b", "ü" * 300, "a\0b", "-", "a b\n"])
def test_no_host_name_leads_out_of_the_directory(tmp_path: Path, host: str) -> None:
    directory = tmp_path / "deep" / "acks"
    directory.mkdir(parents=True)
    path = put(directory, record(host, 1))
    assert path.parent == directory and path.is_file() and not path.name.startswith(".")
    assert [ack.host for ack in read(directory)] == [host]
    assert [entry.name for entry in directory.iterdir()] == [path.name]


def test_names_that_look_the_same_once_they_are_file_names_do_not_meet(tmp_path: Path) -> None:
    put(tmp_path, record("a/b", 1), record("a_b", 1), record("a.b", 1))
    assert [ack.host for ack in read(tmp_path)] == ["a.b", "a/b", "a_b"]


def test_a_local_that_is_not_utf8_has_a_record(tmp_path: Path) -> None:
    put(tmp_path, make_ack("a1", Path(os.fsdecode(b"/nvme/\xff")), state(1), "00ff"))
    assert [ack.local for ack in read(tmp_path)] == ["/nvme/\\xff"]


def test_a_fresh_disk_takes_its_old_record_away(tmp_path: Path) -> None:
    put(tmp_path, record("a1", 7), record("a2", 7))
    assert withdraw_ack(tmp_path, "a1", Path(LOCAL))
    assert [ack.host for ack in read(tmp_path)] == ["a2"]
    assert not withdraw_ack(tmp_path, "a1", Path(LOCAL))
    assert not withdraw_ack(tmp_path / "absent", "a1", Path(LOCAL))


def test_a_link_in_the_way_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    directory = tmp_path / "acks"
    path = put(directory, record("a1", 1))
    content = path.read_bytes()
    path.unlink()
    copy = tmp_path / "copy"
    copy.write_bytes(content)
    for target in (precious, copy):  # one has even the right contents
        path.symlink_to(target)
        assert write_ack(directory, record("a1", 1))
        assert not path.is_symlink()
        path.unlink()
    path.with_name(path.name + ".new").symlink_to(precious)
    with pytest.raises(LocalIOError):
        write_ack(directory, record("a1", 1))
    assert precious.read_text() == "mine"


def test_a_record_that_cannot_be_written_is_one_error_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / record("a1", 1).file_name
    path.mkdir()
    with pytest.raises(LocalIOError) as caught:
        write_ack(tmp_path, record("a1", 1))
    assert str(path) in caught.value.message and "--ack-dir" in caught.value.hint


@pytest.mark.parametrize("host", ["", "a,b", "32", " a", "a\nb", "x" * 256])
def test_a_host_name_that_nobody_could_wait_for_is_refused(host: str) -> None:
    with pytest.raises(UsageError):
        check_host_name(host)


def test_ordinary_host_names_are_taken() -> None:
    assert [check_host_name(name) for name in ("a1", "node-3.cluster", "7b")] == ["a1", "node-3.cluster", "7b"]
    assert default_host_name()
