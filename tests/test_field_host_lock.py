"""FIELD_GUIDE H12, H13: two processes on one LOCAL, crashed holders, filesystems without flock.

Other processes are steered through pipes and audit hooks: every step happens because the one before it was
seen to happen, never because time passed.
"""

import errno
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.host import Host, expect_error

# What the peers' receiver does: the lock file opened for writing, LOCK_EX, nothing said about itself.
_PEER = """
import fcntl, sys
with open(sys.argv[1], "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""

# Our own pull, stopped at the moment it opens a certain file of the base: it holds the lock then.
_OURS = """
import sys
marker, *arguments = sys.argv[1:]
armed = True
def stop(event, details):
    global armed
    if armed and event == "open" and str(details[0]).endswith(marker):
        armed = False
        print("locked", flush=True)
        sys.stdin.readline()
sys.addaudithook(stop)
from vime_sync.cli import run
sys.exit(run(arguments))
"""

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")


class Holder:
    """A process that holds the lock of LOCAL until it is told to let go."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        assert self._from.readline() == "locked\n"

    def release(self) -> None:
        """Returns only when the lock is free."""
        self._to.write("\n")
        self._to.flush()
        self._from.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def _process(script: str, *arguments: str | Path) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _lock_path(local: Path) -> Path:
    return local / toolkit.STATE_DIRECTORY / "lock"


@contextmanager
def _peer_holds(host: Host) -> Iterator[Holder]:
    with _process(_PEER, _lock_path(host.local)) as process:
        yield Holder(process)


@contextmanager
def _our_pull_holds(host: Host) -> Iterator[Holder]:
    """A seed from the base, stopped in the middle; it was the first one ever, LOCAL has no version yet."""
    (host.base / "slow.txt").write_text("read while the lock is held")
    arguments = ("--shared", host.shared, "--local", host.local, "--base", host.base)
    with _process(_OURS, "slow.txt", "pull", *arguments) as process:
        yield Holder(process)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host.create(tmp_path)
    host.publish()
    return host


FlockCall = Callable[[int], None]


def _replace_flock(monkeypatch: pytest.MonkeyPatch, flock: Callable[[Any, int], None]) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)


