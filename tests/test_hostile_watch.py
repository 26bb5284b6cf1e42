"""A share that hangs, a log that cannot be written, pins, records and directories of others: what the daemon does.

Its engines, its signals and what it tells to others wait for nothing of that, and it tells no more than what is here.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.daemon_story import ROOT, RunningDaemon, eventually, running, small_host, state_of, version_of
from tests.engine_story import Story, is_paused
from tests.fake_engine import Fault
from tests.fake_stories import ask
from tests.fake_vllm import FakeVllm
from tests.host import Host
from tests.toolkit_command import Result, vime_plain
from vime_sync.cli import watch as command
from vime_sync.daemon import board as boards
from vime_sync.daemon import loop
from vime_sync.daemon.board import Board, EngineView, Snapshot
from vime_sync.errors import UsageError
from vime_sync.local.paths import LocalPaths
from vime_sync.reconcile.glance import take_glance


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = small_host(tmp_path)
    made.publish()
    return made


class Share:
    """Looks at it can hang, as on a mount whose server is gone; `met` is set once one does."""

    def __init__(self) -> None:
        self.met, self._answers = threading.Event(), threading.Event()
        self.answer()

    def is_gone(self) -> None:
        self._answers.clear()

    def hang(self) -> None:
        self.is_gone()
        assert self.met.wait(30)

    def answer(self) -> None:
        self._answers.set()

    def wait(self) -> None:
        if not self._answers.is_set():
            self.met.set()
            self._answers.wait()


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> Iterator[Share]:
    made = Share()

    def look(paths: LocalPaths, place: Path | None, *others: Any) -> Any:
        if place is not None:
            made.wait()
        return take_glance(paths, place, *others)

    monkeypatch.setattr(loop, "take_glance", look)
    monkeypatch.setattr(loop, "_PATIENCE_S", 0.01, raising=False)
    yield made
    made.answer()


def wait_for_host(acks: Path, version: int, *options: str) -> Result:
    """One look at the records."""
    return vime_plain("wait", "--ack-dir", acks, "--version", str(version), "--hosts", "a", "--timeout", "0", *options)


def at_rest(daemon: RunningDaemon, host: Host) -> None:
    """Nothing is under way, in the background neither."""
    eventually(lambda: state_of(host).get("durable"), "a durable version")
    daemon.wait_for_looks(2)


# ---- a share that hangs


def test_a16_engines_and_signals_do_not_wait_for_a_share_that_hangs(host: Host, share: Share) -> None:
    with FakeVllm(host.base) as fake, running(host, engines=[f"vllm={fake.url}"]) as daemon:
        try:
            daemon.wait_for(lambda: daemon.teller.board.snapshot.is_ready, "ready")
            at_rest(daemon, host)
            share.hang()
            fake.restart()
            eventually(lambda: fake.holds(host.models[1]) and not is_paused(fake), "the fresh one is served")
            fake.stop()
            daemon.wait_for(lambda: not daemon.teller.board.snapshot.is_ready, "word that it is down")
            daemon.ask_to_stop()
            daemon.join()
        finally:
            share.answer()


def test_a16_a_share_that_answers_again_is_followed(host: Host, share: Share) -> None:
    with running(host) as daemon:
        at_rest(daemon, host)
        try:
            share.hang()
            daemon.wait_for(lambda: daemon.messages("does not answer"), "word of it")
            host.publish()
        finally:
            share.answer()
        daemon.wait_for_version(2)
        assert daemon.messages("answers again")


def test_a16_an_engine_left_paused_is_finished_before_the_share_is_looked_at(host: Host, share: Share) -> None:
    host.pulled()
    with FakeVllm(host.base) as fake:
        fake.faults["/resume"] = Fault(close=True)
        Story(host).serve(fake)
        del fake.faults["/resume"]
        assert is_paused(fake)
        share.is_gone()
        with running(host, engines=[f"vllm={fake.url}"]):
            try:
                eventually(lambda: not is_paused(fake), "it is resumed")
            finally:
                share.answer()


def test_a16_the_sync_in_the_background_ends_while_the_share_hangs(
    host: Host, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    settle = loop.Daemon._settle_sync

    def settle_later(daemon: loop.Daemon) -> None:
        if may_end.is_set():
            settle(daemon)

    monkeypatch.setattr(loop.Daemon, "_settle_sync", settle_later)
    with running(host) as daemon:
        try:
            daemon.wait_for_version(1)
            daemon.wait_for_looks(2)  # the pass is over
            share.hang()
            may_end.set()
            daemon.wait_for_turns(3)
        finally:
            share.answer()


def test_a16_a_board_on_which_nothing_moves_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    board = Board()
    engine = EngineView("http://127.0.0.1:1", "vllm", "127.0.0.1:1", "at_version", 1, None, True)
    board.put(Snapshot(is_ready=True, reason="", engines=(engine,)))
    board.beat()
    assert board.snapshot.is_ready and board.snapshot.engines[0].is_ready
    now_s[0] += boards.STALE_S + 1
    assert not board.snapshot.is_ready and not board.snapshot.engines[0].is_ready
    assert "hangs" in board.snapshot.reason
    board.beat()
    assert board.snapshot.is_ready


# ---- records for the trainer


def test_a11_a_record_claims_nothing_once_what_it_tells_of_is_gone(host: Host, share: Share, tmp_path: Path) -> None:
    acks = tmp_path / "acks"
    with running(host, ack_dir=acks, host_name="a") as daemon:
        daemon.wait_for_version(1)
    assert wait_for_host(acks, 1).code == 0
    shutil.rmtree(host.local)  # a fresh disk; and the share takes its time
    share.is_gone()
    with running(host, ack_dir=acks, host_name="a") as daemon:
        try:
            assert share.met.wait(30)
            assert wait_for_host(acks, 1).code != 0
        finally:
            share.answer()
        daemon.wait_for_version(1)
        eventually(lambda: wait_for_host(acks, 1).code == 0, "it is told again")


def test_a11_a_daemon_that_ends_by_itself_leaves_no_claim(host: Host, tmp_path: Path) -> None:
    acks = tmp_path / "acks"
    with running(host, ack_dir=acks, host_name="a") as daemon:
        daemon.wait_for_version(1)
    shutil.rmtree(host.local)
    host.base.rename(tmp_path / "elsewhere")
    with running(host, ack_dir=acks, host_name="a") as daemon:
        daemon.ended()
    assert wait_for_host(acks, 1).code != 0


def test_a12_a_paused_engine_serves_nobody(host: Host, tmp_path: Path) -> None:
    acks = tmp_path / "acks"
    with (
        FakeVllm(host.base) as fake,
        running(host, engines=[f"vllm={fake.url}"], ack_dir=acks, host_name="a") as daemon,
    ):
        eventually(lambda: wait_for_host(acks, 1, "--served").code == 0, "it is served")
        ask(fake, "/pause", {})
        daemon.wait_for(lambda: not daemon.teller.board.snapshot.is_ready, "word of it")
        eventually(lambda: wait_for_host(acks, 1, "--served").code != 0, "the record says so too")
        assert wait_for_host(acks, 1).code == 0


@pytest.mark.parametrize("place", ["share", "share/weight_v000001", "base", "local", "local/.weight_sync"])
def test_a19_records_are_written_into_no_directory_of_others(
    host: Host, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(command, "Daemon", lambda *arguments: pytest.fail("it begins"))
    name, _, below = place.partition("/")
    directory = {"share": host.shared, "base": host.base, "local": host.local}[name] / below
    directories: list[str | Path] = ["--local", host.local, "--shared", host.shared, "--base", host.base]
    result = vime_plain("watch", *directories, "--ack-dir", directory, "--host-name", "a")
    assert result.code == 2 and "--ack-dir" in result.stderr


@pytest.mark.parametrize("place", ["share", "base"])
def test_a19_nor_into_those_that_local_remembers(host: Host, place: str) -> None:
    host.pulled()
    directory = {"share": host.shared, "base": host.base}[place]
    before = toolkit.snapshot(directory)
    with running(host, share=None, base=None, ack_dir=directory, host_name="a") as daemon:
        assert isinstance(daemon.ended(), UsageError)
    assert toolkit.snapshot(directory) == before


# ---- readiness, hints, the log


def test_a18_a_pin_to_a_version_that_is_not_there_is_not_ready(host: Host) -> None:
    host.pulled()
    with running(host, version=99) as daemon:
        daemon.wait_for_error("version_missing")
        daemon.wait_for(lambda: daemon.teller.board.snapshot.document, "a snapshot")
        snapshot = daemon.teller.board.snapshot
        assert not snapshot.is_ready and "pinned to version 99" in snapshot.reason
        assert version_of(host) == 1


def test_a15_hints_are_followed_so_many_times_a_second_only(host: Host) -> None:
    with running(host, poll_interval_s=600.0) as daemon:
        daemon.wait_for_version(1)
        over = threading.Event()

        def hint() -> None:
            while not over.wait(0.001):
                daemon.wake.poke()

        hinting = threading.Thread(target=hint)
        hinting.start()
        try:
            daemon.wait_for_turns(2)
            began_s, turns = time.monotonic(), len(daemon.turns)
            daemon.wait_for_turns(20)
            a_turn_s = (time.monotonic() - began_s) / (len(daemon.turns) - turns)
        finally:
            over.set()
            hinting.join()
        assert a_turn_s > 0.04  # a slow machine only makes it longer


@pytest.mark.parametrize("log", ["full", "no reader"])
def test_a14_the_daemon_lives_on_without_its_log(host: Host, log: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    errors = os.open("/dev/full", os.O_WRONLY) if log == "full" else os.dup(writer)
    os.close(writer)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    words = ["watch", "--local", host.local, "--shared", host.shared, "--base", host.base, "--poll-interval", "0.05"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vime_sync", *map(str, words)],
        env={**clean, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        stderr=errors,
    )
    try:
        os.close(errors)
        eventually(lambda: version_of(host) == 1 or process.poll() is not None, "version 1")
        host.publish()
        eventually(lambda: version_of(host) == 2 or process.poll() is not None, "version 2")
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
