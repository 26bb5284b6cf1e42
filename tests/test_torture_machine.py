"""Everything in any order, dealt by hypothesis, against a dict of bytes (`torture_world`).

In the environment: TORTURE_EXAMPLES (how many lives of a host a part deals), TORTURE_STEPS (events of a life),
TORTURE_SEED (another deal), TORTURE_SHRINK=1 (look for the shortest life that fails; minutes). A failure prints the
events and the command that deals the same.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.disk_model import Loss
from tests.torture_world import World

_PARTS = 4
_EXAMPLES = int(os.environ.get("TORTURE_EXAMPLES", "5"))
_STEPS = int(os.environ.get("TORTURE_STEPS", "22"))
_SEED = int(os.environ.get("TORTURE_SEED", "1"))
_PHASES = [Phase.generate, *([Phase.shrink] if os.environ.get("TORTURE_SHRINK") else [])]
_MAX_OPERATIONS = 90  # about as many as a pass has

kinds = st.sampled_from(["xor", "overwrite", "full"])
points = st.integers(0, _MAX_OPERATIONS)
dices = st.integers(0, 1 << 20).map(random.Random)


class Torture(RuleBasedStateMachine):
    """One life of a host."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="vime-sync-torture-"))

    @initialize(seed=st.integers(0, 3), kind=kinds)
    def begin(self, seed: int, kind: str) -> None:
        self.world = World(self.root, seed)
        self.world.__enter__()
        self.world.publish("xor")
        self.world.publish(kind)

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.world.mend_share()
                self.world.pull_in_peace(None)
                self.world.expect_whole()
        finally:
            if hasattr(self, "world"):
                self.world.__exit__()
            shutil.rmtree(self.root)

    @rule(kind=kinds)
    def publish(self, kind: str) -> None:
        self.world.publish(kind)

    @rule()
    def prune(self) -> None:
        self.world.prune()

    @rule(dice=dices, kind=kinds)
    def restart_the_stream(self, dice: random.Random, kind: str) -> None:
        self.world.publish(kind, number=dice.randint(1, max(self.world.published) + 1))

    @precondition(lambda self: max(self.world.published) > 0)
    @rule(kind=kinds)
    def republish(self, kind: str) -> None:
        self.world.publish(kind, number=max(self.world.published))

    @rule(dice=dices)
    def corrupt_the_share(self, dice: random.Random) -> None:
        self.world.spoil_share(dice)

    @precondition(lambda self: self.world.spoilt)
    @rule()
    def mend_the_share(self) -> None:
        self.world.mend_share()

    @rule(dice=dices)
    def corrupt_local(self, dice: random.Random) -> None:
        self.world.spoil_local(dice)

    @rule(dice=dices)
    def pull_or_roll_back(self, dice: random.Random) -> None:
        self.world.pull_in_peace(self.world.target(dice))

    @rule()
    def verify(self) -> None:
        self.world.verify()

    @rule(dice=dices, point=points)
    def kill(self, dice: random.Random, point: int) -> None:
        self.world.pull_killed(self.world.target(dice), point)

    @rule(dice=dices, point=st.integers(0, 6))
    def kill_in_a_write(self, dice: random.Random, point: int) -> None:
        self.world.pull_torn(self.world.target(dice), point, dice)

    @rule(dice=dices, point=points, loss=st.sampled_from(list(Loss)))
    def lose_power(self, dice: random.Random, point: int, loss: Loss) -> None:
        hypothesis.note(str(self.world.lose_power(self.world.target(dice), point, loss, dice)))

    @rule(dice=dices, killed=st.booleans())
    def a_peer_runs(self, dice: random.Random, killed: bool) -> None:
        self.world.peer(dice, killed=killed)

    @invariant()
    def what_is_called_ready_is_whole(self) -> None:
        if hasattr(self, "world"):
            self.world.expect_no_lie()


def live(seed: str, examples: int, steps: int) -> None:
    """Deal so many lives of so many events from the seed."""
    machine = type("Torture", (Torture,), {})
    limits = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        phases=_PHASES,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(machine), settings=limits)


@pytest.mark.parametrize("part", range(_PARTS))
def test_h01_to_h20_in_any_order_every_good_share_heals(part: int) -> None:
    try:
        live(f"{_SEED} {part}", _EXAMPLES, _STEPS)
    except BaseException:
        variables = f"TORTURE_SEED={_SEED} TORTURE_EXAMPLES={_EXAMPLES} TORTURE_STEPS={_STEPS}"
        print(f"again: {variables} python -m pytest tests/test_torture_machine.py -k '[{part}]'")
        raise
