"""Two prunes on one share: the second one says so and touches nothing. Its lock file, and what may lie in its place."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error
from tests.kill_points import observing
from tests.prune_story import create, prune, pruned, published
from tests.toolkit import Result
from vime_sync.pruning import LOCK_NAME

_HOLDING = """
    import signal, sys
    from pathlib import Path
    from vime_sync.pruning import hold
    with hold(Path(sys.argv[1]), print):
        print("held", flush=True)
        signal.pause()
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return create(tmp_path)


@pytest.fixture
def rival(host: Host) -> Iterator[subprocess.Popen[str]]:
    """Another prune, in a process of its own, that holds the lock until it is killed."""
    command = [sys.executable, "-c", textwrap.dedent(_HOLDING), str(host.shared)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def leave_over(host: Host) -> Path:
    """What a prune is at work on, or was when it was killed."""
    aside = host.shared / ".pruned-weight_v000001"
    toolkit.version_path(host.shared, 1).rename(aside)
    return aside


def test_a_second_prune_says_who_is_at_it_and_touches_nothing(host: Host, rival: subprocess.Popen[str]) -> None:
    aside = leave_over(host)
    before = everything(host.root)
    error = expect_error(prune(host, 1), 20, "lock_held")
    assert f"process {rival.pid} on " in error["message"] and "another prune" in error["message"]
    assert everything(host.root) == before
    assert prune(host, 1, "--dry-run").document["removed"] == [2, 3, 4, 5, 6]  # it only reads
    rival.send_signal(signal.SIGKILL)
    rival.wait(60)
    assert pruned(host, 1) == [2, 3, 4, 5, 6]
    assert not aside.exists()


def test_a_second_prune_in_the_middle_of_the_first_is_turned_away(host: Host) -> None:
    seen: list[Result] = []

    def meanwhile(operation: str, path: Path) -> None:
        if operation == "remove_tree" and path.name == ".pruned-weight_v000002" and not seen:
            seen.append(prune(host, 1))
            assert path.exists()

    with observing(meanwhile):
        assert prune(host, 1).document["removed"] == [1, 2, 3, 4, 5, 6]
    expect_error(seen[0], 20, "lock_held")
    assert f"process {os.getpid()} on " in seen[0].error["message"]
    assert published(host) == [7, 8]


def test_what_another_prune_did_before_the_lock_was_had_is_seen(host: Host) -> None:
    """Another one, with a smaller --keep, came between the look and the lock and took away what this one went by."""

    def between(operation: str, path: Path) -> None:
        if operation == "create" and path.name == LOCK_NAME:
            for version in range(1, 7):
                shutil.rmtree(toolkit.version_path(host.shared, version))

    with observing(between):
        result = prune(host, 3)
    assert (result.code, result.document["removed"], result.document["kept"]) == (0, [], [7, 8])


def test_a_prune_with_nothing_to_do_makes_no_lock_file(host: Host) -> None:
    assert pruned(host, 8) == []
    assert not (host.shared / LOCK_NAME).exists()
    assert pruned(host, 1) == [1, 2, 3, 4, 5, 6]
    assert (host.shared / LOCK_NAME).exists()
    assert prune(host, 1).code == 0


def test_what_somebody_wrote_under_the_name_of_the_lock_stays(host: Host) -> None:
    path = host.shared / LOCK_NAME
    path.write_text("mine, and longer than a line of a holder would be " * 9)
    before = path.read_text()
    assert pruned(host, 1) == [1, 2, 3, 4, 5, 6]
    assert path.read_text() == before


@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "pipe"])
def test_a_link_or_what_is_no_file_in_place_of_the_lock_is_refused(host: Host, kind: str) -> None:
    path = host.shared / LOCK_NAME
    target = host.root / "mine"
    if kind == "link":
        target.write_text("mine")
    if kind in ("link", "dangling"):
        path.symlink_to(target)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    error = expect_error(prune(host, 1), 23, "not_ours")
    assert str(path) in error["message"] and "nothing was removed" in error["message"]
    assert published(host) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert target.exists() == (kind == "link") and (kind != "link" or target.read_text() == "mine")


def replace_flock(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(file: Any, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_on_a_filesystem_without_locks_it_warns_and_goes_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_flock(monkeypatch, errno.ENOLCK)
    result = prune(host, 1)
    assert (result.code, result.document["removed"]) == (0, [1, 2, 3, 4, 5, 6])
    assert "take care that only one prune runs" in result.stderr


def test_trouble_with_the_lock_is_no_leave_to_go_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_flock(monkeypatch, errno.EIO)
    assert LOCK_NAME in expect_error(prune(host, 1), 21, "local_io")["message"]
    assert published(host) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_share_where_no_lock_file_can_be_made_is_not_pruned(host: Host) -> None:
    def refuse(operation: str, path: Path) -> None:
        if operation == "create" and path.name == LOCK_NAME:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with observing(refuse):
        assert LOCK_NAME in expect_error(prune(host, 1), 21, "local_io")["message"]
    assert published(host) == [1, 2, 3, 4, 5, 6, 7, 8]
