"""What happens in a long run, dealt from a seed before it begins: no clock and no answer of a process changes it.

Of every kind of accident there is one at least, however short the run.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

ENGINES = 2
# Behind this part of the versions the daemon is left alone, so that its memory can be compared over a long life.
_RESTARTS_UNTIL = 0.6
# How many versions there are for one accident of a kind.
_PER_TRAINER_RESTART = 28
_PER_PRUNING = 24
_PER_DAEMON_KILL = 12
_PER_KILL_IN_LOAD = 14
_PER_DAEMON_END = 16
_PER_ENGINE_KILL = 14
_PER_SETTLING = 8
# A pass over the small model takes about as long: kills shall fall before, into and after it.
_ACCIDENT_WITHIN_S = 0.25


@dataclass(frozen=True)
class Step:
    """Versions that appear at once, and what happens around them. Times in seconds."""

    kinds: tuple[str, ...]  # of its versions: xor, overwrite, full
    begins_anew: bool = False  # the trainer, before them
    prunes: bool = False  # the trainer, before them
    daemon: str | None = None  # kill or term, `accident_s` after them; kill_in_load: when an engine is seen paused
    engine: int | None = None  # which one is killed, `accident_s` after them
    stays_down: bool = False  # who was ended comes back only after the next step's versions
    settles: bool = False  # waits until all hold the newest
    then_engine: int | None = None  # which one is killed after that, and has to be noticed without a new version (E2)
    accident_s: float = 0.0
    pause_s: float = 0.0


def deal(seed: int, versions: int) -> list[Step]:
    """The whole run."""
    dice = random.Random(seed)
    groups = list(_groups(dice, versions))
    places = range(1, len(groups) - 1)  # not before anything is there; at the end nothing is missing
    last_restart = max(2, int(len(groups) * _RESTARTS_UNTIL))
    early = range(1, last_restart)
    anew = _some(dice, places, versions / _PER_TRAINER_RESTART)
    prunings = _some(dice, places, versions / _PER_PRUNING)
    ends = _some(dice, early, versions * _RESTARTS_UNTIL / _PER_DAEMON_END)
    kills = _some(dice, [place for place in early if place not in ends], versions * _RESTARTS_UNTIL / _PER_DAEMON_KILL)
    others = [place for place in early if place not in ends | kills]
    kills_in_load = _some(dice, others, versions * _RESTARTS_UNTIL / _PER_KILL_IN_LOAD)
    daemon = dict.fromkeys(ends, "term") | dict.fromkeys(kills, "kill") | dict.fromkeys(kills_in_load, "kill_in_load")
    engine_kills = _some(dice, places, versions / _PER_ENGINE_KILL)
    quiet = [*range(_PER_SETTLING - 1, len(groups), _PER_SETTLING), len(groups) - 1]
    quiet_kills = _some(dice, quiet, len(quiet) / 3)
    steps = []
    for place, kinds in enumerate(groups):
        steps.append(
            Step(
                kinds,
                begins_anew=place in anew,
                prunes=place in prunings,
                daemon=daemon.get(place),
                engine=dice.randrange(ENGINES) if place in engine_kills else None,
                stays_down=dice.random() < 0.4,
                settles=place in quiet or place == last_restart,
                then_engine=dice.randrange(ENGINES) if place in quiet_kills else None,
                accident_s=dice.uniform(0, _ACCIDENT_WITHIN_S),
                pause_s=min(1.0, dice.expovariate(6.0)),
            )
        )
    return steps


def _groups(dice: random.Random, versions: int) -> Iterator[tuple[str, ...]]:
    left = versions
    while left:
        size = min(left, 1 if dice.random() < 0.7 else dice.randint(2, 5))
        yield tuple(dice.choices(("xor", "overwrite", "full"), (11, 6, 3), k=size))
        left -= size


def _some(dice: random.Random, places: range | list[int], wanted: float) -> set[int]:
    return set(dice.sample(list(places), min(len(places), max(1, round(wanted)))))
