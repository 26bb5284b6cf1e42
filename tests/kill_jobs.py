"""The jobs that a kill can interrupt, each with what the host must look like before and after.

`publish` makes base and share once; `bring` brings a fresh LOCAL to the moment before the job; the job is one pull.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests import toolkit
from tests.host import Host, flip_byte
from tests.kill_points import PULL_THREADS
from tests.sealed import sealed
from tests.toolkit import Model, Result
from vime_sync import fsio

_MIB = 1 << 20
SPARE_BYTES = 64 * _MIB  # what a job wants free beside what it writes
HEADER_BYTES = 64 * 1024  # a look at a checkpoint's index and headers is no reading of it


@dataclass(frozen=True)
class Job:
    """`start` and `end` are the versions before and after; `code` is how an undisturbed run ends.

    `anchor_free`: recovery from a mere kill needs local bytes only. `cramped`: no room for a second checkpoint.
    """

    name: str
    publish: Callable[[Host], None]
    bring: Callable[[Host], None]
    start: int | None
    end: int
    target: int | None = None
    code: int = 0
    anchor_free: bool = True
    cramped: bool = False

    def run(self, host: Host) -> Result:
        """The job itself, and what heals it."""
        if not self.cramped:
            return host.pull(*PULL_THREADS, version=self.target)
        # Room for what is staged, none for a second checkpoint.
        with mock.patch.object(fsio, "free_bytes", lambda directory: SPARE_BYTES + _MIB):
            return host.pull(*PULL_THREADS, version=self.target)


def models(kib: int) -> Model:
    """Few tensors, the first of several blocks, the odd ones last in a pass."""
    return toolkit.make_model(tensors=3, kib=kib)


def create(root: Path, job: Job, kib: int = 2560) -> Host:
    """A host with everything that the job needs published; LOCAL is still to be brought."""
    host = Host.create(root, model=models(kib))
    job.publish(host)
    return host


def bring_fresh(host: Host, job: Job) -> None:
    """LOCAL anew, at the moment before the job."""
    shutil.rmtree(host.local, ignore_errors=True)
    job.bring(host)


# ---- what is published


def _deltas(*encodings: str) -> Callable[[Host], None]:
    def publish(host: Host) -> None:
        for encoding in encodings:
            host.publish(encoding=encoding)

    return publish


def _bad_delta(host: Host) -> None:
    """Version 2 is right but for its last tensor: the one that a pass comes to when all else is done."""
    host.publish()
    directory = host.publish()
    spoil_digest(directory, "one")


def _full(shards: int) -> Callable[[Host], None]:
    def publish(host: Host) -> None:
        host.publish()
        host.publish_full(shards=shards)

    return publish


def spoil_digest(directory: Path, tensor: str) -> None:
    """The published digest of one tensor is wrong: its delta proves bad when it is applied."""
    for shard in sorted(directory.glob("*.safetensors")):

        def change(header: dict[str, Any], data: bytearray) -> None:
            metadata = header["__metadata__"]
            if tensor in metadata:
                digits = metadata[tensor]
                metadata[tensor] = digits[:-1] + ("0" if digits[-1] != "0" else "1")

        toolkit.rewrite_shard(shard, change)


# ---- how LOCAL comes to the moment before


def _pull_to(*versions: int) -> Callable[[Host], None]:
    def bring(host: Host) -> None:
        for version in versions:
            host.pulled(*PULL_THREADS, version=version)

    return bring


def _rotten(host: Host) -> None:
    """Two tensors of version 2 rotted, and `verify` has found them."""
    _pull_to(1, 2)(host)
    for name in (next(iter(host.models[0])), "scalar"):
        flip_byte(host.local, name)
    assert toolkit.vime("verify", "--local", host.local).code == 22


def _unknown(host: Host) -> None:
    """No state, and tensors that stand at version 0, 1 and 2; one is nothing at all."""
    _pull_to(2)(host)
    state_path(host.local).unlink()
    mixed = {name: host.models[number % 3][name] for number, name in enumerate(host.models[0])}
    toolkit.write_checkpoint(host.local, mixed)
    flip_byte(host.local, "scalar")


def _shard_lost(host: Host) -> None:
    _pull_to(1, 2)(host)
    next(iter(sorted(host.local.glob("*.safetensors")))).unlink()


def hide_touch(local: Path, *names: str) -> None:
    """Make the record of these files' stats what they are now: rot on a disk changes no stat."""
    path = local / toolkit.STATE_DIRECTORY / "state.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    stats = document["vime_sync"]["stats"]
    for name in names:
        figures = (local / name).stat()
        stats[name] = [figures.st_size, figures.st_mtime_ns, figures.st_ctime_ns, figures.st_ino]
    path.write_bytes(sealed(document, depth=2))


