"""FIELD_GUIDE H13, H6: the lock when something happens between two looks at it; starting without a place for files."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.host import Host
from vime_sync.local.lock import hold
from vime_sync.local.paths import local_paths

ROOT = Path(__file__).parent.parent


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host.create(tmp_path)
    host.publish()
    return host


def test_h13_nobody_is_blamed_for_a_lock_that_was_let_go_of_meanwhile(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the try and the look at who it was, the holder ended: what it wrote about itself still stands there."""
    host.pulled()
    holder = local_paths(host.local).lock.open("ab")
    fcntl.flock(holder, fcntl.LOCK_EX)
    real = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        try:
            real(file, operation)
        except BlockingIOError:
            holder.close()
            raise

    monkeypatch.setattr(fcntl, "flock", flock)

    host.pulled()


def test_h13_a_lock_that_cannot_be_looked_at_is_given_back(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next try of the same process stands in its own way."""
    host.pulled()
    paths = local_paths(host.local)
    real = os.path.samestat

    def broken(one: os.stat_result, other: os.stat_result) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os.path, "samestat", broken)
    with pytest.raises(OSError) as caught, hold(paths, wait_s=0, check_stop=lambda: None):
        pass
    monkeypatch.setattr(os.path, "samestat", real)
    with hold(paths, wait_s=0, check_stop=lambda: None):
        assert caught.value.errno == errno.EIO  # and its traceback still keeps every frame alive


def test_h06_no_place_for_temporary_files_is_needed(host: Host, tmp_path: Path) -> None:
    """A full root filesystem must not keep the program from starting."""
    program = (
        "import tempfile\n"
        "def none() -> str:\n    raise FileNotFoundError(2, 'no usable temporary directory')\n"
        "tempfile.gettempdir = tempfile._get_default_tempdir = none\n"
        "from vime_sync.cli import main\nmain()\n"
    )
    words = ["pull", "--shared", host.shared, "--base", host.base, "--local", host.local]
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    host.expect_local(1)
