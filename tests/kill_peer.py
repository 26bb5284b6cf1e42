"""The peers' receiver on LOCAL, as far as its disk shows it: its lock, whole shards, a bare `state.json`."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import toolkit
from tests.toolkit import Model


@contextmanager
def peer_lock(local: Path) -> Iterator[None]:
    """What it holds while it works."""
    sync = local / toolkit.STATE_DIRECTORY
    sync.mkdir(parents=True, exist_ok=True)
    with (sync / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_bare_state(local: Path, version: int) -> None:
    """Its state: the version and nothing else, by a rename."""
    path = local / toolkit.STATE_DIRECTORY / "state.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"version": f"{version:06d}"}), encoding="utf-8")
    temporary.replace(path)


def peer_writes(local: Path, model: Model, scratch: Path, *, shards: int = 2, only: int | None = None) -> None:
    """It copies whole shards over what is there (`only` the first so many: it was stopped)."""
    toolkit.write_checkpoint(scratch, model, shards=shards)
    for number, source in enumerate(sorted(scratch.glob("*.safetensors"))):
        if only is None or number < only:
            (local / source.name).write_bytes(source.read_bytes())


def peer_takes_over(local: Path, version: int, model: Model, scratch: Path, *, shards: int = 2) -> None:
    """A whole pass of it: `state.json` away, every shard written, `state.json` back."""
    with peer_lock(local):
        (local / toolkit.STATE_DIRECTORY / "state.json").unlink(missing_ok=True)
        peer_writes(local, model, scratch, shards=shards)
        write_bare_state(local, version)


def peer_directory(local: Path, version: int, model: Model) -> None:
    """A directory that only ever knew the peers' receiver."""
    toolkit.write_checkpoint(local, model)
    with peer_lock(local):
        write_bare_state(local, version)