def _nothing(host: Host) -> None:
    """A fresh LOCAL."""


JOBS = {
    job.name: job
    for job in (
        Job("apply", _deltas("xor", "xor"), _pull_to(1), start=1, end=2),
        Job("apply_overwrite", _deltas("xor", "overwrite"), _pull_to(1), start=1, end=2),
        Job("folded", _deltas("xor", "overwrite", "xor"), _pull_to(0), start=0, end=3),
        Job("undo", _bad_delta, _pull_to(1), start=1, end=1, code=12),
        Job("seed", _deltas("xor", "overwrite"), _nothing, start=None, end=2, anchor_free=False),
        Job("replacement", _full(3), _pull_to(1), start=1, end=2, anchor_free=False),
        Job("replacement_in_place", _full(2), _pull_to(1), start=1, end=2, anchor_free=False, cramped=True),
        Job("rollback", _deltas("xor", "xor", "xor"), _pull_to(3), start=3, end=1, target=1),
        Job("rollback_overwrite", _deltas("xor", "overwrite"), _pull_to(1, 2), start=2, end=1, target=1),
        Job("repair", _deltas("xor", "overwrite"), _rotten, start=2, end=2, anchor_free=False),
        Job("identify", _deltas("xor", "overwrite"), _unknown, start=None, end=2, anchor_free=False),
        Job("repair_shard", _deltas("xor", "overwrite"), _shard_lost, start=2, end=2, anchor_free=False),
    )
}

# The seven jobs of real kills.
KILL_JOBS = ("apply", "folded", "undo", "seed", "replacement", "rollback", "repair")


# ---- what LOCAL must look like


class SeededAnew(AssertionError):
    """More was read from the base than was lost: a way from what lies here was there, and was not taken."""


def state_path(local: Path) -> Path:
    return local / toolkit.STATE_DIRECTORY / "state.json"


def intent_path(local: Path) -> Path:
    return local / toolkit.STATE_DIRECTORY / "intent.json"


def stated_version(local: Path) -> int | None:
    """The version that the state shared with the peers names; None while there is none, or it is garbage."""
    try:
        return int(json.loads(state_path(local).read_bytes())["version"])
    except (FileNotFoundError, ValueError):
        return None


def expect_whole(host: Host, local: Path | None = None) -> int:
    """LOCAL holds exactly the version that its state names; returns which."""
    version = stated_version(host.local if local is None else local)
    assert version is not None, "no version is committed"
    host.expect_local(version, local)
    return version


def expect_no_lie(host: Host) -> None:
    """Right after a kill: no number stands beside bytes that are not that version's (docs/FORMAT.md)."""
    if stated_version(host.local) is not None:
        expect_whole(host)


def expect_settled(host: Host, version: int, *, look_again: bool = True) -> None:
    """Whole at that version, nothing left to recover; and, looking again, nothing to do and all verified."""
    host.expect_local(version)
    assert not intent_path(host.local).exists()
    if not look_again:
        return
    again = host.pulled(*PULL_THREADS, version=version)
    assert (again["result"], again["version"], again["bytes_written"]) == ("already_current", version, 0)
    verified = toolkit.vime("verify", "--local", host.local)
    assert verified.code == 0, verified.stderr
