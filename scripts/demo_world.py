"""The demo's three places (base, share, local), its trainer, and the independent proof of the host's bytes.

The program under demonstration runs in processes of its own, by its command line alone. What its bytes must be comes
from numpy over whole tensors, and what they are from the safetensors library.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.demo_model import Size, Trainer, changed_bytes, size_bytes
from scripts.demo_screen import Screen
from tests import toolkit

MEGABYTE = 1_000_000
PROGRAM = Path(sys.executable).with_name("vime-sync")
# A learning rate that changes about 0.5 % of the bytes, as late training steps do.
FINE_STEP = 1e-6


class DemoFailed(Exception):
    """The program did not do what the demo says it does."""


@dataclass(frozen=True)
class Published:
    """One version as it was published: what it says it is, and the right digest of every tensor."""

    kind: str
    wire_bytes: int
    changed_share: float
    digests: dict[str, str]


@dataclass(frozen=True)
class Pulled:
    """One row of the closing table."""

    came: str
    kind: str
    changed: int
    wire_bytes: int
    seconds: float
    gigabytes_per_second: float
    fingerprint: str


def fingerprint(digests: dict[str, str]) -> str:
    """One digest over all tensors' digests, short enough to compare by eye."""
    lines = "\n".join(f"{name} {digest}" for name, digest in sorted(digests.items()))
    return toolkit.digest(lines.encode())[:8]


