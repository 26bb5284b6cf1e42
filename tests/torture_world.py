"""A trainer, a share, a host and a peer, and everything that can happen to them, against a dict of bytes.

What must be at each version is kept as models in memory. The host's disk is a `DiskModel`: a power loss takes what
was not synced, also of runs long ago. `Torture` in test_torture_machine.py deals the events.
"""

import json
import random
import shutil
from contextlib import ExitStack
from pathlib import Path

from tests import toolkit
from tests.disk_model import DiskModel, Loss
from tests.host import Host
from tests.kill_jobs import hide_touch, stated_version
from tests.kill_peer import peer_lock, peer_takes_over, peer_writes
from tests.kill_points import PULL_THREADS, KillSwitch, kill_tearing, run_until_killed
from tests.kill_power import overwrite, tensor_place
from tests.power_story import is_called_durable, no_waits
from tests.toolkit import Model, Result

# What a pull may say while the share is not good: to wait, of the publisher, or that no way is left to heal.
_OF_A_BAD_SHARE = (10, 11, 12, 13, 22)


class World:
    """Use as a context manager. Every method that can find something wrong raises AssertionError."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        # One tensor of two blocks, one of less, and the odd ones.
        self.host = Host.create(root / "host", model=toolkit.make_model(seed, tensors=2, kib=1700))
        self.published = self.host.models
        self.ever: dict[int, list[Model]] = {0: [self.published[0]]}
        self.full = {0}
        self.spoilt: dict[Path, bytes] = {}
        self.in_doubt = False  # LOCAL may be wrong in a way that only the next pull sees
        self._steps = 0
        self._stack = ExitStack()
        self.disk = DiskModel(self.host.local, root / "limbo")

    def __enter__(self) -> "World":
        self._stack.enter_context(no_waits())
        self._stack.enter_context(self.disk)
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    # ---- the trainer

    def publish(self, kind: str, number: int | None = None) -> None:
        """The next version, or that one (again), which is then the newest."""
        number = max(self.published) + 1 if number is None else number
        self._withdraw(number)
        self._steps += 1
        old = self.published.get(number - 1)
        if old is None:  # pruned: only a full version can follow
            kind, old = "full", self.ever[0][0]
        model = self.published[number] = toolkit.step(old, self._steps)
        self.ever.setdefault(number, []).append(model)
        if kind == "full":
            self.full.add(number)
            toolkit.publish_full(self.host.shared, number, model)
        else:
            toolkit.publish_delta(self.host.shared, number, old, model, encoding=kind)

    def _withdraw(self, first: int) -> None:
        for number in [number for number in self.published if number >= first]:
            directory = toolkit.version_path(self.host.shared, number)
            shutil.rmtree(directory)
            del self.published[number]
            self.full.discard(number)
            self.spoilt = {path: old for path, old in self.spoilt.items() if not path.is_relative_to(directory)}

    def prune(self) -> None:
        """All below the newest full version go; the base stays where it is."""
        for number in [number for number in self.published if 0 < number < max(self.full)]:
            directory = toolkit.version_path(self.host.shared, number)
            shutil.rmtree(directory)
            del self.published[number]
            self.full.discard(number)
            self.spoilt = {path: old for path, old in self.spoilt.items() if not path.is_relative_to(directory)}

    def spoil_share(self, dice: random.Random) -> None:
        """A published file has a flipped bit, or is cut; a full version only cut: its bits are proven by nothing."""
        files = sorted(path for path in self.host.shared.rglob("*") if path.is_file())
        if not files:
            return
        path = dice.choice(files)
        content = path.read_bytes()
        if not content:
            return
        self.spoilt.setdefault(path, content)
        if (
            path.parent in {toolkit.version_path(self.host.shared, number) for number in self.full}
            or dice.random() < 0.3
        ):
            path.write_bytes(content[: dice.randrange(len(content))])
        else:
            path.write_bytes(_flipped(content, dice))

    def mend_share(self) -> None:
        for path, content in self.spoilt.items():
            path.write_bytes(content)
        self.spoilt.clear()

    # ---- the host

    def target(self, dice: random.Random) -> int | None:
        """The newest, or one of those that are published."""
        return dice.choice([None, None, dice.choice(sorted(self.published))])

    def pull(self, target: int | None) -> Result:
        return self.host.pull(*PULL_THREADS, version=target)

    def pull_in_peace(self, target: int | None) -> None:
        """Undisturbed: with a good share it is brought there, with another one LOCAL is told nothing wrong of."""
        result = self.pull(target)
        assert "Traceback" not in result.stderr, result.stderr
        if not self.spoilt and self._has_way(target):
            assert result.code == 0, (result.code, result.stderr)
        elif result.code:
            assert result.code in _OF_A_BAD_SHARE, (result.code, result.stderr)
            self.expect_no_lie()
            return
        self.in_doubt = False
        version = result.document["version"]
        assert version == stated_version(self.host.local)
        held = toolkit.read_checkpoint(self.host.local)
        assert held in self.ever[version], f"what stands under {version} never was that version"
        if target is not None:
            assert version == target
        if version in self.published and not self.spoilt:
            assert held == self.published[version], f"version {version} is one of an older stream"
        if target is None and not self.spoilt:
            # It may stay above the newest, where a restart cannot be told from a remount.
            assert version >= max(self.published)

    def _has_way(self, target: int | None) -> bool:
        """Whether the share leads there from a full version or the base."""
        number = max(self.published) if target is None else target
        while number in self.published:
            if number in self.full:
                return True
            number -= 1
        return False

    def pull_killed(self, target: int | None, point: int) -> None:
        run_until_killed(lambda: self.pull(target), KillSwitch(point))
        self.expect_no_lie()

    def pull_torn(self, target: int | None, point: int, dice: random.Random) -> None:
        share = dice.random()
        kill_tearing(lambda: self.pull(target), self.host.local, point, lambda size: int(size * share))
        self.expect_no_lie()

    def lose_power(self, target: int | None, point: int, loss: Loss, dice: random.Random) -> list[str]:
        """In the middle of a pull, or right after it."""
        was_in_doubt = self.in_doubt
        run_until_killed(lambda: self.pull(target), KillSwitch(point))
        lost = self.disk.crash(loss, dice)
        if not was_in_doubt and is_called_durable(self.host.local):
            self.expect_whole()
        self.in_doubt = True
        return lost

    def verify(self) -> None:
        result = toolkit.vime("verify", "--local", self.host.local)
        assert result.code in ((0, 2, 22, 23) if self.in_doubt else (0, 2, 22)), result.stderr
        if result.code == 0:
            self.expect_whole()

    def spoil_local(self, dice: random.Random) -> None:
        """A shard rots (a hidden bit, found by `verify`; or one that shows), or is cut."""
        shards = sorted(self.host.local.glob("*.safetensors"))
        if not shards or self.in_doubt or stated_version(self.host.local) is None:
            return
        self.in_doubt = True
        how = dice.choice(["hidden", "seen", "cut"])
        if how == "cut":
            path = dice.choice(shards)
            path.write_bytes(path.read_bytes()[: dice.randrange(path.stat().st_size)])
            self.disk.rescan()
            return
        name = dice.choice([name for name, tensor in self.published[max(self.published)].items() if tensor.data])
        place = tensor_place(self.host.local, name)
        where = dice.randrange(place.size_bytes)
        (byte,) = place.path.read_bytes()[place.offset + where : place.offset + where + 1]
        overwrite(place.path, place.offset + where, bytes([byte ^ 1 << dice.randrange(8)]))
        if how == "hidden" and b"vime_sync" in (self.host.local / toolkit.STATE_DIRECTORY / "state.json").read_bytes():
            hide_touch(self.host.local, place.path.name)
            assert toolkit.vime("verify", "--local", self.host.local).code == 22
        self.disk.rescan()

    def peer(self, dice: random.Random, *, killed: bool) -> None:
        """Another receiver brings LOCAL to a version, or begins to (only where we have written)."""
        owner = self.host.local / toolkit.STATE_DIRECTORY / "owner.json"
        killed = killed and owner.exists() and bool(json.loads(owner.read_bytes())["files"])
        version = dice.choice(sorted(self.published))
        model, scratch = self.published[version], self.root / "scratch"
        self.host.local.mkdir(exist_ok=True)
        if killed:
            with peer_lock(self.host.local):
                (self.host.local / toolkit.STATE_DIRECTORY / "state.json").unlink(missing_ok=True)
                peer_writes(self.host.local, model, scratch, only=1)
        else:
            peer_takes_over(self.host.local, version, model, scratch)
            shutil.copy(scratch / toolkit.INDEX_NAME, self.host.local)
        shutil.rmtree(scratch)
        self.in_doubt = killed
        self.disk.rescan()

    # ---- what must be so

    def expect_no_lie(self) -> None:
        """What is called ready is a version that was published once under that number."""
        status = toolkit.vime("status", "--local", self.host.local).document
        if status["state"] == "ready" and not self.in_doubt:
            self.expect_whole()

    def expect_whole(self) -> None:
        version = stated_version(self.host.local)
        assert version is not None
        held = toolkit.read_checkpoint(self.host.local)
        assert held in self.ever[version], f"what stands under {version} never was that version"


def _flipped(content: bytes, dice: random.Random) -> bytes:
    where = dice.randrange(len(content))
    return content[:where] + bytes([content[where] ^ 1 << dice.randrange(8)]) + content[where + 1 :]
