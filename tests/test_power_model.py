"""FIELD_GUIDE H3 on a model of the disk: power lost at every sync boundary and at random points of every job.

More of it with POWER_STRIKES=1000 in the environment (random strikes of each job), or scripts/torture --crashes.
"""

import os
import random
from pathlib import Path

import pytest

from tests.disk_model import Loss
from tests.kill_jobs import JOBS
from tests.power_story import PowerStory, Strike

_STRIKES = int(os.environ.get("POWER_STRIKES", "4"))


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "behind"])
@pytest.mark.parametrize("name", JOBS)
def test_h03_power_lost_at_every_sync_boundary_and_at_random_points(name: str, durable: bool, tmp_path: Path) -> None:
    story = PowerStory(tmp_path, name, "least", durable=durable)
    losses = [Loss.DROPPED, Loss.ANY, Loss.TORN, Loss.GARBAGE, Loss.ORDERED]
    random.Random(story.name).shuffle(losses)
    for number, point in enumerate(story.sync_boundaries()):
        story.strike(Strike(number, point, losses[number % len(losses)]))
    for number in range(_STRIKES):
        story.strike(story.deal(number))
    assert story.met["power losses that lost something"] > 0
