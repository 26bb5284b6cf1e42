"""What the long torture deals: batches of strikes, each done in a process of its own.

A batch is a story and the numbers of its strikes; a case is one strike, as a failure names it.
"""

import itertools
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests import torture_kills, torture_two
from tests.error_story import Blow, ErrorStory
from tests.kill_jobs import JOBS, KILL_JOBS, SeededAnew
from tests.power_story import PowerStory
from tests.test_torture_machine import live
from tests.torture_kills import KillStory
from tests.torture_two import TwoStory

_LIFE_STEPS = 30
_PAGE = 1_000_000  # a seed's numbers begin at this many times the seed

# In what the host and its disk are told from one process, then what needs real ones.
STORIES = {
    "crash": [
        f"crash:{job}:{shape}:{when}" for job in JOBS for shape in ("few", "many") for when in ("durable", "behind")
    ],
    "error": [f"error:{job}:least" for job in JOBS],
    "life": ["life"],
    "kill": [f"kill:{job}:{shape}" for job in KILL_JOBS for shape in torture_kills.SHAPES],
    "two": [f"two:{job}:{shape}" for job in KILL_JOBS for shape in torture_two.SHAPES],
}
COUNTS = {"crash": 40, "error": 40, "life": 3, "kill": 20, "two": 15}  # of each kind in one batch


@dataclass(frozen=True)
class Batch:
    """`story` is one of `STORIES`; then so many numbers from `first` on. `blow` is one error, told and not dealt."""

    story: str
    first: int
    count: int
    blow: str | None = None

    @classmethod
    def of_case(cls, case: str) -> "Batch":
        """One strike once more."""
        words = case.split(":")
        if words[0] == "error" and len(words) > 4:
            return cls(":".join(words[:3]), 0, 1, ":".join(words[3:]))
        story = ":".join(words[:-1])
        assert story in STORIES[words[0]], f"no story is called {story}"
        return cls(story, int(words[-1]), COUNTS["life"] if story == "life" else 1)


@dataclass
class Outcome:
    """What a batch met, and what was wrong: a message, and the case that repeats it.

    `seeded_anew` of the wrong ones took no way from what lay in LOCAL, where there was one.
    """

    met: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    seeded_anew: int = 0


def do(batch: Batch) -> Outcome:
    """Ends at the first thing that is wrong."""
    outcome = Outcome()
    number = batch.first
    with tempfile.TemporaryDirectory(prefix="vime-sync-torture-") as root, ExitStack() as stack:
        try:
            if batch.story == "life":
                live(str(number), batch.count, _LIFE_STEPS)
                outcome.met["lives"] += batch.count
                return outcome
            strike, outcome.met = _striker(batch, Path(root), stack)
            for number in range(batch.first, batch.first + batch.count):
                strike(number)
        except Exception as problem:
            notes = "\n".join(getattr(problem, "__notes__", []))
            case = f"{batch.story}:{number}" if batch.blow is None else f"{batch.story}:{batch.blow}"
            told = f"{type(problem).__name__}: {problem}\n{notes}"
            if not str(problem).split("\n")[0]:  # an assertion that says nothing of itself: where it stands
                told += "".join(traceback.format_tb(problem.__traceback__)[-4:])
            outcome.wrong.append((told, case))
            outcome.seeded_anew += isinstance(problem, SeededAnew)
    return outcome


def _striker(batch: Batch, root: Path, stack: ExitStack) -> tuple[Callable[[int], None], Counter[str]]:
    kind, job, shape, *when = batch.story.split(":")
    if kind == "crash":
        power = PowerStory(root, job, shape, durable=when == ["durable"])
        return lambda number: power.strike(power.deal(number)), power.met
    if kind == "error":
        errors = ErrorStory(root, job, shape)
        blow = batch.blow
        if blow is not None:
            return lambda number: errors.strike(Blow.parse(blow)), errors.met
        return lambda number: errors.strike(errors.deal(number)), errors.met
    if kind == "kill":
        kills = stack.enter_context(KillStory(root, job, shape))
        return kills.kill_and_heal, kills.met
    two = stack.enter_context(TwoStory(root, job, shape))
    return two.meet, two.met


def deal(seed: int, kind: str) -> Iterator[Batch]:
    """Batches of one kind without end, every story in turn."""
    stories = list(STORIES[kind])
    random.Random(f"{seed} {kind}").shuffle(stories)
    for turn in itertools.count():
        for story in stories:
            yield Batch(story, seed * _PAGE + turn * COUNTS[kind], COUNTS[kind])
