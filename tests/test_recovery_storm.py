"""Everything that can happen to a host, in random order: kills, torn blocks, power losses, rot, peers, restarts.

After each event what LOCAL says of itself is true; after each undisturbed pull it is what was asked for. The events
come from a seed that a failure names.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import hide_touch, models, state_path, stated_version
from tests.kill_peer import peer_takes_over
from tests.kill_points import PULL_THREADS, KillSwitch, kill_tearing, no_disk_waits, reboot, run_until_killed
from tests.kill_power import Unsynced, lose_power, overwrite, tensor_place
from tests.toolkit import Model

_STORMS = 8
_EVENTS = 14
_MAX_OPERATIONS = 90  # about as many as a pass has


class _Storm:
    """One host and what happens to it."""

    def __init__(self, root: Path, seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.generator = random.Random(seed)
        self.monkeypatch = monkeypatch
        self.host = Host.create(root, model=models(2560))
        self.events: list[str] = []
        self.truths: dict[int, list[Model]] = {0: [self.host.models[0]]}
        self.shards = {0: 2}  # of the base and the full versions
        self.boots = 0
        self.steps = 0
        self.rotten = False
        self.publish()
        self.pull()

    # ---- events

    def publish(self) -> None:
        """The trainer goes on by one to three versions."""
        for _ in range(self.generator.randint(1, 3)):
            self.steps += 1
            number = max(self.host.models) + 1
            old = self.host.models[number - 1]
            model = self.host.models[number] = toolkit.step(old, self.steps)
            kind = self.generator.choice(["xor", "xor", "overwrite", "overwrite", "full"])
            if kind == "full":
                self.shards[number] = self.generator.randint(1, 3)
                toolkit.publish_full(self.host.shared, number, model, shards=self.shards[number])
            else:
                toolkit.publish_delta(self.host.shared, number, old, model, encoding=kind)
            self.truths.setdefault(number, []).append(model)
            self.events.append(f"publish {number} {kind}")

    def restart(self) -> None:
        """The trainer begins again, somewhere."""
        first = self.generator.randint(1, max(self.host.models))
        for number in range(first, max(self.host.models) + 1):
            del self.host.models[number]
            self.shards.pop(number, None)
            shutil.rmtree(toolkit.version_path(self.host.shared, number))
        self.events.append(f"restart at {first}")
        self.publish()

    def pull(self) -> None:
        """Undisturbed."""
        target = self._target()
        self.events.append(f"pull {target}")
        document = self.host.pulled(*PULL_THREADS, version=target)
        self.rotten = False
        # `latest` may stay above what the share shows, where a restart cannot be told from a remount.
        version = stated_version(self.host.local)
        assert document["version"] == version
        if target is None:
            assert version is not None and version >= max(self.host.models)
        else:
            assert version == target
        if version in self.host.models:
            self.host.expect_local(version)

    def killed_pull(self) -> None:
        target, point = self._target(), self.generator.randrange(_MAX_OPERATIONS)
        self.events.append(f"pull {target}, killed before operation {point}")
        run_until_killed(lambda: self.host.pull(*PULL_THREADS, version=target), KillSwitch(point))

    def torn_pull(self) -> None:
        target, point, share = self._target(), self.generator.randrange(6), self.generator.random()
        self.events.append(f"pull {target}, write {point} torn at {share:.3f}")
        kill_tearing(
            lambda: self.host.pull(*PULL_THREADS, version=target),
            self.host.local,
            point,
            lambda size: int(size * share),
        )

    def power_loss(self) -> None:
        target, point = self._target(), self.generator.randrange(_MAX_OPERATIONS)
        before = {path: path.read_bytes() for path in self.host.local.rglob("*") if path.is_file()}
        unsynced = Unsynced(self.host.local)
        run_until_killed(lambda: self.host.pull(*PULL_THREADS, version=target), KillSwitch(point, also=unsynced))
        done = lose_power(self.generator, unsynced, before)
        self.boots += 1
        reboot(self.monkeypatch, f"boot {self.boots}")
        self.rotten = True  # until the next pull has looked
        self.events.append(f"pull {target}, power lost before operation {point}: {'; '.join(done)}")

    def rot(self) -> None:
        """A tensor rots on the disk; somebody verifies."""
        if self.rotten or stated_version(self.host.local) is None:
            return
        name = self.generator.choice([name for name in self.host.models[0] if name != "empty"])
        shard = json.loads((self.host.local / toolkit.INDEX_NAME).read_bytes())["weight_map"][name]
        place = tensor_place(self.host.local, name, shard)
        where = self.generator.randrange(place.size_bytes)
        (byte,) = place.path.read_bytes()[place.offset + where : place.offset + where + 1]
        overwrite(place.path, place.offset + where, bytes([byte ^ 0xFF]))
        silent = self.generator.random() < 0.5 and b"vime_sync" in state_path(self.host.local).read_bytes()
        if silent:
            hide_touch(self.host.local, shard)
        self.rotten = True
        code = toolkit.vime("verify", "--local", self.host.local).code
        self.events.append(f"rot in {name}, {'silent' if silent else 'seen'}, verify says {code}")
        assert code != 0

    def peer(self) -> None:
        """It keeps to the layout of the full version that it started from."""
        version = self.generator.choice(list(self.host.models))
        scratch = self.host.root / f"scratch {len(self.events)}"
        for path in self.host.local.glob("*.safetensors*"):
            path.unlink()
        shards = self.shards[max(number for number in self.shards if number <= version)]
        peer_takes_over(self.host.local, version, self.host.models[version], scratch, shards=shards)
        shutil.copy(scratch / toolkit.INDEX_NAME, self.host.local)
        shutil.rmtree(scratch)
        self.rotten = False
        self.events.append(f"peer to {version}")

    def spoil_state(self) -> None:
        kind = self.generator.choice(["gone", "garbage", "tables"])
        if kind == "tables":
            shutil.rmtree(self.host.local / toolkit.STATE_DIRECTORY / "digests", ignore_errors=True)
        elif kind == "gone" or not state_path(self.host.local).exists():
            state_path(self.host.local).unlink(missing_ok=True)
        else:
            state_path(self.host.local).write_bytes(b"\x00garbage")
        self.events.append(f"state {kind}")

    def _target(self) -> int | None:
        return self.generator.choice([None, None, self.generator.choice(list(self.host.models))])

    # ---- the storm

    def blow(self) -> None:
        events: list[Callable[[], None]] = [
            self.publish, self.restart, self.pull, self.killed_pull, self.killed_pull, self.torn_pull, self.torn_pull,
            self.power_loss, self.power_loss, self.rot, self.peer, self.spoil_state,
        ]  # fmt: skip
        for _ in range(_EVENTS):
            self.generator.choice(events)()
            self.expect_no_lie()
        self.pull()
        assert toolkit.vime("verify", "--local", self.host.local).code == 0

    def expect_no_lie(self) -> None:
        """What is called ready is a version that was published once under that number."""
        status = toolkit.vime("status", "--local", self.host.local).document
        if status["state"] == "ready" and not self.rotten:
            held = toolkit.read_checkpoint(self.host.local)
            assert held in self.truths[status["local_version"]]


# More of them with STORMS=200 in the environment.
@pytest.mark.parametrize("number", range(int(os.environ.get("STORMS", _STORMS))))
def test_h01_to_h05_and_h20_in_any_order(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)
    storm = _Storm(tmp_path, f"storm {number}", monkeypatch)
    try:
        storm.blow()
    except BaseException:
        print("\n".join(storm.events))
        raise
