"""The README's examples, and a place where they can be run: a published stream, a shell, an engine, a daemon.

Blocks marked `sh` are run as they stand, but for the names of directories and addresses; what the block after one says
is what it prints. `watch` runs beside the examples that follow it, until those that are for a host without it. The
engine is the tests' fake vLLM.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests import toolkit
from tests.fake_vllm import FakeVllm
from tests.readme_model import Size, Trainer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALL = "python3 -m venv ~/vime-sync && ~/vime-sync/bin/pip install . && export PATH=~/vime-sync/bin:$PATH"

# Where the README's directories lie in a test.
PLACES = {
    "/mnt/share": "share", "/nvme/ckpt": "local", "/models/qwen3-tiny": "base", "/mnt/acks": "acks",
    "/mnt/saved": "saved", "/nvme/published": "published", "/ckpt/step_": "step_",
}  # fmt: skip
ENGINE, HTTP_PORT = "127.0.0.1:8000", "9178"
# The examples from this section on are for a host whose daemon was stopped.
WITHOUT_WATCH = "By hand"
SAFETY_S = 60.0


@dataclass(frozen=True)
class Example:
    """A block of commands, the section it stands in, and what the block after it says they print."""

    section: str
    commands: str
    language: str
    output: str

    @property
    def can_run(self) -> bool:
        """Not the scripts, which run this very test, nor the installation, which needs a package index."""
        lines = self.commands.splitlines()
        return lines != [INSTALL] and not all(line.startswith("./scripts/") for line in lines)


def examples() -> list[Example]:
    pattern = r"^```sh\n(.*?)^```\n(?:\n```(text|json)\n(.*?)^```$)?"
    blocks = re.finditer(pattern, README, re.MULTILINE | re.DOTALL)
    return [Example(_section_at(block.start()), *block.groups("")) for block in blocks]


def _section_at(place: int) -> str:
    headings = re.findall(r"^## (.*)$", README[:place], re.MULTILINE)
    return str(headings[-1]) if headings else ""


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
    _save_checkpoints(root, size, extra_files)


def _save_checkpoints(root: Path, size: Size, extra_files: dict[str, bytes]) -> None:
    """What another trainer saved, that began with the same base."""
    (root / PLACES["/mnt/saved"]).mkdir()
    trainer = Trainer(size)
    for step in (100, 200, 300):
        saved = root / f"{PLACES['/ckpt/step_']}{step}"
        toolkit.write_checkpoint(saved, trainer.train(1e-6), shards=2, extra_files=extra_files)


def make_programs(directory: Path) -> Path:
    """`vime-sync` and `python3` as a shell finds them, both from this environment and this checkout."""
    directory.mkdir()
    environment = f'PYTHONPATH="{ROOT}"'
    for name, arguments in (("vime-sync", "-m vime_sync"), ("python3", "")):
        program = directory / name
        program.write_text(f'#!/bin/sh\n{environment} exec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return directory


class Session:
    """The examples of the README, run one after another on one host; a context manager that leaves nothing behind."""

    def __init__(self, root: Path, size: Size) -> None:
        self._root = root
        publish_example_stream(root, size)
        self._programs = make_programs(root / "programs")
        self._engine = FakeVllm(root / PLACES["/models/qwen3-tiny"])
        self._http_port = "0"  # until `watch` says which one it was given
        self._watch: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Session":
        self._engine.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
        self._engine.__exit__(kind, error, at)

    def run(self, example: Example) -> str:
        """Run a block in a shell of its own; returns all it printed, with the README's names."""
        if self._watch is not None and example.section == WITHOUT_WATCH:
            self._end_watch()
        if example.commands.startswith("vime-sync watch "):
            return self._begin_watch(example)
        process = self._start(example.commands)
        output, _ = process.communicate(timeout=SAFETY_S)
        assert process.returncode == 0, f"{example.commands}\n{output}"
        return self._named(output)

    def _begin_watch(self, example: Example) -> str:
        """What it prints until its engine is loaded."""
        self._watch = self._start(f"exec {example.commands}")
        assert self._watch.stdout is not None
        too_long = threading.Timer(SAFETY_S, self._watch.kill)
        too_long.start()
        lines: list[str] = []
        while not lines or (lines[-1] and ": loaded version " not in lines[-1]):
            lines.append(self._watch.stdout.readline())
        too_long.cancel()
        output = "".join(lines)
        port = re.search(r"http on port (\d+)", output)
        assert port and lines[-1], f"{example.commands}\n{output}"
        self._http_port = port[1]
        # Its record is the last that it brings up to date after a pass.
        options = ("--version", "4", "--hosts", "1", "--served", "--timeout", str(SAFETY_S))
        waited = toolkit.vime("wait", "--ack-dir", self._root / PLACES["/mnt/acks"], *options)
        assert waited.code == 0, waited.stderr
        return self._named(output)

    def _end_watch(self) -> None:
        """Ctrl-C, and what the README says of it."""
        watch, self._watch = self._watch, None
        assert watch is not None
        watch.send_signal(signal.SIGINT)
        output, _ = watch.communicate(timeout=SAFETY_S)
        assert watch.returncode == 0, output
        last_words = output.splitlines()[-1].partition(": ")[2]
        assert f"exit code 0, and says `{last_words}`" in README

    def _start(self, commands: str) -> subprocess.Popen[str]:
        for told, name in PLACES.items():
            commands = commands.replace(told, str(self._root / name))
        commands = commands.replace(ENGINE, f"127.0.0.1:{self._engine.port}")
        commands = commands.replace(f"127.0.0.1:{HTTP_PORT}", f"127.0.0.1:{self._http_port}")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
        environment.pop("JOURNAL_STREAM", None)  # without it every line of a log has its time
        environment["PATH"] = f"{self._programs}:{environment['PATH']}"
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", commands],
            env=environment,
            cwd=self._root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _named(self, output: str) -> str:
        for told, name in PLACES.items():
            output = output.replace(str(self._root / name), told)
        output = output.replace(f"127.0.0.1:{self._engine.port}", ENGINE)
        return output.replace(f"port {self._http_port}\n", f"port {HTTP_PORT}\n")
