"""Completion by TAB: commands, options and values, for three shells, without looking at LOCAL or the share."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything

ROOT = Path(__file__).parent.parent
SAFETY_S = 60.0


def complete(shell: str, *words: str, cwd: Path | None = None, **more: str) -> list[str]:
    """What a shell is told for the words so far, the last one incomplete."""
    line = " ".join(("vime-sync", *words))
    environment: dict[str, str] = {"_VIME_SYNC_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment.update(COMP_WORDS=line, COMP_CWORD=str(len(words)))
    else:
        environment.update(_TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="get-args")
    told = run((), {**environment, **more}, cwd).stdout
    if shell == "zsh":
        return [line.strip("()'").partition('"')[2].partition('"')[0] for line in told.splitlines() if '"' in line]
    return [line.split("\t")[0] for line in told.splitlines()]


def run(
    arguments: tuple[str, ...], environment: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    result = subprocess.run(
        [sys.executable, "-m", "vime_sync", *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SAFETY_S,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_and_the_commands(shell: str) -> None:
    script = run((), {"_VIME_SYNC_COMPLETE": f"source_{shell}"}).stdout
    assert "vime-sync" in script and "_VIME_SYNC_COMPLETE" in script
    commands = {"pull", "watch", "status", "verify", "reload", "inspect", "wait", "publish", "prune"}
    assert commands <= set(map(first_word, complete(shell, "")))
    assert set(map(first_word, complete(shell, "pu"))) == {"publish", "pull"}


def first_word(told: str) -> str:
    return told.split(":")[0].split()[0]


def test_show_completion_prints_the_script_of_the_shell_at_hand() -> None:
    """Which shell that is it finds out by itself; told not to look, it takes the word."""
    for shell in ("bash", "zsh", "fish"):
        shown = run(("--show-completion", shell), {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}).stdout
        assert "_VIME_SYNC_COMPLETE" in shown and f"complete_{shell}" in shown


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("prune", "--k"), ["--keep"]),
        (("pull", "--pause-mode", ""), ["wait", "abort", "keep"]),
        (("publish", "--encoding", ""), ["xor", "overwrite", "full"]),
        (("publish", "--checksum", "b"), ["blake3"]),
        (("status", "--log-format", "j"), ["json"]),
        (("pull", "--version", "l"), ["latest"]),
        (("watch", "--version", ""), ["latest"]),
        (("watch", "--on-new-stream", ""), ["reseed", "fail"]),
        (("wait", "--version", "la"), ["latest"]),
    ],
)
def test_options_and_values(words: tuple[str, ...], values: list[str]) -> None:
    assert complete("bash", *words) == values


def test_every_option_of_a_command_is_offered() -> None:
    found = complete("bash", "prune", "--")
    assert {"--shared", "--keep", "--ack-dir", "--dry-run", "--json", "--quiet", "--help"} <= set(found)


def test_completing_touches_neither_local_nor_the_share(tmp_path: Path) -> None:
    """Not even with everything set in the environment, and never does it run the command."""
    host = Host.create(tmp_path, model=toolkit.make_model(kib=4))
    host.publish()
    before = everything(tmp_path)
    twins = {"VIME_SYNC_SHARED": str(host.shared), "VIME_SYNC_LOCAL": str(host.local), "VIME_SYNC_BASE": str(host.base)}
    for words in (
        ("pull", "--"),
        ("pull", "--shared", str(host.shared), "--local", str(host.local), "--"),
        ("prune", ""),
    ):
        complete("bash", *words, cwd=tmp_path, **twins)
    assert everything(tmp_path) == before
