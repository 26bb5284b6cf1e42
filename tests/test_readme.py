"""The README and the format document say what is so: commands are run, tables are held against the code.

`python -m tests.test_readme` runs the README's commands on a stream of the demo's size and writes what they print now.
"""

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from scripts.demo_model import Size, Trainer
from tests import toolkit
from vime_sync import errors
from vime_sync.cli.application import EXIT_CODES, application
from vime_sync.local.paths import LocalPaths

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "vime_sync" / "docs" / "FORMAT.md").read_text(encoding="utf-8")

# Where the README's directories lie in a test.
PLACES = {"/mnt/share": "share", "/nvme/ckpt": "local", "/models/qwen3-tiny": "base"}
# The layout of the demo's model with all its tensors, in a hundredth of its size.
SMALL = Size(vocabulary=500, hidden=64, intermediate=128, heads=1, key_value_heads=1)
INSTALL = "python3 -m venv ~/vime-sync && ~/vime-sync/bin/pip install . && export PATH=~/vime-sync/bin:$PATH"


@dataclass(frozen=True)
class Example:
    """A block of commands, and what the block after it says they print."""

    commands: str
    language: str
    output: str


def _examples() -> list[Example]:
    pattern = r"^```sh\n(.*?)^```\n(?:\n```(text|json)\n(.*?)^```$)?"
    return [Example(*found.groups("")) for found in re.finditer(pattern, README, re.MULTILINE | re.DOTALL)]


