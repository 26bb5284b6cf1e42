"""What the loop does next, decided without any clock, file or chance of its own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_sync import errors
from vime_sync.daemon.policy import HEARTBEAT_S, Attempt, Step, back_off_s, grown_s, next_step
from vime_sync.errors import SyncError
from vime_sync.model import FileStat
from vime_sync.reconcile.glance import Glance

HERE = Glance((1, 2), ((2, "two"),), FileStat(10, 1, 1, 1), FileStat(20, 2, 2, 2))
CHANGED = (
    Glance(None, (), HERE.local, HERE.base),
    Glance((), (), HERE.local, HERE.base),
    Glance((1, 2, 3), HERE.prints, HERE.local, HERE.base),
    Glance(HERE.versions, ((2, "other"),), HERE.local, HERE.base),
    Glance(HERE.versions, ((2, None),), HERE.local, HERE.base),
    Glance(HERE.versions, HERE.prints, None, HERE.base),
    Glance(HERE.versions, HERE.prints, FileStat(10, 1, 2, 1), HERE.base),
    Glance(HERE.versions, HERE.prints, HERE.local, FileStat(20, 2, 2, 3)),
)
LASTING = [errors.Malformed("m"), errors.ChecksumMismatch("c"), errors.LineageGap("g"), errors.CorruptPayload("p")]
PASSING = [errors.NotReady("n"), errors.ShareUnreachable("s"), errors.VersionMissing("v"), errors.LockHeld("l")]

problems = st.sampled_from(LASTING + PASSING)
moments = st.floats(min_value=0, max_value=1e9)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)
counts = st.integers(min_value=1, max_value=10**9)


def attempt(error: SyncError | None = None, failures: int = 0, ended_s: float = 100.0) -> Attempt:
    return Attempt(HERE, error, failures, ended_s)


def step(now_s: float, last: Attempt | None, glance: Glance = HERE, **others: Any) -> Step:
    return next_step(now_s, glance, last, **{"engines_lack": False, "chance": 0.5, **others})


@given(now_s=moments, chance=chances, engines_lack=st.booleans())
def test_the_first_turn_is_a_pass(now_s: float, chance: float, engines_lack: bool) -> None:
    assert next_step(now_s, HERE, None, engines_lack=engines_lack, chance=chance) is Step.PASS


@pytest.mark.parametrize("glance", CHANGED)
@pytest.mark.parametrize("problem", [None, *LASTING, *PASSING])
def test_whatever_changed_is_a_reason_for_a_pass_at_once(glance: Glance, problem: SyncError | None) -> None:
    """Whatever the last pass ended with, and however often it failed."""
    assert step(100.0, attempt(problem, 1000), glance) is Step.PASS


@given(rest_s=st.floats(min_value=0, max_value=HEARTBEAT_S, exclude_max=True), chance=chances)
def test_after_a_good_pass_it_rests_until_the_heartbeat(rest_s: float, chance: float) -> None:
    last = attempt(ended_s=0.0)
    assert step(rest_s, last, chance=chance) is Step.REST
    assert step(HEARTBEAT_S, last, chance=chance) is Step.PASS
    assert step(rest_s, last, chance=chance, engines_lack=True) is Step.PASS


@given(
    problem=st.sampled_from([*LASTING, errors.WrongBase("w")]),
    failures=counts,
    rest_s=st.floats(min_value=0, max_value=HEARTBEAT_S, exclude_max=True),
    chance=chances,
)
def test_what_cannot_change_by_itself_is_not_tried_again_before_the_heartbeat(
    problem: SyncError, failures: int, rest_s: float, chance: float
) -> None:
    """The heartbeat looks after this host's own bytes; a version that was found bad is passed over by it."""
    last = attempt(problem, failures, 0.0)
    assert step(rest_s, last, chance=chance) is Step.REST
    assert step(rest_s, last, chance=chance, engines_lack=True) is Step.SERVE
    after = Step.REST if isinstance(problem, errors.WrongBase) else Step.PASS
    assert step(HEARTBEAT_S, last, chance=chance) is after


@given(failures=counts, now_s=moments, chance=chances)
def test_deltas_for_another_base_are_not_applied_again(failures: int, now_s: float, chance: float) -> None:
    """That is found out only by applying all of them: an hour of it each minute would help nobody."""
    last = attempt(errors.WrongBase("w"), failures, 0.0)
    assert step(now_s, last, chance=chance) is Step.REST
    assert step(now_s, last, CHANGED[2], chance=chance) is Step.PASS


@given(problem=st.sampled_from(PASSING), failures=counts, chance=chances)
def test_what_may_change_is_tried_again_after_a_while(problem: SyncError, failures: int, chance: float) -> None:
    last = attempt(problem, failures, 0.0)
    wait_s = back_off_s(last, chance)
    assert 0 < wait_s <= 60
    assert step(wait_s, last, chance=chance) is Step.PASS
    assert step(wait_s * 0.999, last, chance=chance) is Step.REST
    # Engines that came up meanwhile need no share.
    assert step(wait_s * 0.999, last, chance=chance, engines_lack=True) is Step.SERVE


@given(failures=counts, chance=chances, problem=problems)
def test_back_off_grows_to_a_cap_and_differs_from_host_to_host(
    failures: int, chance: float, problem: SyncError
) -> None:
    now, later = attempt(problem, failures), attempt(problem, failures + 1)
    assert back_off_s(now, chance) <= back_off_s(later, chance)
    assert back_off_s(now, 0.0) < back_off_s(now, 0.999)
    assert back_off_s(now, 0.999) <= (5.0 if isinstance(problem, errors.LockHeld) else 60.0)


@given(failures=counts, cap_s=st.floats(min_value=1.0, max_value=1e4))
def test_growth_is_by_doubling_and_never_above_the_cap(failures: int, cap_s: float) -> None:
    grown = grown_s(failures, cap_s)
    assert 0 < grown <= cap_s
    assert grown_s(failures + 1, cap_s) in (cap_s, 2 * grown) or grown_s(failures + 1, cap_s) == grown
