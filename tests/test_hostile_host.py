"""Several runs at once, and things in LOCAL that are no files, or cannot be written."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests import toolkit
from tests.host import Host, expect_error
from tests.kill_jobs import expect_settled, stated_version
from tests.kill_points import no_disk_waits
from tests.toolkit import Result, vime
from vime_sync import fsio

_TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host.create(tmp_path, model=toolkit.make_model(tensors=3, kib=64))
    host.publish()
    return host


def _start(host: Host) -> "subprocess.Popen[bytes]":
    options = ["--shared", host.shared, "--local", host.local, "--base", host.base]
    return subprocess.Popen(
        [sys.executable, "-m", "vime_sync", "pull", "--json", *map(str, options)],
        cwd=Path(__file__).parents[1],
        env={name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _end(process: "subprocess.Popen[bytes]") -> Result:
    """How it ended; one that hangs is killed."""
    try:
        stdout, stderr = process.communicate(timeout=_TIMEOUT_S)
    finally:
        process.kill()
    return toolkit.parse_result(process.returncode, stdout, stderr)


# ---- several at once


@pytest.mark.parametrize("there", ["absent", "state lost"])
def test_d19_several_pulls_at_once(there: str, host: Host) -> None:
    if there == "state lost":
        host.pulled(version=0)
        (host.local / toolkit.STATE_DIRECTORY / "state.json").unlink()

    results = [_end(process) for process in [_start(host) for _ in range(8)]]

    for result in results:
        assert "Traceback" not in result.stderr
    assert {result.code for result in results} <= {0, 20}, [result.stderr for result in results]
    assert 0 in {result.code for result in results}
    for result in results:
        assert result.code == 20 or result.document["version"] == 1
    expect_settled(host, 1)


# ---- no files


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _folder_with_contents(path: Path) -> None:
    path.mkdir()
    (path / "inner.txt").write_bytes(b"the user's")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


FORMS: list[Callable[[Path], None]] = [_pipe, _folder, _folder_with_contents, _loop, _dangling]


def _victim(host: Host, kind: str) -> Path:
    return host.local / "config.json" if kind == "config" else min(host.local.glob("*.safetensors"))


@pytest.mark.parametrize("kind", ["config", "shard"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verified", [True, False])
def test_d25_something_else_in_the_place_of_a_file(
    verified: bool, form: Callable[[Path], None], kind: str, host: Host
) -> None:
    host.pulled(version=0)
    path = _victim(host, kind)
    path.unlink()
    form(path)

    if verified:
        error = expect_error(_in_time(host, lambda: vime("verify", "--local", host.local)), 22, "damaged")
        assert path.name in error["message"] or error["tensors"]
    result = _in_time(host, host.pull)

    assert "Traceback" not in result.stderr
    is_folder = form in (_folder, _folder_with_contents)
    assert result.code in ((0, 21, 22, 23) if is_folder else (0,)), result.stderr
    if result.code:
        assert form is _folder or (path / "inner.txt").read_bytes() == b"the user's"
        shutil.rmtree(path)
        host.pulled()
    expect_settled(host, 1)
    assert result.code == 0 or path.name in result.error["message"]


def _in_time(host: Host, run: Callable[[], Result]) -> Result:
    """A run that waits for the other end of a pipe would wait for ever: give each pipe one, after a while."""
    pipes = [path for path in host.local.iterdir() if path.is_fifo()]
    script = "import os, sys, time; time.sleep(30); [os.open(p, os.O_RDWR) for p in sys.argv[1:]]; time.sleep(1)"
    helper = subprocess.Popen([sys.executable, "-c", script, *map(str, pipes)]) if pipes else None
    try:
        result = run()
        assert helper is None or helper.poll() is None, "it waited for the other end of a pipe"
    finally:
        if helper is not None:
            helper.kill()
            helper.wait()
    return result


# ---- not to be written


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("problem", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")])
def test_d26_a_shard_that_cannot_be_opened_for_writing(victim: int, problem: OSError, host: Host) -> None:
    host.pulled(version=0)
    shard = sorted(host.local.glob("*.safetensors"))[victim]
    opened = fsio.File.__init__
    refused = 0

    def refuse(file: fsio.File, path: Path, *, write: bool = False, create: bool = False) -> None:
        nonlocal refused
        if write and path == shard:
            refused += 1
            raise type(problem)(problem.errno, problem.strerror, str(path))
        opened(file, path, write=write, create=create)

    for _ in range(2):
        with mock.patch.object(fsio.File, "__init__", refuse):
            error = expect_error(host.pull(), 21, "local_io")
        assert refused
        assert str(shard) in error["message"]
        assert stated_version(host.local) == 0
        standing = vime("status", "--local", host.local).document
        assert (standing["state"], standing["local_version"]) == ("ready", 0)
        assert vime("verify", "--local", host.local).code == 0
        expect_settled(host, 0)

    host.pulled()
    expect_settled(host, 1)
