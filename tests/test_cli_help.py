"""Help that a shell's user can rely on: examples that parse, exit codes that exist, lines that fit; and every hint."""

import re
import shlex
from typing import Any

import pytest
import typer.main

from tests.toolkit import vime_plain
from vime_sync import errors
from vime_sync.cli.application import EXIT_CODES, application

PROGRAM: Any = typer.main.get_command(application)  # as the parser's own types have it
COMMANDS: dict[str, Any] = dict(PROGRAM.commands)
OUTPUT_OPTIONS = {"--quiet", "--verbose", "--log-format"}


def help_of(*command: str, columns: int = 80) -> str:
    result = vime_plain(*command, "--help", env={"COLUMNS": str(columns), "TERM": "dumb"})
    assert (result.code, result.stderr) == (0, "")
    return result.stdout


def examples_of(text: str) -> list[str]:
    block = text.split("  Examples:\n", 1)[1].split("\n\n", 1)[0]
    return [line.strip() for line in block.splitlines()]


def options_of(command: Any) -> dict[str, Any]:
    return {name: option for option in command.params for name in option.opts if name.startswith("--")}


def expect_parses(example: str) -> str:
    """Every option of an example exists, has its value, and none that must be there is missing; returns the command."""
    words = shlex.split(example)
    assert words[0] == "vime-sync"
    environment = {}
    if words[1] == "--settings":  # whose lines say where LOCAL is
        del words[1:3]
        environment = {"VIME_SYNC_LOCAL": "/nvme/ckpt"}
    name, arguments = words[1], words[2:]
    command = COMMANDS[name]
    for word in arguments:
        assert not word.startswith("-") or word in options_of(command), f"{example}: {word}"
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        command.make_context("vime-sync", list(arguments))  # raises where the parser would refuse it
    return name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_two_examples_of_a_command_would_run(name: str) -> None:
    examples = examples_of(help_of(name))
    assert len(examples) == len(set(examples)) == 2
    assert [expect_parses(example) for example in examples] == [name, name]


def test_the_examples_of_the_program_would_run() -> None:
    examples = examples_of(help_of())
    assert len(examples) == 2
    for example in examples:
        expect_parses(example)


def test_an_example_with_a_wrong_option_would_be_seen() -> None:
    for wrong in ("pull --local /x --no-such", "prune --shared /x", "pull --local"):
        with pytest.raises((AssertionError, Exception)):
            expect_parses(f"vime-sync {wrong}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_exit_code_of_a_command_is_one_of_the_table(name: str) -> None:
    rows = help_of(name).split("  Exit codes:\n", 1)[1].splitlines()
    told = dict(re.findall(r"^    (\d+) +(.*)$", "\n".join(rows), re.MULTILINE))
    codes = [int(code) for code in told]
    assert codes == sorted(codes)
    assert {int(code): meaning for code, meaning in told.items()}.items() <= EXIT_CODES.items()
    assert {0, 1, 2} <= set(codes)


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_and_nothing_breaks_on_a_narrow_terminal(name: str, columns: int) -> None:
    text = help_of(*filter(None, [name]), columns=columns)
    # Examples and exit codes are there to be copied: they are not broken.
    prose = text.split("  Examples:\n", 1)[0]
    width = columns if columns >= 60 else 56  # the option parser needs some
    assert max(len(line) for line in prose.splitlines()) <= width
    assert columns < 80 or max(len(line) for line in text.splitlines()) <= columns
    assert "\x1b" not in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_told_in_a_sentence_and_has_its_twin(name: str) -> None:
    for option, parameter in options_of(COMMANDS[name]).items():
        if option == "--help":
            continue
        assert parameter.help and parameter.help.endswith("."), option
        assert not parameter.help[0].islower() or parameter.help.startswith(("vllm", "zstd")), option
        assert len(parameter.help) <= 140, option
        twin = "VIME_SYNC_" + option.removeprefix("--").replace("-", "_").upper()
        assert parameter.envvar == twin, option
    assert options_of(COMMANDS[name]).keys() >= OUTPUT_OPTIONS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_one_sentence(name: str) -> None:
    summary = (COMMANDS[name].help or "").partition("\n")[0]
    assert summary.endswith(".") and summary[0].isupper()


# ---- hints


def error_classes(root: type[errors.SyncError] = errors.SyncError) -> list[type[errors.SyncError]]:
    return [root, *(found for item in root.__subclasses__() for found in error_classes(item))]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_says_one_thing_to_do(kind: type[errors.SyncError]) -> None:
    hint = kind.hint
    assert hint == hint.strip() and hint.isprintable()
    assert hint[0].isupper() and hint.endswith(".")
    assert 15 <= len(hint) <= 140
    assert hint.count(". ") <= 1  # one thing to do, and at most what it was spared
    if kind is not errors.SyncError:
        assert hint != errors.SyncError.hint, "an expected failure is no bug"


def test_a_hint_names_only_options_that_exist() -> None:
    known = {"--help", *(option for command in COMMANDS.values() for option in options_of(command))}
    for kind in error_classes():
        assert set(re.findall(r"--[a-z][a-z-]*", kind.hint)) <= known, kind