def _watch_flock(
    monkeypatch: pytest.MonkeyPatch, *, refused: FlockCall | None = None, taken: FlockCall | None = None
) -> None:
    """Tell the test when an exclusive lock was refused (before the caller knows), or taken."""
    real = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        number = file if isinstance(file, int) else file.fileno()
        if not operation & fcntl.LOCK_EX:
            real(number, operation)
            return
        try:
            real(number, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if refused is not None:
                refused(number)
            if operation & fcntl.LOCK_NB:
                raise
            real(number, operation)
        if taken is not None:
            taken(number)

    _replace_flock(monkeypatch, flock)


# ---- H12: two daemons, or a daemon and a worker


def test_h12_a_lock_that_a_peer_holds_is_20_at_once_and_names_the_pid(host: Host) -> None:
    host.pulled(version=0)
    before = toolkit.snapshot(host.local)

    with _peer_holds(host) as holder:
        error = expect_error(host.pull(), 20, "lock_held")
        assert re.search(rf"\b{holder.process.pid}\b", error["message"]), error["message"]
        assert "since" in error["message"]
        assert error["retryable"] is True
        assert toolkit.snapshot(host.local) == before
        host.expect_local(0)
        holder.release()
        assert host.pulled()["version"] == 1
    host.expect_local(1)


def test_h12_a_lock_that_our_own_pull_holds_is_20_with_pid_and_since_when(host: Host) -> None:
    with _our_pull_holds(host) as holder:
        error = expect_error(host.pull(), 20, "lock_held")
        assert re.search(rf"\b{holder.process.pid}\b", error["message"]), error["message"]
        assert _TIME.search(error["message"]), error["message"]
        holder.release()
        assert holder.process.wait() == 0
    host.expect_local(1)
    assert host.pulled()["result"] == "already_current"


def test_h12_wait_goes_on_when_the_lock_is_freed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.pulled(version=0)
    refusals: list[int] = []

    with _peer_holds(host) as holder:

        def let_go(number: int) -> None:
            if not refusals:
                holder.release()
            refusals.append(number)

        _watch_flock(monkeypatch, refused=let_go)
        document = host.pulled("--wait", "30")

    assert refusals, "the lock was never asked for while the peer held it"
    assert document["version"] == 1
    host.expect_local(1)


def test_h12_wait_that_ends_in_vain_is_20(host: Host) -> None:
    host.pulled(version=0)
    with _peer_holds(host) as holder:
        error = expect_error(host.pull("--wait", "0.3"), 20, "lock_held")
        assert str(holder.process.pid) in error["message"]
    host.expect_local(0)


def test_h12_a_lock_file_that_was_replaced_is_not_the_lock(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inode that we locked must still be the one that the path names, or two processes both hold "it"."""
    host.pulled(version=0)
    path = _lock_path(host.local)
    inodes: list[int] = []

    def replace(number: int) -> None:
        inodes.append(os.fstat(number).st_ino)
        if len(inodes) == 1:
            path.rename(path.with_name("aside"))  # keeps the inode number from being used again
            path.touch()

    _watch_flock(monkeypatch, taken=replace)
    assert host.pulled()["version"] == 1

    assert inodes[-1] == path.stat().st_ino != inodes[0]
    host.expect_local(1)


@pytest.mark.parametrize("command", ["status", "verify"])
def test_h12_looking_does_not_disturb_the_holder(command: str, host: Host) -> None:
    """`status` answers while another works; `verify` may be refused, as its marks are writes."""
    host.pulled(version=0)
    with _peer_holds(host):
        result = toolkit.vime(command, "--local", host.local)
    assert result.code in ((0,) if command == "status" else (0, 20)), result.stderr
    assert command != "status" or result.document["local_version"] == 0


# ---- H13: a crashed holder, and a filesystem without flock


def test_h13_a_holder_that_was_killed_does_not_block(host: Host) -> None:
    with _our_pull_holds(host) as holder:
        pid = holder.process.pid
        about_it = [
            path
            for path in (host.local / toolkit.STATE_DIRECTORY).iterdir()
            if path.is_file() and str(pid) in path.read_text(encoding="utf-8", errors="replace")
        ]
        holder.kill()
    assert about_it, "the holder said nowhere who it is"
    assert all(path.exists() for path in about_it), "the killed one cannot have cleared up"

    assert host.pulled()["version"] == 1
    host.expect_local(1)


def test_h13_a_killed_peer_does_not_block(host: Host) -> None:
    host.pulled(version=0)
    with _peer_holds(host) as holder:
        holder.kill()
    assert host.pulled()["version"] == 1
    host.expect_local(1)


def test_h13_a_killed_holders_name_is_not_given_for_the_next_one(host: Host) -> None:
    """After our crash a peer takes the lock and says nothing: the message must not blame the dead."""
    with _our_pull_holds(host) as ours:
        dead = ours.process.pid
        ours.kill()
    with _peer_holds(host) as peer:
        error = expect_error(host.pull(), 20, "lock_held")
        assert re.search(rf"\b{peer.process.pid}\b", error["message"]), error["message"]
        assert not re.search(rf"\b{dead}\b", error["message"]), error["message"]


@pytest.mark.parametrize("wait", [(), ("--wait", "30")])
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_h13_a_filesystem_without_flock_is_a_clear_error_at_once(
    number: int, wait: tuple[str, ...], host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def flock(file: object, operation: int) -> None:
        calls.append(operation)
        raise OSError(number, os.strerror(number))

    _replace_flock(monkeypatch, flock)

    error = expect_error(host.pull(*wait), 21, "local_io")

    assert "lock" in error["message"]
    assert str(host.local) in error["message"]
    assert 1 <= len(calls) <= 3
    assert not list(host.local.rglob("*.safetensors"))
