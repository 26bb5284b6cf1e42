"""A short soak: versions without end, random kills, and no answer of a mix. scripts/soak is the long one.

The judges of it are tried here too: a judge that finds nothing wrong with anything proves nothing.
"""

from pathlib import Path

import pytest

from tests.fake_weights import answer_text, model_digests, weights_digest
from tests.soak import Soak, again
from tests.soak_flat import MIB, RESIDENT_SLACK_BYTES, not_flat
from tests.soak_plan import deal
from tests.soak_processes import Figures
from tests.soak_truth import PROMPTS, Judge, Truth
from tests.toolkit import Model, make_model, step

VERSIONS = 36
BASE = make_model(1, 3, 4)
FIRST, SECOND = step(BASE, 1), step(BASE, 2)
CALM = Figures(60 * MIB, 9, 5)


@pytest.mark.parametrize("seed", [20, 21])
def test_no_accident_makes_an_engine_serve_a_mix_or_miss_the_last_version(tmp_path: Path, seed: int) -> None:
    try:
        with Soak(tmp_path, seed, VERSIONS) as soak:
            outcome = soak.run()
    except AssertionError as problem:
        raise AssertionError(f"{problem}\nseed {seed}; again: {again(VERSIONS, seed)}") from None
    assert outcome.streams > 1
    assert all(len(answers) > 2 for answers in outcome.answers), "hardly anybody was answered"


@pytest.mark.parametrize("seed", range(20, 40))
@pytest.mark.parametrize("versions", [30, VERSIONS, 500])
def test_every_kind_of_accident_is_dealt_and_the_same_again(versions: int, seed: int) -> None:
    steps = deal(seed, versions)
    assert steps == deal(seed, versions) != deal(seed + 1, versions)
    assert sum(len(step.kinds) for step in steps) == versions
    assert {step.daemon for step in steps} == {None, "kill", "kill_in_load", "term"}
    assert any(step.engine is not None for step in steps)
    assert any(step.then_engine is not None for step in steps)
    assert any(step.begins_anew for step in steps) and any(step.prunes for step in steps)
    assert {kind for step in steps for kind in step.kinds} == {"xor", "overwrite", "full"}
    left_alone = steps[max(place for place, step in enumerate(steps) if step.daemon) :]
    assert sum(step.settles for step in left_alone) >= 2
    assert steps[-1].settles and not steps[-1].begins_anew


# ---- the judges


def _digest(model: Model) -> str:
    return weights_digest(model_digests(model))


def _answer(first: Model, last: Model) -> str:
    return answer_text(PROMPTS[0], _digest(first), _digest(last), _digest(last))


def _judge() -> Judge:
    truth = Truth(BASE)
    truth.add("one", FIRST)
    truth.add("two", SECOND)
    return Judge(truth)


def test_a_mix_is_seen() -> None:
    judge = _judge()
    assert judge.take(0, _answer(FIRST, FIRST), 0, 0) is None
    assert "of a mix" in str(judge.take(0, _answer(FIRST, SECOND), 0, 0))
    assert "of a mix" in str(judge.take(1, _answer(SECOND, SECOND), 0, 0))  # the answer to another prompt


def test_an_engine_that_goes_back_is_seen() -> None:
    judge = _judge()
    assert judge.take(0, _answer(BASE, BASE), 0, 0) is None
    assert judge.take(0, _answer(SECOND, SECOND), 0, 0) is None
    assert "after an answer" in str(judge.take(0, _answer(FIRST, FIRST), 0, 0))
    assert "after an answer" in str(judge.take(0, _answer(BASE, BASE), 0, 0))


def test_a_restarted_engine_may_answer_with_the_base_until_it_was_brought_on() -> None:
    judge = _judge()
    assert judge.take(0, _answer(SECOND, SECOND), 0, 0) is None
    assert judge.take(0, _answer(SECOND, SECOND), 0, 1) is None  # killed before its answer was looked at
    assert judge.take(0, _answer(BASE, BASE), 1, 1) is None
    assert "after an answer" in str(judge.take(0, _answer(FIRST, FIRST), 1, 1))
    assert judge.take(0, _answer(SECOND, SECOND), 1, 1) is None
    assert "after an answer" in str(judge.take(0, _answer(BASE, BASE), 1, 1))


def test_what_grows_is_seen_and_warm_up_is_not() -> None:
    warming = [Figures(40 * MIB, 30, 9), Figures(50 * MIB, 20, 7)]
    assert not_flat([*warming, *[CALM] * 6]) == []
    grown = Figures(CALM.resident_bytes + RESIDENT_SLACK_BYTES + 1, 12, 7)
    assert [problem.partition(" grew")[0] for problem in not_flat([CALM, *[CALM] * 3, *[grown] * 2])] == [
        "resident bytes",
        "descriptors",
        "threads",
    ]
