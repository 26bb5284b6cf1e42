"""What people read: help, results in words, `--verbose`, and the bar on a terminal."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests import toolkit
from tests.host import Host, flip_byte
from tests.toolkit import vime, vime_plain
from vime_sync.cli import run
from vime_sync.cli.progress import Bar, progress_bar

COMMANDS = ("pull", "watch", "status", "verify", "reload", "inspect", "wait", "publish", "prune", "demo")
NARROW = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two versions published, nothing pulled yet."""
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8))
    host.publish()
    host.publish(encoding="overwrite")
    return host


def told(host: Host, *options: str | Path) -> str:
    """What a pull prints."""
    result = vime_plain("pull", "--shared", host.shared, "--local", host.local, "--base", host.base, *options)
    assert (result.code, result.stderr) == (0, "")
    return result.stdout


# ---- help


def test_no_summary_is_cut_at_80_columns() -> None:
    text = vime_plain("--help", env=NARROW).stdout
    commands = text.split("Commands:\n", 1)[1].split("\n\n", 1)[0]
    assert tuple(line.split()[0] for line in commands.splitlines()) == COMMANDS  # in an order of use
    assert "..." not in commands and "…" not in commands
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_values_as_people_do(command: str) -> None:
    text = vime_plain(command, "--help", env=NARROW).stdout
    names = {
        "--local": "DIR",
        "--shared": "DIR",
        "--base": "DIR",
        "--version": "N|latest",
        "--wait": "SECONDS",
        "--threads": "COUNT",
        "--log-format": "text|json",
        "--engine": "KIND=URL",
        "--engine-api-key-file": "FILE",
        "--engine-ca-file": "FILE",
        "--engine-interval": "SECONDS",
        "--engine-timeout": "SECONDS",
        "--pause-mode": "wait|abort|keep",
        "--vllm-extension": "auto|always|never",
        "--on-engine-failure": "COMMAND",
        "--on-new-stream": "reseed|fail",
        "--poll-interval": "SECONDS",
        "--pre-read-hook": "MODULE.FUNCTION",
        "--http": "ADDR:PORT",
        "--ack-dir": "DIR",
        "--host-name": "NAME",
        "--hosts": "K|h1,h2",
        "--timeout": "SECONDS",
        "--keep": "COUNT",
        "--from": "DIR",
        "--directory": "DIR",
        "--cache": "DIR",
        "--encoding": "xor|overwrite|full",
        "--checksum": "xxh3-128|blake3|adler32",
        "--full-every": "N",
        "--level": "N",
        "--shard-size": "BYTES",
    }
    if command == "publish":
        names["--version"] = "N|next"
    if command == "demo":
        del names["--keep"]  # there it takes no value
    shown = dict(re.findall(r"^  (--[\w-]+) ([^-\s]\S*)(?:  |$)", text, re.MULTILINE))
    assert shown.items() <= names.items()
    assert shown.keys() == {name for name in names if f"  {name} " in text}
    assert not re.search(r"<[a-z]", text)  # no `<float range>`
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_exit_codes_stand_in_columns(command: str) -> None:
    lines = vime_plain(command, "--help", env=NARROW).stdout.split("Exit codes:\n", 1)[1].splitlines()
    rows = [re.fullmatch(r"    (\d+|128\+n)( +)(.*)", line) for line in lines]
    assert {len(row[1] + row[2]) for row in rows if row} == {len("128+n  ")}
    assert all(rows) and lines[-1] == "    128+n  ended by signal n"


# ---- pull


def test_what_a_pull_did_in_words(host: Host) -> None:
    figures = r"\n  \d+ tensors changed; [\d.]+ k?B read, [\d.]+ k?B written in [\d.]+ s\n"
    assert re.fullmatch(r"version 1: updated, seeded from the base" + figures, told(host, "--version", "1"))
    assert told(host, "--version", "1") == "version 1: already current\n"
    assert told(host, "--dry-run") == "version 2: planned from version 1\n  pass 1: in place, delta 2\n"
    assert re.fullmatch(r"version 2: updated from version 1" + figures, told(host))
    assert told(host, "--dry-run") == "version 2: planned from version 2\n  nothing to do\n"
    assert re.fullmatch(r"version 1: rolled back from version 2" + figures, told(host, "--version", "1"))


def test_a_repair_in_words(host: Host) -> None:
    host.pulled()
    flip_byte(host.local, "one")
    assert vime("verify", "--local", host.local).code == 22
    assert ", 1 repaired; " in told(host)


