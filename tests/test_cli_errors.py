"""The command line: usage without a command, the shape of errors, and what the operating system refuses."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, expect_error
from tests.toolkit import vime, vime_plain

COMMANDS = ("pull", "status", "verify")
JSON_LOG = ("--log-format", "json")


def arguments(command: str, local: Path, root: Path) -> list[str | Path]:
    """A command that would do its work, were LOCAL as it should be."""
    if command == "inspect":
        return [command, local]
    others: list[str | Path] = ["--shared", root / "shared", "--base", root / "base"] if command == "pull" else []
    return [command, "--local", local, *others]


# ---- without a command


@pytest.mark.parametrize("env", [{}, {"VIME_SYNC_JSON": "1"}, {"VIME_SYNC_LOG_FORMAT": "json"}])
def test_without_a_command_the_help_is_printed_plainly(env: dict[str, str]) -> None:
    result = vime_plain(env=env)
    assert (result.code, result.stdout, result.error) == (2, "", {})
    assert result.stderr.startswith("Usage: vime-sync ")
    assert result.stderr == vime_plain("--help").stdout
    assert "error" not in result.stderr and "hint" not in result.stderr


# ---- --log-format json


@pytest.mark.parametrize(
    "wrong",
    [
        ["no-such-command"],
        ["pull", "--no-such-option"],
        ["pull"],
        ["pull", "--local", "x", "--wait", "long"],
        ["pull", "--local", "x", "--wait", "nan"],
        ["pull", "--local", "x", "--shared", "y", "--version", "newest"],
        ["verify", "--local", "/nowhere"],
        ["inspect", "/nowhere"],
    ],
)
def test_with_json_messages_errors_are_json_too(wrong: list[str]) -> None:
    for given, env in (
        ((*wrong, *JSON_LOG), {}),
        ((*wrong, "--log-format=json"), {}),
        (wrong, {"VIME_SYNC_LOG_FORMAT": "json"}),
    ):
        result = vime_plain(*given, env=env)
        expect_error(result, 2, "usage")
        assert [json.loads(line) for line in result.stderr.splitlines()] == [result.error]


def test_the_option_goes_before_the_environment() -> None:
    result = vime_plain("verify", "--local", "/nowhere", "--log-format", "text", env={"VIME_SYNC_LOG_FORMAT": "json"})
    assert (result.code, result.error) == (2, {})
    assert result.stderr.startswith("error [usage]: ")


def test_with_json_messages_warnings_are_json_and_the_result_is_not(tmp_path: Path) -> None:
    host = Host.create(tmp_path)
    host.pulled()
    host.shared.rmdir()
    result = vime_plain("status", "--local", host.local, *JSON_LOG)
    warning = json.loads(result.stderr)
    assert (warning["level"], str(host.shared) in warning["message"]) == ("warning", True)
    assert (result.code, result.stdout) == (0, "ready: version 0 (newest on the share: unknown)\n")


def test_an_unknown_log_format_is_wrong_usage() -> None:
    result = vime_plain("verify", "--local", "/nowhere", "--log-format", "yaml")
    assert (result.code, "yaml" in result.stderr, result.error) == (2, True, {})


# ---- what the operating system refuses


def is_a_file(local: Path) -> None:
    local.write_bytes(b"")


def lies_below_a_file(local: Path) -> None:
    local.parent.write_bytes(b"")


def is_a_loop(local: Path) -> None:
    local.symlink_to(local)


@pytest.mark.parametrize(
    ("spoil", "place", "codes"),
    [
        (is_a_file, "local", {"pull": 2, "status": 2, "verify": 2, "inspect": 2}),
        (lies_below_a_file, "file/local", {"pull": 21, "status": 0, "verify": 2, "inspect": 2}),
        (is_a_loop, "local", {"pull": 2, "status": 2, "verify": 2, "inspect": 2}),
    ],
)
@pytest.mark.parametrize("command", [*COMMANDS, "inspect"])
def test_local_is_no_directory(
    command: str, spoil: Callable[[Path], None], place: str, codes: dict[str, int], tmp_path: Path
) -> None:
    host = Host.create(tmp_path)
    local = tmp_path / place
    spoil(local)
    result = vime(*arguments(command, local, host.root))
    code = codes[command]
    assert result.code == code, result.stderr
    if code:
        error = expect_error(result, code, "usage" if code == 2 else "local_io")
        assert str(local) in error["message"]
    else:
        assert result.document["state"] == "absent"


def test_local_is_a_dangling_link(tmp_path: Path) -> None:
    """What it points to is made: an operator may link to a disk of this host before the first pull."""
    host = Host.create(tmp_path)
    host.publish()
    host.local.symlink_to(tmp_path / "disk" / "checkpoint")
    assert vime("status", "--local", host.local).document["state"] == "absent"
    expect_error(vime("verify", "--local", host.local), 2, "usage")
    host.pulled()
    host.expect_local(1)
    assert host.local.is_symlink() and (tmp_path / "disk" / "checkpoint" / "config.json").is_file()
    host.local.unlink()
    (tmp_path / "file").write_bytes(b"")
    host.local.symlink_to(tmp_path / "file" / "checkpoint")
    assert vime("status", "--local", host.local).code == 0
    expect_error(host.pull(), 21, "local_io")


@pytest.mark.parametrize("option", ["--shared", "--base"])
def test_another_directory_is_a_loop(option: str, tmp_path: Path) -> None:
    host = Host.create(tmp_path)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    error = expect_error(vime("pull", "--local", host.local, option, loop), 2, "usage")
    assert str(loop) in error["message"]
    assert not host.local.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
@pytest.mark.parametrize("command", [*COMMANDS, "inspect"])
def test_local_lies_in_a_directory_that_may_not_be_read(command: str, tmp_path: Path) -> None:
    host = Host.create(tmp_path)
    local = tmp_path / "closed" / "local"
    local.mkdir(parents=True)
    local.parent.chmod(0)
    try:
        error = expect_error(vime(*arguments(command, local, host.root)), 21, "local_io")
    finally:
        local.parent.chmod(0o700)
    assert str(local) in error["message"]


@pytest.mark.parametrize("command", [*COMMANDS, "inspect"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_state_that_cannot_be_read(
    number: int, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host.create(tmp_path)
    host.pulled()
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "state.json":
            raise OSError(number, os.strerror(number), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    error = expect_error(vime(*arguments(command, host.local, host.root)), 21, "local_io")
    assert str(host.local / toolkit.STATE_DIRECTORY / "state.json") in error["message"]
    assert os.strerror(number) in error["message"]


# ---- standard output


def run_into(output: int, *given: str | Path) -> tuple[int, str]:
    """Exit code and messages of a run in a process of its own, with this for its standard output."""
    command = [sys.executable, "-m", "vime_sync", *map(str, given)]
    root = Path(toolkit.__file__).parent.parent
    ran = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False, cwd=root)
    return ran.returncode, ran.stderr


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run_into(writing, "status", "--local", tmp_path) == (141, "")
        assert run_into(writing, "--help") == (141, "")
    finally:
        os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        code, messages = run_into(full.fileno(), "status", "--local", tmp_path)
    assert (code, "Traceback" in messages) == (21, False)
    assert "standard output" in messages


def test_names_of_strangers_do_not_steer_the_terminal(tmp_path: Path) -> None:
    name = "evil\x1b[2J\nready: version 9"
    checkpoint = tmp_path / "checkpoint"
    toolkit.write_checkpoint(checkpoint, {name: toolkit.Tensor("U8", (1,), b"x")}, shards=1)
    result = vime_plain("inspect", checkpoint)
    assert result.code == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert [line for line in result.stdout.splitlines() if line.startswith("ready")] == []
