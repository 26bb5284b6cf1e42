"""Commands over a LOCAL with one spoilt record: it heals, and nothing of the user's is touched.

Where somebody has made the record, with a seal that fits, and it lies, no file leaves its place all the same, and no
command ends as a bug.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from unittest import mock

from tests import toolkit
from tests.host import Host
from tests.hostile.mutation import spoil, spoil_document
from tests.hostile.target import Target
from tests.kill_jobs import JOBS, bring_fresh, create
from tests.kill_points import PULL_THREADS, kill, operations, shard_writes
from tests.sealed import seal_again, sealed
from tests.toolkit import STATE_DIRECTORY
from vime_sync import fsio

_ENGINES = {
    "schema": "vime-sync/engines/1",
    "engines": {
        "vllm=http://127.0.0.1:9": {
            "weights": [1, "ab" * 16, 0], "told": "1", "open": False, "leave_paused": False, "error": None,
            "error_id": None,
        },
        "webhook=http://127.0.0.1:9/x": {
            "weights": None, "told": None, "open": True, "leave_paused": True, "error": "no",
            "error_id": "engine_refused",
        },
    },
}  # fmt: skip
_TROUBLE = {
    "schema": "vime-sync/error/1", "code": 11, "id": "malformed", "message": "m", "hint": "h", "retryable": False,
    "version": 2, "tensors": ["t"],
}  # fmt: skip
# What a command may answer to records that parse and lie: another lineage, another directory, no way to heal.
_ANSWERS = (0, 2, 10, 13, 21, 22, 23)


def _at_rest(host: Host) -> None:
    """At version 2 of 3, with what a pass in place keeps for the way back."""
    host.pulled(*PULL_THREADS, version=2)


def _killed_applying(host: Host) -> None:
    kill(lambda: JOBS["apply"].run(host), 1, shard_writes(host.local))


def _killed_replacing(host: Host) -> None:
    kill(lambda: JOBS["replacement"].run(host), 1, operations("rename", ".safetensors"))


class RecordsTarget(Target):
    """One record of LOCAL is spoilt; then come `status`, `verify` and `pull`."""

    job: ClassVar[str] = "folded"
    targets: ClassVar[tuple[int, ...]] = (1, 2, 3)
    cut_short: ClassVar[Callable[[Host], None]] = _at_rest
    flips_only: ClassVar[bool] = False

    def may_spoil(self, name: str) -> bool:
        """Left out of flips is what proves itself by its own digest, or is for people only."""
        return not self.flips_only or name.endswith(("state.json", "intent.json", "owner.json", "journal"))

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._host = create(directory / "host", JOBS[self.job], kib=4)
        bring_fresh(self._host, JOBS[self.job])
        type(self).cut_short(self._host)
        records = self._host.local / STATE_DIRECTORY
        (records / "engines.json").write_bytes(sealed(_ENGINES))
        (records / "last_error.json").write_bytes(sealed(_TROUBLE))
        self._template = directory / "template"
        self._host.local.rename(self._template)
        found = (path for path in sorted((self._template / STATE_DIRECTORY).rglob("*")) if path.is_file())
        self._names = [str(path.relative_to(self._template)) for path in found if path.stat().st_size]
        self._contents = [(self._template / name).read_bytes() for name in self._names]
        self._canaries = [self._host.root / "canary", directory / "canary.safetensors"]

    def play(self, rng: random.Random) -> str:
        for canary in self._canaries:
            canary.write_bytes(b"mine")
        shutil.rmtree(self._host.local, ignore_errors=True)
        shutil.copytree(self._template, self._host.local)
        name, made = self._spoil_one(rng)
        for command in (("status",), ("status", "--shared", str(self._host.shared)), ("verify",)):
            self._run(*command, "--local", str(self._host.local))
        toolkit.vime_plain("status", "--local", self._host.local)
        version = rng.choice(self.targets)
        pulled = self._run(
            "pull", "--shared", str(self._host.shared), "--local", str(self._host.local),
            "--base", str(self._host.base), "--version", str(version), "--threads", "1",
        )  # fmt: skip
        assert all(canary.read_bytes() == b"mine" for canary in self._canaries), f"{name}: a file of the user's is gone"
        if pulled.code == 0 and not made:
            self._host.expect_local(version)
        return f"{Path(name).name if '.json' in name else Path(name).parent.name}: {pulled.code}"

    def _spoil_one(self, rng: random.Random) -> tuple[str, bool]:
        """The record's name, and whether somebody made it: its seal fits, and it may lie about what only it knows."""
        number = rng.choice([number for number, name in enumerate(self._names) if self.may_spoil(name)])
        name, content = self._names[number], self._contents[number]
        if self.flips_only:
            flipped = bytearray(content)
            flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            (self._host.local / name).write_bytes(flipped)
            return name, False
        if name.endswith(".json") and rng.random() < 0.6:
            strings = ("../canary", str(self._canaries[1]), "../../canary.safetensors", "config.json", "scalar")
            spoilt = spoil_document(rng, json.loads(content), strings)
            made = rng.random() < 0.7
            if made:
                spoilt = seal_again(name, spoilt)
        else:
            spoilt, made = spoil(rng, content, self._contents), False
        (self._host.local / name).write_bytes(spoilt)
        return name, made

    def _run(self, *arguments: str) -> toolkit.Result:
        with mock.patch.object(fsio, "sync_file", lambda path: None):
            result = toolkit.vime(*arguments)
        assert "Traceback" not in result.stderr, result.stderr
        assert result.code in _ANSWERS, (result.code, result.stderr)
        return result


class ApplyRecordsTarget(RecordsTarget):
    job = "apply"
    targets = (1, 2)
    cut_short = _killed_applying


class ReplaceRecordsTarget(RecordsTarget):
    job = "replacement"
    targets = (2,)
    cut_short = _killed_replacing


class FlippedRecordsTarget(RecordsTarget):
    """One bit of one record is another, as it happens on disks."""

    flips_only = True


class FlippedApplyRecordsTarget(ApplyRecordsTarget):
    flips_only = True


class FlippedReplaceRecordsTarget(ReplaceRecordsTarget):
    flips_only = True


RECORDS: dict[str, type[Target]] = {
    "records": RecordsTarget,
    "apply-records": ApplyRecordsTarget,
    "replace-records": ReplaceRecordsTarget,
    "flipped-records": FlippedRecordsTarget,
    "flipped-apply-records": FlippedApplyRecordsTarget,
    "flipped-replace-records": FlippedReplaceRecordsTarget,
}
