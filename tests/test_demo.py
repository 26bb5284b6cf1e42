"""The demo as a newcomer runs it: what it shows, what it proves, and that it leaves nothing behind."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.host import flip_byte
from tests.readme_examples import README
from tests.toolkit import vime_plain
from vime_sync.demo import daemon, minilm, story
from vime_sync.demo.daemon import Daemon
from vime_sync.demo.engine import EmbeddedEngine
from vime_sync.demo.weights import Weights

SAFETY_S = 240.0
TITLES = [
    "first start", "one delta", "one more", "catching up", "kill -9", "healing", "bad delta", "mended delta",
    "going back",
]  # fmt: skip


@pytest.fixture(autouse=True)
def without_minilm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every demo of these tests uses the made model, and has its directory below the test's."""
    find_spec = importlib.util.find_spec
    hidden = (minilm.PACKAGE, "vllm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in hidden else find_spec(name))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def start(*options: str) -> subprocess.Popen[str]:
    """The demo in a process of its own, with two pipes and no terminal."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.demo_process", "demo", "--offline", *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(directory: Path) -> list[str]:
    """Command lines of living processes that name anything in a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        if any(str(directory).encode() in word for word in words):
            found.append(" ".join(word.decode(errors="replace") for word in words))
    return found


def expect_nothing_left(directory: Path) -> None:
    assert processes_of(directory) == []
    assert list(directory.iterdir()) == []


# ---- the whole story


def test_the_story_holds_and_the_commands_it_ends_with_run(tmp_path: Path) -> None:
    process = start("--keep-files")
    summary, told = process.communicate(timeout=SAFETY_S)
    assert process.returncode == 0, told

    rows = re.findall(r"^  (\w.*?)  +\S.*?  version (\d+) +(?:[\d.]+ s)?  ok$", summary, re.MULTILINE)
    held = [int(version) for _, version in rows]
    assert [title for title, _ in rows] == TITLES
    shown = re.findall(r"^  (\w.*?)  +(\S.*?)  +version \d+ .*ok$", README, re.MULTILINE)
    assert shown == re.findall(r"^  (\w.*?)  +(\S.*?)  +version \d+ .*ok$", summary, re.MULTILINE)
    before_kill, newest = held[3], held[7]
    # Of every try to kill it that came too late three versions are more.
    assert held == [0, 1, 2, before_kill, before_kill, newest - 1, newest - 1, newest, before_kill]
    assert (before_kill - 5) % 3 == 0 and newest == before_kill + 4
    proofs = re.search(r"^(\d+) of (\d+) proofs .*: all of them held$", summary, re.MULTILINE)
    assert proofs and proofs[1] == proofs[2] == str(len(re.findall(r"^  proven ", told, re.MULTILINE)))
    assert "WRONG" not in told + summary and "\x1b" not in told + summary
    assert "made model" in summary
    assert f"{minilm.REQUIREMENT} is not installed, and --offline" in " ".join(told.split())

    (root,) = tmp_path.iterdir()
    assert processes_of(tmp_path) == []
    assert sorted(path.name for path in root.iterdir()) == ["base", "local", "share"]
    *_, inspect, pull = (line.split() for line in summary.splitlines())
    inspected = vime_plain(*inspect[1:])
    assert (inspected.code, inspect[:2]) == (0, ["vime-sync", "inspect"]), inspected.stderr
    pulled = vime_plain(*pull[1:])
    assert (pulled.code, pull[:2]) == (0, ["vime-sync", "pull"]), pulled.stderr
    assert pulled.stdout.startswith(f"version {newest}: updated from version {before_kill}")


def test_ctrl_c_ends_all_of_it_and_removes_everything(tmp_path: Path) -> None:
    process = start()
    assert process.stderr is not None
    for line in process.stderr:
        if "loaded version 0" in line:  # a daemon runs, and an engine, and the story is not done
            break
    assert processes_of(tmp_path)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)  # the impatient press it twice
    _, rest = process.communicate(timeout=SAFETY_S)
    assert process.returncode == 128 + signal.SIGINT, rest
    assert "stopped by SIGINT" in rest and "Traceback" not in rest
    expect_nothing_left(tmp_path)


# ---- proofs that do not hold


def failing() -> dict[str, Any]:
    """The document of a demo that has to end with 1."""
    result = vime_plain("demo", "--offline", "--json", "--quiet", env={"TMPDIR": os.environ["TMPDIR"]})
    assert result.code == 1, result.stderr
    assert result.document["schema"] == "vime-sync/demo/1" and result.document["result"] == "failed"
    assert (result.error["id"], result.error["message"]) == ("demo_failed", result.document["failed_because"])
    return result.document


def test_an_engine_that_does_not_load_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says yes to every reload and goes on with what it has."""

    def keep_the_old(engine: EmbeddedEngine, directory: Path) -> Weights:
        return engine._weights

    monkeypatch.setattr(EmbeddedEngine, "_loaded", keep_the_old)
    document = failing()
    first, second = document["steps"]
    assert all(proof["held"] for proof in first["proofs"])
    assert [proof["held"] for proof in second["proofs"]] == [False, False, True]
    assert "the engine answers as the trainer's version 1 does" in document["failed_because"]
    expect_nothing_left(tmp_path)


def test_a_wrong_byte_on_the_disk_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Daemon.wait_until_served

    def wait_and_spoil(child: Daemon, version: int, **options: bool) -> None:
        wait(child, version, **options)
        (local,) = tmp_path.glob("*/local")
        flip_byte(local, "model.norm.weight")

    monkeypatch.setattr(Daemon, "wait_until_served", wait_and_spoil)
    document = failing()
    (step,) = document["steps"]
    assert [proof["held"] for proof in step["proofs"]] == [True, False]
    assert step["proofs"][1]["detail"] == "69 tensors, 1 of them wrong"
    expect_nothing_left(tmp_path)


def test_a_kill_that_comes_too_late_is_tried_again_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_RECORD_BYTES", 1 << 40)
    monkeypatch.setattr(story, "_KILL_TRIES", 2)
    document = failing()
    *_, caught_up, kill = document["steps"]
    assert (caught_up["step"], kill["step"]) == ("catching up", "kill -9")
    assert all(proof["held"] for proof in kill["proofs"][:-1])
    # After each try three more versions were applied, and the last of them was served.
    assert kill["version"] == caught_up["version"] + 2 * 3
    assert document["failed_because"] == "the daemon was too quick to be killed in the middle, 2 times"
    expect_nothing_left(tmp_path)
