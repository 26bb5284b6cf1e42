"""The README's tables and the names in its text are those of the code: options, exit codes, endpoints, metrics."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests import toolkit
from tests.readme_examples import README, ROOT
from tests.readme_tables import section, table, tables
from vime_sync import errors
from vime_sync.cli.application import EXIT_CODES, application
from vime_sync.daemon.answers import PATHS
from vime_sync.daemon.metrics import METRICS
from vime_sync.engines.spec import API_KEY_VARIABLE, EngineKind, PauseMode

ENGINE_TROUBLE = (errors.EngineUnreachable, errors.EngineRefused, errors.EngineUncertain)
UNIT = (ROOT / "systemd" / "vime-sync@.service").read_text(encoding="utf-8")
# What others call with options of their own: vLLM, SGLang, systemctl, our scripts, and every command of ours.
OPTIONS_OF_OTHERS = {
    "--api-key", "--help", "--host", "--keep", "--model-path", "--now", "--port", "--settings",
    "--tensor-parallel-size", "--worker-extension-cls",
}  # fmt: skip


def _commands() -> dict[str, Any]:
    commands: dict[str, Any] = getattr(typer.main.get_command(application), "commands")  # noqa: B009 - a group's
    return commands


def _options() -> dict[str, dict[str, Any]]:
    """Option -> its parameter in each command that takes it, from the parser itself."""
    found: dict[str, dict[str, Any]] = {}
    for command, parser in _commands().items():
        for parameter in parser.params:
            option = parameter.opts[0]
            if option.startswith("--") and option != "--help":
                found.setdefault(option, {})[command] = parameter
    return found


def _settings() -> dict[str, tuple[frozenset[str], str]]:
    """Option -> the commands that the README names for it, and what it says."""
    rows = [row for found in tables(README, "## Settings") for row in found]
    told = {option.strip("`"): (_users(users), meaning) for option, users, meaning in rows}
    assert len(told) == len(rows), "an option stands there twice"
    return told


def _users(text: str) -> frozenset[str]:
    """`pull, watch`, `all`, `all but watch`."""
    among, _, without = text.partition("all but ")
    if text == "all" or without:
        return frozenset(_commands()) - {without}
    return frozenset(among.split(", "))


# ---- settings


def test_the_settings_are_the_parsers() -> None:
    told = {option: users for option, (users, _) in _settings().items()}
    assert told == {option: frozenset(users) for option, users in _options().items()}


@pytest.mark.parametrize("option", _settings())
def test_a_default_that_is_told_is_the_parsers(option: str) -> None:
    meaning = _settings()[option][1]
    for told in re.finditer(r"default (\d+)|`([\w-]+)` \(the default(?: of ([^)]+))?\)?", meaning):
        for command, parameter in _options()[option].items():
            default = getattr(parameter.default, "value", parameter.default)
            is_meant = not parameter.required and (told[3] is None or f"`{command}`" in told[3])
            assert not is_meant or str(default).removesuffix(".0") == (told[1] or told[2])


def test_every_option_has_its_environment_twin() -> None:
    for option, users in _options().items():
        for parameter in users.values():
            assert parameter.envvar == "VIME_SYNC_" + option.removeprefix("--").replace("-", "_").upper()


def test_every_option_that_is_named_is_one() -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z]\w*(?:-\w+)*\b(?!-)", README))  # and no arrow of the drawing
    assert named <= _options().keys() | OPTIONS_OF_OTHERS
    assert named >= _options().keys()


def test_every_variable_that_is_named_is_one() -> None:
    twins = {parameter.envvar for users in _options().values() for parameter in users.values()}
    hooks = (ROOT / "vime_sync" / "daemon" / "hooks.py").read_text(encoding="utf-8")
    twins |= set(re.findall(r'"(VIME_SYNC_FAILED_\w+)"', hooks))
    named = set(re.findall(r"VIME_SYNC_[A-Z_]*[A-Z]", README))
    assert named <= {*twins, API_KEY_VARIABLE}
    assert named >= set(re.findall(r'"(VIME_SYNC_FAILED_\w+)"', hooks))


# ---- exit codes and help


def test_the_exit_codes_are_those_of_the_code() -> None:
    told = {code: meaning for code, meaning, _ in table(README, "## Exit codes")}
    assert told.pop("128+n") == "ended by signal n"
    assert {int(code): meaning for code, meaning in told.items()} == EXIT_CODES
    classes = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.SyncError)]
    assert {item.code for item in classes} <= EXIT_CODES.keys()
    worst_first = sorted((kind.code for kind in ENGINE_TROUBLE), reverse=True)
    assert f"the worst of {worst_first[0]}, {worst_first[1]} and {worst_first[2]}" in README


@pytest.mark.parametrize("command", _commands())
def test_help_ends_with_exit_codes_and_two_examples(command: str) -> None:
    told = toolkit.vime_plain(command, "--help")
    assert told.code == 0
    examples, codes = told.stdout.split("Examples:", 1)[1].split("Exit codes:", 1)
    assert sum(line.strip().startswith("vime-sync ") for line in examples.splitlines()) == 2
    for line in codes.strip().splitlines()[:-1]:
        code, meaning = line.strip().split(maxsplit=1)
        assert EXIT_CODES[int(code)] == meaning


# ---- the daemon


def test_the_endpoints_are_those_of_the_daemon() -> None:
    assert {path.strip("`"): meaning for path, meaning in tables(README, "## HTTP")[0]} == PATHS


def test_the_metrics_are_those_of_the_daemon() -> None:
    told = [tuple(row) for row in tables(README, "## HTTP")[1]]
    described = [
        (f"`{item.name}`", item.kind, ", ".join(f"`{label}`" for label in item.labels), item.help) for item in METRICS
    ]
    assert told == described
    assert set(re.findall(r"`(vime_sync_\w+)`", README)) == {item.name for item in METRICS}


def test_what_the_unit_does_is_told() -> None:
    text = " ".join(section(README, "## As a service").split())
    codes = re.search(r"^RestartPreventExitStatus=(.*)$", UNIT, re.MULTILINE)
    watchdog = re.search(r"^WatchdogSec=(\d+)$", UNIT, re.MULTILINE)
    assert codes and watchdog
    *first, last = codes[1].split()
    assert f"it does not after {', '.join(first)} and {last}" in text
    assert f"no progress for {watchdog[1]} s" in text


def test_the_pause_modes_and_the_kinds_of_engines_are_told() -> None:
    modes = {re.findall(r"`(\w+)`", mode)[0] for mode, _, _ in table(README, "## With vLLM")}
    assert modes == {mode.value for mode in PauseMode}
    assert set(re.findall(r"--engine (\w+)=", README)) == {kind.value for kind in EngineKind}


# ---- the code


def test_the_layout_of_the_code_is_what_is_there() -> None:
    told = re.findall(r"^([\w./]+)  +\S", section(README, "## The code"), re.MULTILINE)
    for name in told:
        assert (ROOT / name).exists(), name
    package = ROOT / "vime_sync"
    there = {f"vime_sync/{path.name}" for path in package.glob("[a-z]*.py")}
    there |= {f"vime_sync/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert there <= set(told)
    folders = {f"{path.name}/" for path in _folders()}
    assert folders <= {name.partition("/")[0] + "/" for name in told}


def _folders() -> list[Path]:
    """Of the project itself, not what tools leave in a checkout."""
    return [ROOT / name for name in ("scripts", "systemd", "tests", "vime_sync")]
