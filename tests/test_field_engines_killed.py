"""FIELD_GUIDE E7: whoever loads an engine is killed in the middle, and the next one finishes and resumes it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import toolkit
from tests.engine_story import SAFETY_S, VLLM_LOAD, Story, is_paused, outcome, posts, reached, small_host, spec_of
from tests.fake_engine import FakeServer, Fault
from tests.fake_sglang import FakeSglang
from tests.fake_stories import LONG, ask
from tests.fake_vllm import FakeVllm
from tests.fake_weights import fresh_answer
from tests.host import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@contextmanager
def pulling(host: Host, fake: FakeServer) -> Iterator["subprocess.Popen[bytes]"]:
    """A pull in a process of its own, killed at the end of the block at the latest."""
    command = [sys.executable, "-m", "vime_sync", "pull", "--local", str(host.local), "--engine", str(spec_of(fake))]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parents[1],
        env={**settings, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            assert process.wait(SAFETY_S) == -signal.SIGKILL, "it ended before it was killed"


def kill_at(host: Host, fake: FakeServer, path: str, when: str) -> None:
    """Kill a pull while it waits for the answer to that call, before or after the engine did what it says."""
    fault = Fault(hang=threading.Event(), when="before" if when == "before" else "after")
    fake.faults[path] = fault
    with pulling(host, fake):
        reached(fault.reached)
    fake.faults.clear()


@pytest.mark.parametrize(
    ("path", "when", "command"),
    [
        ("/pause", "after", "reload"),
        ("/collective_rpc", "before", "pull"),
        ("/collective_rpc", "after", "reload"),
        ("/reset_prefix_cache", "after", "pull"),
        ("/resume", "before", "pull"),
    ],
)
def test_e07_an_engine_that_was_left_paused_is_finished_and_resumed(
    host: Host, path: str, when: str, command: str
) -> None:
    with FakeVllm(host.base) as fake:
        kill_at(host, fake, path, when)
        assert is_paused(fake)
        fake.calls.clear()
        result = toolkit.vime(command, "--local", host.local, "--engine", str(spec_of(fake)))
        assert (result.code, result.document["engines"][0]["state"]) == (0, "at_version"), result.stderr
        assert posts(fake)[: len(VLLM_LOAD)] == VLLM_LOAD
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


def test_e07_killed_after_the_resume_it_is_loaded_once_more(host: Host) -> None:
    """The record was not written any more: what the engine tells of itself proves nothing."""
    with FakeVllm(host.base) as fake:
        kill_at(host, fake, "/resume", "after")
        assert not is_paused(fake)
        assert host.pulled("--engine", str(spec_of(fake)))["engines"][0]["state"] == "at_version"
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


def test_e07_the_record_is_there_before_the_engine_is_paused(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        kill_at(host, fake, "/pause", "before")
        assert Story(host).remembered(fake)["open"] is True


def test_e07_a_load_that_outlives_its_daemon_is_waited_for(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        with fake.stopped_load(after_tensors=2) as gate, pulling(host, fake):
            gate.wait()
        assert is_paused(fake)
        host.publish()
        document = host.pulled("--engine", str(spec_of(fake)))
        assert document["engines"][0]["version"] == 2
        assert fake.complete(LONG) == fresh_answer(host.models[2], LONG)


def test_e07_an_engine_that_restarted_after_the_kill_is_just_loaded(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        kill_at(host, fake, "/collective_rpc", "after")
        fake.restart()
        assert outcome(Story(host).serve(fake)[0]) == ("at_version", 1, None)
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


def test_e07_sglang_is_finished_and_continued_too(host: Host) -> None:
    with FakeSglang(host.base) as fake:
        kill_at(host, fake, "/update_weights_from_disk", "after")
        assert fake.generation.paused()
        assert host.pulled("--engine", str(spec_of(fake)))["engines"][0]["state"] == "at_version"
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


def test_e07_an_engine_paused_by_somebody_else_is_not_taken_for_ours(host: Host) -> None:
    with FakeVllm(host.base) as ours, FakeVllm(host.base) as theirs:
        kill_at(host, ours, "/collective_rpc", "before")
        ask(theirs, "/pause", {})
        engines = ("--engine", str(spec_of(ours)), "--engine", str(spec_of(theirs)))
        result = toolkit.vime("pull", "--local", host.local, *engines)
        assert result.code == 0, result.stderr
        assert ours.holds(host.models[1]) and theirs.holds(host.models[1])
        assert (is_paused(ours), is_paused(theirs)) == (False, True)
