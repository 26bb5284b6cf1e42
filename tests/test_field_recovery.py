"""FIELD_GUIDE H2, H21: seeds and replacements that are taken up again, and nothing that writes on after a kill."""

import errno
import fcntl
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, JOBS, bring_fresh, create, expect_settled, intent_path
from tests.kill_points import PULL_THREADS, count_operations, kill, no_disk_waits, tracing


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _model_bytes(host: Host) -> int:
    return sum(len(tensor.data) for tensor in host.models[0].values())


# ---- H2: a kill during a seed or a full replacement resumes


def _shards_built(operation: str, path: Path) -> bool:
    """Writes of new checkpoint files, which are built where no engine looks."""
    return operation == "write" and toolkit.STATE_DIRECTORY in path.parts and path.suffix != ".new"


def _files_moved(operation: str, path: Path) -> bool:
    return operation == "rename" and toolkit.STATE_DIRECTORY not in path.parts


@pytest.mark.parametrize("name", ["seed", "replacement"])
def test_h02_what_was_built_is_not_built_again(name: str, tmp_path: Path) -> None:
    job = JOBS[name]
    host = create(tmp_path, job, kib=4096)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host), _shards_built)
    bring_fresh(host, job)
    kill(lambda: job.run(host), total - 2, _shards_built)
    document = host.pulled(*PULL_THREADS)
    assert document["bytes_written"] < 0.75 * _model_bytes(host)
    expect_settled(host, job.end)


@pytest.mark.parametrize("name", ["seed", "replacement"])
def test_h02_once_all_is_built_only_names_are_left_to_change(name: str, tmp_path: Path) -> None:
    """From the first rename on no anchor is read any more, and no number stands over mixed shards."""
    job = JOBS[name]
    host = create(tmp_path, job)
    full = toolkit.version_path(host.shared, 2) if name == "replacement" else None
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host), _files_moved)
    assert total > 2
    for point in range(total):
        bring_fresh(host, job)
        kill(lambda: job.run(host), point, _files_moved)
        status = toolkit.vime("status", "--local", host.local).document
        assert (status["local_version"], status["state"]) == (None, "updating")
        with tracing() as trace:
            document = host.pulled(*PULL_THREADS)
        assert document["bytes_written"] == 0
        assert trace.bytes_from(host.base) < HEADER_BYTES
        assert full is None or trace.opens(full, ".safetensors") == []
        expect_settled(host, job.end)


def test_h02_what_was_built_for_another_plan_is_not_used(tmp_path: Path) -> None:
    """Killed on the way to 2; meanwhile the trainer began again: nothing of the old run gets in."""
    job = JOBS["seed"]
    host = create(tmp_path, job)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host), _shards_built)
    for point in range(0, total, 3):
        bring_fresh(host, job)
        kill(lambda: job.run(host), point, _shards_built)
        for number in (1, 2):
            host.models[number] = toolkit.step(host.models[number - 1], 50 + number + point)
            shutil.rmtree(toolkit.version_path(host.shared, number))
            toolkit.publish_delta(host.shared, number, host.models[number - 1], host.models[number])
        host.pulled()
        host.expect_local(2)


# ---- H21: killed with threads writing; nothing of ours writes on

_STOPPED_INSIDE = """
import os, signal, sys, threading
from pathlib import Path
from vime_sync import fsio
from vime_sync.cli import run
shard_writes = 0
def observer(operation, path):
    global shard_writes
    if operation == "write" and path.suffix == ".safetensors":
        shard_writes += 1
        if shard_writes == 2:
            os.kill(os.getpid(), signal.SIGKILL)
fsio.observer = observer
sys.exit(run(sys.argv[1:]))
"""


def _open_below(directory: Path) -> list[str]:
    """What any process holds open below a directory."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = link.readlink()
        except OSError as problem:
            assert problem.errno in (errno.ENOENT, errno.EACCES, errno.ESRCH, errno.EPERM)
            continue
        if target.is_relative_to(directory):
            found.append(f"{link}: {target}")
    return found


def test_h21_nothing_of_ours_writes_on_after_a_sigkill(tmp_path: Path) -> None:
    job = JOBS["folded"]
    host = create(tmp_path, job)
    bring_fresh(host, job)
    arguments = ["pull", "--shared", host.shared, "--local", host.local, "--base", host.base, "--threads", "4"]

    done = subprocess.run(
        [sys.executable, "-c", _STOPPED_INSIDE, *map(str, arguments)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        check=False,
    )

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert intent_path(host.local).exists()
    assert _open_below(host.local) == []
    with (host.local / toolkit.STATE_DIRECTORY / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free at once: nobody inherited it
    with tracing() as trace:
        host.pulled()
    assert trace.bytes_from(host.base) < HEADER_BYTES
    expect_settled(host, job.end)
