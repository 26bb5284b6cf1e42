"""The runbook (vime_sync/docs/RUNBOOK.md) is of this program: each code and id has its section, each command is one."""

import inspect
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main

from vime_sync import errors
from vime_sync.cli.application import EXIT_CODES, application

ROOT = Path(__file__).parents[1]
RUNBOOK = (ROOT / "vime_sync" / "docs" / "RUNBOOK.md").read_text(encoding="utf-8")
PARTS = ("**Symptom**", "**Check**", "**Action**", "**Never**")
ACROSS = (
    "The engine will not load",
    "A host lags behind",
    "After a power loss",
    "Disk full",
    "Roll back the fleet",
    "The trainer restarted",
)
# Programs of the system that the runbook calls. What follows has options of their own.
OTHERS = {
    "curl", "df", "dmesg", "du", "findmnt", "journalctl", "ls", "namei", "ps", "sha256sum", "sudo", "systemctl",
}  # fmt: skip
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _sections(mark: str, document: str) -> dict[str, str]:
    """Heading -> what stands below it, up to the next heading of its kind or of a higher one."""
    pieces = re.split(rf"^{mark} (.*)$", document, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


TOP = _sections("##", RUNBOOK)
IDS: dict[str, tuple[str, str]] = {
    heading.strip("`"): (top, text) for top, below in TOP.items() for heading, text in _sections("###", below).items()
}


def _error_classes() -> list[type[errors.SyncError]]:
    found = [item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, errors.SyncError)]
    assert len(found) > 20
    return found


def _commands() -> list[str]:
    """Every line of every block of commands."""
    blocks = [text for language, text in _FENCE.findall(RUNBOOK) if language in ("sh", "bash")]
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def _parsers() -> dict[str, Any]:
    parsers: dict[str, Any] = getattr(typer.main.get_command(application), "commands")  # noqa: B009 - a group's
    return parsers


def _options() -> set[str]:
    return {option for parser in _parsers().values() for parameter in parser.params for option in parameter.opts}


# ---- sections


def test_every_exit_code_has_its_section() -> None:
    told = [heading.removeprefix("Exit ") for heading in TOP if heading.startswith("Exit ")]
    assert told == [*map(str, sorted(EXIT_CODES)), "128+n"]


def test_every_error_id_has_its_section_under_its_code() -> None:
    for kind in _error_classes():
        assert kind.id in IDS, kind
        code = "128+n" if kind is errors.Interrupted else str(kind.code)
        assert IDS[kind.id][0] == f"Exit {code}"
    assert IDS.keys() == {kind.id for kind in _error_classes()}


def _answers() -> dict[str, str]:
    """What must have symptom, check, action, never: each id's section, and codes that have none."""
    whole = {top: text for top, text in TOP.items() if top.startswith("Exit ") and "\n### " not in text}
    return {**whole, **{identifier: text for identifier, (_, text) in IDS.items()}}


@pytest.mark.parametrize("name", _answers())
def test_a_section_says_symptom_check_action_and_what_never_to_do(name: str) -> None:
    text = _answers()[name]
    places = [text.find(part) for part in PARTS]
    assert -1 not in places and places == sorted(places), places
    symptom, check, action, never = (
        text[begin:end] for begin, end in zip(places, [*places[1:], len(text)], strict=True)
    )
    assert "```text" in symptom and "```sh" in check
    assert re.search(r"^1\. ", action, re.MULTILINE)
    assert never.strip() != PARTS[-1]
    if name in IDS:
        assert f"error [{name}]: " in symptom


@pytest.mark.parametrize("heading", ACROSS)
def test_what_goes_across_codes_has_numbered_steps_and_says_what_never_to_do(heading: str) -> None:
    text = TOP[heading]
    assert re.search(r"^1\. ", text, re.MULTILINE) and re.search(r"^2\. ", text, re.MULTILINE)
    assert "**Never**" in text


def test_it_says_what_never_to_do_at_all() -> None:
    never = TOP["Never"]
    for what in (".weight_sync", "write into LOCAL by hand", "resume an engine", "lock file"):
        assert what in never


# ---- commands, options, names


@pytest.mark.parametrize("line", [line for line in _commands() if line.startswith("vime-sync ")])
def test_a_command_of_ours_parses(line: str) -> None:
    words = shlex.split(line)[1:]
    if words[0] == "--settings":
        words = words[2:]
    if words == ["--version"]:
        return
    parser = _parsers()[words[0]]
    if words[1:] == ["--help"]:
        return
    needed = [] if line.count("--settings") == 0 else ["--local", "/nvme/ckpt"]
    parser.make_context(words[0], [*words[1:], *needed])


def test_the_commands_are_ours_or_the_systems() -> None:
    programs = {shlex.split(line)[0] for line in _commands()}
    assert programs <= {"vime-sync", *OTHERS}
    assert {"vime-sync", "systemctl", "journalctl"} <= programs


def test_the_commands_are_right_for_a_shell() -> None:
    done = subprocess.run(["bash", "-n"], input="\n".join(_commands()), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_option_and_variable_in_its_text_is_one() -> None:
    prose = _FENCE.sub("", RUNBOOK)
    assert set(re.findall(r"(?<![\w-])--[a-z]\w*(?:-\w+)*", prose)) <= _options()
    twins = {parameter.envvar for parser in _parsers().values() for parameter in parser.params}
    assert set(re.findall(r"VIME_SYNC_[A-Z_]*[A-Z]", RUNBOOK)) <= twins
    metrics = (ROOT / "vime_sync" / "daemon" / "metrics.py").read_text(encoding="utf-8")
    told = set(re.findall(r"(?<!\.)\bvime_sync_[a-z_]+\b", RUNBOOK)) - {"vime_sync"}
    assert all(f'"{name}"' in metrics for name in told)


def test_every_section_that_it_refers_to_is_there() -> None:
    for heading in re.findall(r'"([A-Z][a-z]+ [a-z ]+)"', _FENCE.sub("", RUNBOOK)):
        assert heading in TOP or heading == "Out of memory", heading
    for name in re.findall(r"[Ss]ee `(\w+)`", RUNBOOK):
        assert name in IDS, name


def test_every_option_in_a_hint_is_one() -> None:
    """Hints are read by people at three in the morning: what they tell to give can be given."""
    hints = [kind.hint for kind in _error_classes()]
    for path in sorted((ROOT / "vime_sync").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        hints += re.findall(r'hint\s*=\s*\(?\s*f?"([^"]*)"', source, re.IGNORECASE)
    named = {option for hint in hints for option in re.findall(r"(?<![\w-])--[a-z]\w*(?:-\w+)*", hint)}
    assert len(named) > 8
    assert named <= _options() | {"--help"}
