"""`vime-sync wait`: a trainer that goes on when its hosts hold a version, over real records and real shares."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests import toolkit
from tests.ack_hosts import Clock, put, record, serving, wait
from tests.host import expect_error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def acks(tmp_path: Path) -> Path:
    directory = tmp_path / "acks"
    directory.mkdir()
    return directory


# ---- what it waits for


def test_hosts_that_hold_it_already_are_not_waited_for(acks: Path, clock: Clock) -> None:
    put(acks, record("a2", 7), record("a1", 8, local="/nvme1"), record("a1", 7, local="/nvme0"))
    result = wait(acks, 7, 3)
    assert (result.code, clock.slept_s, result.stderr) == (0, [], "")
    document = result.document
    assert document.pop("seconds") == 0
    run1 = {version: toolkit.digest(f"run1-{version}".encode()) for version in (7, 8)}
    assert document == {
        "schema": "vime-sync/wait/1",
        "version": 7,
        "hosts": [
            {"host": "a1", "local": "/nvme0", "version": 7, "lineage": run1[7]},
            {"host": "a1", "local": "/nvme1", "version": 8, "lineage": run1[8]},
            {"host": "a2", "local": "/nvme/ckpt", "version": 7, "lineage": run1[7]},
        ],
    }


def test_the_last_host_is_waited_for_and_seen_within_a_second(acks: Path, clock: Clock) -> None:
    put(acks, record("a1", 7), record("a2", 6))
    clock.at(30, lambda: put(acks, record("a2", 7)))
    result = wait(acks, 7, "a1,a2", "--timeout", "600")
    assert (result.code, [host["host"] for host in result.document["hosts"]]) == (0, ["a1", "a2"])
    assert 30 <= result.document["seconds"] <= 31.2
    assert max(clock.slept_s) <= 0.2 + 1e-9  # a signal is never far away


def test_without_a_timeout_it_waits_on(acks: Path, clock: Clock) -> None:
    clock.at(900, lambda: put(acks, record("a1", 7)))
    assert toolkit.vime("wait", "--ack-dir", acks, "--version", "7", "--hosts", "1").code == 0
    assert clock.now_s >= 900


def test_it_begins_before_the_first_daemon_has_made_the_directory(tmp_path: Path, clock: Clock) -> None:
    clock.at(5, lambda: put(tmp_path / "acks", record("a1", 7)))
    result = wait(tmp_path / "acks", 7, 1, "--timeout", "60")
    assert result.code == 0
    assert result.stderr == f"warning: --ack-dir {tmp_path / 'acks'} is not there yet; " + (
        "waiting for the first host to make it\n"
    )


def test_a_host_that_is_rolled_back_meanwhile_does_not_count_any_more(acks: Path, clock: Clock) -> None:
    put(acks, record("a1", 7), record("a2", 6))
    clock.at(5, lambda: put(acks, record("a1", 6)))
    clock.at(10, lambda: put(acks, record("a2", 7)))
    error = expect_error(wait(acks, 7, 2, "--timeout", "20"), 10, "hosts_behind")
    assert "host a1 (/nvme/ckpt) is at version 6" in error["message"]


def test_served_is_waited_for_too(acks: Path, clock: Clock) -> None:
    put(acks, serving(record("a1", 7), 6))
    assert wait(acks, 7, 1).code == 0
    error = expect_error(wait(acks, 7, 1, "--served"), 10, "hosts_behind")
    assert "host a1 (/nvme/ckpt) holds version 7, but engine http://127.0.0.1:8000 is at version 6" in error["message"]
    clock.at(clock.now_s + 5, lambda: put(acks, serving(record("a1", 7))))
    assert wait(acks, 7, 1, "--served", "--timeout", "60").code == 0


# ---- when it gives up


def test_when_the_time_is_over_it_names_who_lacks_what(acks: Path, clock: Clock) -> None:
    put(acks, record("a1", 6), record("a2", 5))
    result = wait(acks, 6, "a1,a2,a7,a9", "--timeout", "12.5")
    error = expect_error(result, 10, "hosts_behind")
    assert error["message"] == (
        "version 6: after 12.5 s 1 host holds it: host a2 (/nvme/ckpt) is at version 5; hosts a7, a9 have no record"
    )
    assert (error["version"], error["retryable"]) == (6, True)
    assert 12.5 <= clock.now_s < 12.7


def test_a_record_that_looks_wrong_is_named_once_and_why_it_is_waited_for_is_seen(acks: Path, clock: Clock) -> None:
    path = put(acks, record("a1", 7))
    path.write_bytes(path.read_bytes()[:40])
    result = wait(acks, 7, 1, "--timeout", "30")
    expect_error(result, 10, "hosts_behind")
    assert result.stderr.count(path.name) == 1 and "not counted" in result.stderr
    assert result.error["message"].endswith("no host holds it: 1 more host has no record")


def test_a_half_written_record_does_not_hurt(acks: Path, clock: Clock) -> None:
    path = put(acks, record("a1", 7))
    path.rename(path.with_name(path.name + ".new"))
    clock.at(3, lambda: put(acks, record("a1", 7)))
    result = wait(acks, 7, 1, "--timeout", "30")
    assert (result.code, result.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once(acks: Path, clock: Clock, number: signal.Signals) -> None:
    clock.at(5, lambda: os.kill(os.getpid(), number))
    result = toolkit.vime("wait", "--ack-dir", acks, "--version", "7", "--hosts", "1")
    assert (result.code, result.error["id"]) == (128 + number, "interrupted")
    assert clock.now_s <= 5.5


# ---- hosts that do not fit together


def test_other_weights_under_one_version_end_the_wait(acks: Path, clock: Clock) -> None:
    put(acks, record("a1", 7), record("a2", 7, lineage="bad"), record("a3", 5))
    error = expect_error(wait(acks, 7, 3, "--timeout", "60"), 13, "hosts_disagree")
    assert "host a1 (/nvme/ckpt) and host a2 (/nvme/ckpt)" in error["message"] and "version 7" in error["message"]
    assert (error["version"], error["retryable"], clock.slept_s) == (7, False, [])


def test_hosts_on_their_way_from_an_old_stream_are_waited_for(acks: Path, clock: Clock) -> None:
    put(acks, record("a1", 3, stream="new"), record("a2", 3, stream="old"))
    clock.at(4, lambda: put(acks, record("a2", 3, stream="new")))
    assert wait(acks, 3, "a1,a2", "--timeout", "60").code == 0
    assert clock.now_s >= 4


# ---- how it is asked and answers


def test_what_is_asked_wrongly_is_refused(acks: Path, tmp_path: Path, clock: Clock) -> None:
    put(acks, record("a1", 7))
    (tmp_path / "file").write_text("")
    for result in (
        wait(acks, 7, 0),
        wait(acks, 7, "a1,,a2"),
        wait(acks, "seven", 1),
        wait(acks, -7, 1),
        wait(acks, 7, 1, "--timeout", "-1"),
        wait(acks, 7, 1, "--timeout", "nan"),
        wait(tmp_path / "file", 7, 1),
        toolkit.vime("wait", "--ack-dir", acks, "--version", "7"),
        toolkit.vime("wait", "--version", "7", "--hosts", "1"),
    ):
        expect_error(result, 2, "usage")
    assert clock.slept_s == []


def test_a_directory_that_may_not_be_read_is_the_operators_move(
    acks: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    error = expect_error(wait(acks, 7, 1), 21, "local_io")
    assert error["message"] == f"listing --ack-dir {acks}: Permission denied"


def test_in_words(acks: Path, clock: Clock) -> None:
    put(acks, record("a1", 6), record("a2", 8))
    clock.at(3, lambda: put(acks, record("a1", 7)))
    command = ("wait", "--ack-dir", acks, "--version", "7", "--hosts", "2", "--timeout", "60")
    result = toolkit.vime_plain(*command, "--verbose")
    assert result.stdout == (
        "version 7: held by 2 of what --ack-dir shows\n  a1 (/nvme/ckpt): version 7\n  a2 (/nvme/ckpt): version 8\n"
    )
    first, last = result.stderr.splitlines()
    assert first == "info: waiting for version 7: host a1 (/nvme/ckpt) is at version 6"
    assert re.fullmatch(r"info: looked \d times in [\d.]+ s", last)
    assert toolkit.vime_plain(*command, "--quiet").stdout == ""
    assert json.loads(toolkit.vime_plain(*command, "--json").stdout)["version"] == 7


def test_help_ends_with_examples_and_exit_codes() -> None:
    text = toolkit.vime_plain("wait", "--help", env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}).stdout
    assert text.count("\n  vime-sync wait ") + text.count("\n    vime-sync wait ") >= 2
    assert re.findall(r"^    (\d+|128\+n) ", text.split("Exit codes:\n")[1], re.MULTILINE) == [
        "0", "1", "2", "10", "13", "21", "128+n",
    ]  # fmt: skip
    assert max(map(len, text.splitlines())) <= 80
