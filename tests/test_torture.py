"""A portion of the long torture (scripts/torture), and that it tells what is wrong and how to see it again."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests import torture, torture_batch
from tests.kill_jobs import SeededAnew
from tests.torture import Torture, Wanted, crashes, main
from tests.torture_batch import COUNTS, STORIES, Batch, Outcome, deal, do

_SEED = 7


@pytest.mark.parametrize("kind", ["crash", "error", "kill", "two"])
def test_a_portion_of_the_torture_finds_nothing_wrong(kind: str) -> None:
    """Two stories of each kind, another pair than in the sweeps: the shapes are larger here."""
    batches = deal(_SEED, kind)
    met: Counter[str] = Counter()
    for _ in range(2):
        batch = next(batches)
        outcome = do(Batch(batch.story, batch.first, 6))
        assert not outcome.wrong, "\n".join(f"{told}\nagain: {torture.again(case)}" for told, case in outcome.wrong)
        met.update(outcome.met)
    assert met["healed"] > 0


def test_every_kind_deals_all_of_its_stories_and_never_a_strike_twice() -> None:
    for kind, stories in STORIES.items():
        batches = deal(_SEED, kind)
        dealt = [next(batches) for _ in range(2 * len(stories))]
        assert {batch.story for batch in dealt} == set(stories)
        numbers = [(batch.story, number) for batch in dealt for number in range(batch.first, batch.first + batch.count)]
        assert len(numbers) == len(set(numbers)) == 2 * len(stories) * COUNTS[kind]


def test_what_is_wrong_is_told_with_the_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def strike(number: int) -> None:
        seen.append(number)
        if number % 10 == 7:
            raise SeededAnew(f"number {number} read the whole base")

    monkeypatch.setattr(torture_batch, "_striker", lambda batch, root, stack: (strike, Counter()))
    outcome = do(Batch("crash:apply:few:behind", 5, 40))
    assert (seen, outcome.seeded_anew) == ([5, 6, 7], 1)
    assert [case for _, case in outcome.wrong] == ["crash:apply:few:behind:7"]

    run = Torture(_SEED, Wanted(crashes=1), workers=1)
    run._take(outcome)
    told = capsys.readouterr().err
    assert "number 7 read the whole base" in told
    assert "again: scripts/torture --again crash:apply:few:behind:7" in told
    assert run.describe()[-1] == "whole re-seeds where a path exists: 1"
    assert main(["--again", "crash:apply:few:behind:7"]) == 1
    assert main(["--again", "crash:apply:few:behind:8"]) == 0


def test_a_case_is_one_strike() -> None:
    assert Batch.of_case("kill:seed:many:12") == Batch("kill:seed:many", 12, 1)
    assert Batch.of_case("error:apply:least:3") == Batch("error:apply:least", 3, 1)
    told = "error:apply:least:local:read:9:ENDED:for_good"
    assert Batch.of_case(told) == Batch("error:apply:least", 0, 1, "local:read:9:ENDED:for_good")
    assert Batch.of_case("life:5").count == COUNTS["life"]
    with pytest.raises(AssertionError, match="no story"):
        Batch.of_case("crash:nothing:few:behind:1")


@pytest.mark.parametrize(
    ("wanted", "met", "seconds", "kinds"),
    [
        (Wanted(crashes=10, kills=2), {"power losses": 6, "stops": 3, "kills": 1}, 0, "crash error kill life two"),
        (Wanted(crashes=10, kills=2), {"power losses": 6, "stops": 4, "kills": 1}, 0, "error kill life two"),
        (Wanted(crashes=10, kills=2), {"power losses": 6, "stops": 4, "kills": 2}, 0, ""),
        (Wanted(crashes=10, minutes=1), {}, 61, ""),
        (Wanted(minutes=1), {"power losses": 600}, 59, "crash error kill life two"),
    ],
)
def test_it_goes_on_until_all_numbers_are_reached_or_the_time_is_over(
    wanted: Wanted, met: dict[str, int], seconds: float, kinds: str
) -> None:
    assert " ".join(sorted(wanted.kinds(Outcome(Counter(met)), seconds))) == kinds
    assert crashes(Outcome(Counter(met))) == met.get("power losses", 0) + met.get("stops", 0)


def test_the_torture_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert not do(Batch("crash:apply:few:behind", 1, 1)).wrong
    assert list(tmp_path.iterdir()) == []