def _table(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    section = document.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


# ---- commands


def publish_example_stream(root: Path, size: Size) -> None:
    """Base and share of the README: xor, overwrite, a full version, xor with another digest."""
    extra_files = {"config.json": size.config(), "tokenizer.json": b'{"version": "1.0"}'}
    trainer = Trainer(size)
    share = root / PLACES["/mnt/share"]
    toolkit.write_checkpoint(root / PLACES["/models/qwen3-tiny"], trainer.weights, shards=3, extra_files=extra_files)
    for version in (1, 2, 3, 4):
        old, new = trainer.weights, trainer.train(1e-6)
        if version == 3:
            toolkit.publish_full(share, version, new, extra_files=extra_files)
        else:
            encoding, checksum = ("overwrite" if version == 2 else "xor"), ("blake3" if version == 4 else "xxh3-128")
            toolkit.publish_delta(share, version, old, new, encoding=encoding, checksum=checksum, ranks=2)


def run_example(example: Example, root: Path, programs: Path) -> str:
    """Run a block in a shell of its own; returns all it printed, with the README's names of places."""
    commands = example.commands
    for place, name in PLACES.items():
        commands = commands.replace(place, str(root / name))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env=environment,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{example.commands}\n{result.stdout}"
    output = result.stdout
    for place, name in PLACES.items():
        output = output.replace(str(root / name), place)
    return output


def can_run(example: Example) -> bool:
    """Not the scripts, which run this very test, nor the installation, which needs a package index."""
    lines = example.commands.splitlines()
    return lines != [INSTALL] and not all(line.startswith("./scripts/") for line in lines)


def make_programs(directory: Path) -> Path:
    """`vime-sync` and `python3` as a shell finds them, both from this environment and this checkout."""
    directory.mkdir()
    environment = f'PYTHONPATH="{ROOT}"'
    for name, arguments in (("vime-sync", "-m vime_sync"), ("python3", "")):
        program = directory / name
        program.write_text(f'#!/bin/sh\n{environment} exec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return directory


def _shape(text: str) -> str:
    """What must not differ between the README's run and this one: all but sizes, times and digests."""
    text = re.sub(r"\d+(\.\d+)? (B|kB|MB|GB|TB)\b", "SIZE", text)
    text = re.sub(r"\d+\.\d+ s\b", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{32,}\b", "DIGEST", text)
    text = re.sub(r"\b\d{4,}\b", "NUMBER", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def _json_shape(document: dict[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in document.items()}


def test_every_command_runs_and_prints_what_the_readme_says(tmp_path: Path) -> None:
    publish_example_stream(tmp_path, SMALL)
    programs = make_programs(tmp_path / "programs")
    ran = 0
    for example in filter(can_run, _examples()):
        output = run_example(example, tmp_path, programs)
        ran += 1
        if example.language == "json":
            told, found = json.loads(example.output), json.loads(output)
            missing = _json_shape(told).items() - _json_shape(found).items()
            assert not missing, f"{example.commands}the README shows what is not printed: {missing}"
        else:
            assert _shape(output) == _shape(example.output), example.commands
    assert ran >= 8


def test_the_scripts_of_the_quick_start_are_there_and_explain_themselves() -> None:
    scripts = re.findall(r"^\./(scripts/\w+)$", README, re.MULTILINE)
    assert scripts == ["scripts/demo", "scripts/test"]
    for name in [*scripts, ".ci/run"]:
        path = ROOT / name
        assert path.stat().st_mode & stat.S_IXUSR, f"{name} cannot be run"
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    for name in scripts:
        told = subprocess.run([ROOT / name, "--help"], check=True, capture_output=True, text=True).stdout
        assert told.startswith(f"Usage: {name}")


def test_what_is_installed_brings_the_command() -> None:
    assert INSTALL in README
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^name = "vime-sync"$', project, re.MULTILINE)
    assert re.search(r'^vime-sync = "vime_sync\.cli:main"$', project, re.MULTILINE)


def test_what_the_package_imports_is_declared() -> None:
    """What comes along with another dependency today may not tomorrow."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("\ndependencies = [\n", 1)[1].split("]", 1)[0]
    declared = {name.replace("-", "_") for name in re.findall(r'^ +"([\w-]+)>=[\d.]+",$', project, re.MULTILINE)}
    imported = set()
    for path in (ROOT / "vime_sync").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        imported.update(re.findall(r"^\s*(?:from|import) (\w+)", source, re.MULTILINE))
    assert imported - sys.stdlib_module_names - {"vime_sync"} <= declared


# ---- tables


def _options() -> dict[str, tuple[str, frozenset[str]]]:
    """Option -> its environment twin and the commands that take it, from the parser itself."""
    commands: dict[str, Any] = getattr(typer.main.get_command(application), "commands")  # noqa: B009 - a group's
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for command, parser in commands.items():
        for parameter in parser.params:
            option = parameter.opts[0]
            if not option.startswith("--") or option == "--help":
                continue
            _, users = found.get(option, ("", frozenset()))
            found[option] = (str(parameter.envvar), users | {command})
    return found


def test_the_settings_table_is_the_parsers() -> None:
    told = {
        option.strip("`"): (twin.strip("`"), frozenset(commands.split(", ")))
        for option, twin, commands, _ in _table(README, "## Settings")
    }
    assert told == _options()


def test_every_option_has_its_environment_twin() -> None:
    for option, (twin, _) in _options().items():
        assert twin == "VIME_SYNC_" + option.removeprefix("--").replace("-", "_").upper()


def test_the_exit_codes_are_those_of_the_code() -> None:
    told = {code: meaning for code, meaning, _ in _table(README, "## Exit codes")}
    assert told.pop("128+n") == "ended by signal n"
    assert {int(code): meaning for code, meaning in told.items()} == EXIT_CODES
    classes = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.SyncError)]
    assert {item.code for item in classes} <= EXIT_CODES.keys()


@pytest.mark.parametrize("command", ["pull", "verify", "status", "inspect"])
def test_help_ends_with_exit_codes_and_two_examples(command: str) -> None:
    told = toolkit.vime_plain(command, "--help")
    assert told.code == 0
    examples, codes = told.stdout.split("Examples:", 1)[1].split("Exit codes:", 1)
    assert sum(line.strip().startswith("vime-sync ") for line in examples.splitlines()) == 2
    for line in codes.strip().splitlines()[:-1]:
        code, meaning = line.strip().split(maxsplit=1)
        assert EXIT_CODES[int(code)] == meaning


def test_the_layout_of_the_code_is_what_is_there() -> None:
    section = README.split("\n## The code\n", 1)[1]
    told = re.findall(r"^([\w./]+)  +\S", section, re.MULTILINE)
    for name in told:
        assert (ROOT / name).exists(), name
    package = ROOT / "vime_sync"
    there = {f"vime_sync/{path.name}" for path in package.glob("[a-z]*.py")}
    there |= {f"vime_sync/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert there <= set(told)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


# ---- the format document


def test_the_format_document_names_every_record_on_the_host(tmp_path: Path) -> None:
    paths = LocalPaths(tmp_path)
    names = [name for name, member in vars(LocalPaths).items() if isinstance(member, property) and name != "sync"]
    told = {row[0].strip("`").rstrip("/") for row in _table(FORMAT, "## 7. Records on the host")}
    assert {getattr(paths, name).name for name in names} <= told


def test_the_format_document_names_every_key_of_the_state(tmp_path: Path) -> None:
    model = toolkit.make_model(kib=4)
    toolkit.write_checkpoint(tmp_path / "base", model)
    toolkit.publish_delta(tmp_path / "share", 1, model, toolkit.step(model, 1))
    assert toolkit.pull(tmp_path / "share", tmp_path / "local", base=tmp_path / "base").code == 0
    state = json.loads((tmp_path / "local" / ".weight_sync" / "state.json").read_text(encoding="utf-8"))
    told = {
        key for row in _table(FORMAT, "## 8. What is committed: `state.json` and the digest tables")
        for key in re.findall(r"`(\w+)`", row[0])
    }  # fmt: skip
    assert state.keys() == {"version", "vime_sync"}
    assert state["vime_sync"].keys() == told


def _write_outputs() -> None:
    """Bring the outputs shown in the README up to date."""
    text = README
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        publish_example_stream(root, Size())
        programs = make_programs(root / "programs")
        for example in filter(can_run, _examples()):
            output = run_example(example, root, programs)
            shown = f"{example.commands}```\n\n```{example.language}\n"
            text = text.replace(f"{shown}{example.output}```", f"{shown}{output}```")
    (ROOT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write_outputs()