class World:
    """Everything lies in one directory, so that the commands shown are short; they run in it."""

    def __init__(self, root: Path, screen: Screen, size: Size) -> None:
        self.root, self.screen = root, screen
        self.base, self.share, self.local = root / "base", root / "share", root / "local"
        self.trainer = Trainer(size)
        self.published: dict[int, Published] = {}
        self.rows: list[Pulled] = []
        self.held: int | None = None  # the version that the host was last proven to hold
        self.size_bytes = size_bytes(self.trainer.weights)
        self._extra_files = {"config.json": size.config(), "tokenizer.json": b'{"version": "1.0", "model": {}}\n'}
        toolkit.write_checkpoint(self.base, self.trainer.weights, shards=3, extra_files=self._extra_files)
        self.share.mkdir()

    # ---- the trainer

    @property
    def newest(self) -> int:
        return max(self.published, default=0)

    def publish(
        self, encoding: str = "xor", checksum: str = "xxh3-128", learning_rate: float = FINE_STEP, *, say: bool = True
    ) -> Path:
        """The trainer takes a step and writes the next version as a delta."""
        old = self.trainer.weights
        new = self.trainer.train(learning_rate)
        version = self.newest + 1
        directory = toolkit.publish_delta(self.share, version, old, new, encoding=encoding, checksum=checksum, ranks=2)
        self._note(version, f"{encoding} delta", directory, changed_bytes(old, new) / self.size_bytes)
        if say:
            self.say_published(version)
        return directory

    def publish_full(self) -> Path:
        """The trainer takes a step and writes the next version as a whole checkpoint."""
        old, version = self.trainer.weights, self.newest + 1
        new = self.trainer.train(FINE_STEP)
        directory = toolkit.publish_full(self.share, version, new, shards=2, extra_files=self._extra_files)
        self._note(version, "full", directory, changed_bytes(old, new) / self.size_bytes)
        self.say_published(version)
        return directory

    def _note(self, version: int, kind: str, directory: Path, changed_share: float) -> None:
        wire_bytes = sum(path.stat().st_size for path in directory.iterdir())
        self.published[version] = Published(kind, wire_bytes, changed_share, toolkit.digests(self.trainer.weights))

    def say_published(self, version: int) -> None:
        published = self.published[version]
        self.screen.fact(
            "trainer",
            f"published v{version}: {published.kind}, {published.changed_share:.2%} of the bytes changed, "
            f"{published.wire_bytes / MEGABYTE:.1f} MB",
        )

    # ---- the host

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Show a command and start it."""
        self.screen.command(shlex.join(("vime-sync", *arguments)))
        self.expect(PROGRAM.exists(), f"{PROGRAM} is not there: run scripts/demo, which installs it")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
        return subprocess.Popen(
            [str(PROGRAM), *arguments],
            cwd=self.root,
            env={**environment, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
        """What it printed; whatever stops the demo meanwhile stops it too."""
        try:
            return process.communicate()
        except BaseException:
            process.kill()
            process.wait()
            raise

    def show(self, *arguments: str, expect: int = 0) -> None:
        """Run a command and show what it prints."""
        process = self.start(*arguments)
        output, messages = self.finish(process)
        self.screen.output(output)
        self.screen.output(messages, failed=expect != 0)
        if expect:
            self.screen.fact("exit code", str(process.returncode))
        self.expect(process.returncode == expect, f"it exits with {process.returncode}, expected {expect}")

    def pull(self, came: str, *options: str, version: int | None = None) -> dict[str, Any]:
        """Pull, show the figures in one line, and prove the result. `version` is what must come out."""
        wanted = self.newest if version is None else version
        # The figures come from the JSON document, asked for in the environment to keep the command short.
        process = self.start("pull", "--local", "local", *options, env={"VIME_SYNC_JSON": "true"})
        output, messages = self.finish(process)
        if process.returncode:
            self.screen.output(messages, failed=True)
        self.expect(process.returncode == 0, f"it exits with {process.returncode}, expected 0")
        document: dict[str, Any] = json.loads(output)
        self.expect(document["version"] == wanted, f"it says version {document['version']}, expected {wanted}")
        self._show_pulled(came, document)
        return document

    def _show_pulled(self, came: str, document: dict[str, Any]) -> None:
        version, seeded = document["version"], document["seeded_from"]
        first = seeded if seeded is not None else self.held
        assert first is not None, "a fresh host is seeded"
        read = [self.published[number] for number in range(first + 1, version + 1)]
        if seeded:
            read.insert(0, self.published[seeded])
        kind = _kinds([*(["base"] if seeded == 0 else []), *(published.kind for published in read)])
        wire_bytes = sum(published.wire_bytes for published in read)
        before = {} if self.held is None else self.published[self.held].digests
        changed = sum(before.get(name) != digest for name, digest in self.published[version].digests.items())
        seconds = document["seconds"]["total"]
        at_work = document["seconds"]["seed"] + document["seconds"]["apply"] or seconds
        speed = self.size_bytes / at_work / 1e9 if read else 0.0  # a repair does not go over all weights
        repaired = f", {document['tensors_repaired']} repaired" if document["tensors_repaired"] else ""
        self.screen.fact(
            "host",
            f"{came.split(' (')[0]}: {kind}, {changed} tensors changed{repaired}, {wire_bytes / MEGABYTE:.1f} MB, "
            f"{seconds:.2f} s" + (f", {speed:.2f} GB/s" if speed else ""),
        )
        found = self.prove(version)
        self.rows.append(Pulled(came, kind, changed, wire_bytes, seconds, speed, found))
        self.held = version

    # ---- the proof

    def prove(self, version: int) -> str:
        """Hold every tensor of the local checkpoint against that version's; returns the fingerprint."""
        held = toolkit.digests(toolkit.read_checkpoint(self.local))
        right = self.published[version].digests
        found, wanted = fingerprint(held), fingerprint(right)
        told = f"{len(held)} tensors: safetensors reads {found}, numpy says {wanted}"
        self.screen.proof(told, right=held == right)
        self.expect(held == right, f"the local bytes are not those of version {version}")
        return found

    def where_tensors_are(self, old: int, new: int) -> tuple[int, int, int]:
        """How many of the tensors that differ between two versions are at the old, at the new one, and half way."""
        held = toolkit.digests(toolkit.read_checkpoint(self.local))
        before, after = self.published[old].digests, self.published[new].digests
        differing = [name for name in held if before[name] != after[name]]
        at_old = sum(held[name] == before[name] for name in differing)
        at_new = sum(held[name] == after[name] for name in differing)
        return at_old, at_new, len(differing) - at_old - at_new

    @staticmethod
    def expect(right: bool, complaint: str) -> None:
        if not right:
            raise DemoFailed(complaint)


def _kinds(kinds: list[str]) -> str:
    """`xor delta`, or what was folded into one pass: `base + 2 deltas`."""
    if not kinds:
        return "repair"
    if len(kinds) == 1:
        return kinds[0]
    anchors = [kind for kind in kinds if not kind.endswith("delta")]
    deltas = len(kinds) - len(anchors)
    return " + ".join([*anchors, f"{deltas} deltas" if deltas != 1 else kinds[-1]])
