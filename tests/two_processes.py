"""What two processes on one LOCAL did, in the order in which they did it, and that they never did it by turns.

Each process appends a line to one file for every durable operation, before it is done: what the kernel puts at the end
of a file is in one order for all. A process holds the lock from its note of who it is (`holder.json`) to its last
operation; a peer says itself when it has the lock. The peer is the peers' receiver as its disk shows it, and while it
has the lock it looks whether anything moves that it did not move.
"""

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from tests.kill_peer import peer_lock, write_bare_state

_PIECE_BYTES = 64 << 10
LOCKED = "holder.json.new"  # what the holder of the lock writes first


class Notes:
    """One process's side of the file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, word: str, path: str) -> None:
        os.write(self._descriptor, f"{os.getpid()} {word} {path}\n".encode())

    def observe(self, operation: str, path: Path) -> None:
        """An observer of fsio."""
        self.write(operation, str(path))


def receive_as_peer(notes: Notes, task: Mapping[str, str]) -> int:
    """Bring `local` to `version` from the checkpoint in `source`; what was found first is copied to `found`.

    Returns 0, or 1 where something moved under the lock.
    """
    local, source, found = Path(task["local"]), Path(task["source"]), Path(task["found"])
    with peer_lock(local):
        notes.write("locked", str(local))
        state = local / ".weight_sync" / "state.json"
        found.mkdir()
        for path in (*sorted(local.glob("*.safetensors")), local / "model.safetensors.index.json", state):
            if path.exists():
                shutil.copyfile(path, found / path.name)
        still = all((found / path.name).read_bytes() == path.read_bytes() for path in local.glob("*.safetensors"))
        state.unlink(missing_ok=True)
        for path in sorted(source.iterdir()):
            content = path.read_bytes()
            with (local / path.name).open("wb") as file:
                for start in range(0, len(content), _PIECE_BYTES):
                    file.write(content[start : start + _PIECE_BYTES])
                    notes.write("peer writes", path.name)
        still = still and not state.exists()
        still = still and all((local / path.name).read_bytes() == path.read_bytes() for path in source.iterdir())
        write_bare_state(local, int(task["version"]))
        notes.write("unlocks", str(local))
    return 0 if still else 1


def expect_no_turns(path: Path) -> Counter[str]:
    """No process did anything under the lock between two things that another did. Returns what was met."""
    held: list[int] = []
    locked: set[int] = set()
    waited: set[int] = set()
    lines = [line.split(" ", 2) for line in path.read_text(encoding="utf-8").splitlines()]
    last = {int(pid): number for number, (pid, _, _) in enumerate(lines)}
    for number, (pid_text, word, where) in enumerate(lines):
        pid = int(pid_text)
        if word == "starts" and any(other != pid and last[other] > number for other in locked):
            waited.add(pid)  # the other one had the lock then, and went on
        if word == "locked" or where.endswith(LOCKED):
            locked.add(pid)
        if pid in locked:
            held.append(pid)
    turns = [pid for pid, _ in groupby(held)]
    assert len(turns) == len(set(turns)), f"processes wrote by turns: {turns}"
    return Counter({"met while the other held the lock": len(waited), "had the lock": len(turns)})