# ---- --verbose


def test_verbose_says_how_a_pull_went(host: Host) -> None:
    options = ("--shared", host.shared, "--local", host.local, "--base", host.base, "--threads", "2")
    result = vime("pull", *options, "--verbose")
    lines = result.stderr.splitlines()
    document = result.document
    assert lines[0] == "info: pass 1: seed from the base, deltas 1 to 2 folded"
    assert re.fullmatch(r"info: seconds: total [\d.]+, of which plan [\d.]+, seed [\d.]+; 2 threads", lines[1])
    assert lines[2] == f"info: bytes: {document['bytes_read']} read, {document['bytes_written']} written"
    assert lines[3:] == ["info: version 2 is known to be on the disk"]
    assert document == json.loads(result.stdout)

    lines = vime_plain("pull", *options, "--verbose", "--log-format", "json").stderr.splitlines()
    assert {json.loads(line)["level"] for line in lines} == {"info"}


def test_verbose_says_more_in_every_command(host: Host) -> None:
    host.pulled()
    for command in (
        ("verify", "--local", host.local),
        ("status", "--local", host.local),
        ("inspect", host.shared),
        ("pull", "--local", host.local, "--dry-run"),
    ):
        silent, talkative = vime_plain(*command), vime_plain(*command, "--verbose")
        assert (silent.code, silent.stderr, talkative.code) == (0, "", 0)
        assert talkative.stderr.startswith("info: ")
        assert vime_plain(*command, "--verbose", "--quiet").stderr == ""


def test_verbose_status_says_where_it_came_from(host: Host) -> None:
    host.pulled()
    lines = vime_plain("status", "--local", host.local, "--verbose").stderr.splitlines()
    assert lines == [
        f"info: share: {host.shared}",
        f"info: base: {host.base}",
        "info: built from: base 0, delta 1, delta 2",
        "info: known to be on the disk",
    ]


# ---- inspect


def test_inspect_says_nothing_of_what_is_not_there(host: Host) -> None:
    for path in (host.base, host.shared, toolkit.version_path(host.shared, 1)):
        text = vime_plain("inspect", path).stdout
        assert "None" not in text
        assert "committed" not in text
    document = vime("inspect", host.base).document
    assert (document["version"], document["committed_version"]) == (None, None)


def test_inspect_of_a_local_checkpoint_says_what_is_committed(host: Host) -> None:
    host.pulled()
    lines = vime_plain("inspect", host.local).stdout.splitlines()
    assert lines[0] == f"checkpoint: {host.local}"
    assert lines.count("  committed version: 2") == 1
    assert vime("inspect", host.local).document["committed_version"] == 2


def test_inspect_of_a_checkpoint_whose_shard_is_missing(host: Host) -> None:
    shard = next(host.base.glob("*.safetensors"))
    shard.unlink()
    result = vime("inspect", host.base)
    assert (result.code, result.error["id"]) == (11, "malformed")
    assert str(shard) in result.error["message"]


# ---- the bar


def shown_bar(width: int, phase: str, total: int) -> list[str]:
    """The lines that a terminal of this width shows in the middle of a phase."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    progress = progress_bar(console)
    bar = Bar(progress)
    bar.listen(f"start:{phase}", total, 1_500_000_000_000)
    for _ in range(3):
        bar.listen(phase, total // 4, 375_000_000_000)
    console.print(progress.get_renderable())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_bar_of_the_largest_model_fits_and_leaves_room() -> None:
    (line,) = shown_bar(80, "verify", 116_012)
    assert len(line) <= 77
    assert re.match(r"verify .*1\.1/1\.5 TB .*B/s +\d+:\d\d 87009/116012 tensors", line)
    assert all(len(line) <= 57 for line in shown_bar(60, "verify", 116_012))


def test_the_bar_counts_files_where_files_are_synced() -> None:
    (line,) = shown_bar(80, "sync", 8)
    assert line.startswith("sync ") and "6/8 files" in line


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("options", "bar"), [((), True), (("--quiet",), False), (("--log-format", "json"), False)])
def test_a_terminal_sees_the_bar_and_then_sees_it_gone(
    options: tuple[str, ...], bar: bool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, output = _Terminal(), io.StringIO()
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdout", output)
    places = [("--shared", host.shared), ("--local", host.local), ("--base", host.base)]
    assert run(["pull", *(str(word) for place in places for word in place), *options]) == 0
    assert ("tensors" in terminal.getvalue()) == bar
    assert "\x1b" not in output.getvalue()
