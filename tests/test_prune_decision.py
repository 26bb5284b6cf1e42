"""Which versions `prune` takes away: the rules one by one, and over random streams that nobody loses a way."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ack_hosts import record
from vime_sync.errors import NotReady, SyncError
from vime_sync.model import (
    Checkpoint,
    ChecksumFormat,
    DeltaVersion,
    Encoding,
    LineageEntry,
    LocalState,
    Published,
    VersionKind,
    lineage_entry,
)
from vime_sync.plan import View, make_plan
from vime_sync.pruning import Decision, Kind, decide, oldest_holder

LETTERS = {"F": Kind.FULL, "d": Kind.DELTA, "x": Kind.UNUSABLE, "s": Kind.SINGLE}


def stream(text: str, first: int = 1) -> dict[int, Kind]:
    """`dFd-x`: version 1 a delta, 2 full, 3 a delta, 4 absent, 5 there but not usable; `s` has no index."""
    return {number: LETTERS[letter] for number, letter in enumerate(text, first) if letter != "-"}


# ---- the rules


@pytest.mark.parametrize(
    ("text", "keep", "oldest", "removed", "anchor"),
    [
        ("dddFddd", 1, None, (1, 2, 3), 4),
        ("dddFddd", 4, None, (1, 2, 3), 4),
        ("dddFddd", 5, None, (), 0),  # version 3 builds on the base
        ("dddFddd", 99, None, (), 0),
        ("dddFddFd", 1, 6, (1, 2, 3), 4),  # a host at 6 mends itself from 4
        ("dddFddFd", 1, 7, (1, 2, 3, 4, 5, 6), 7),
        ("dddFddFd", 2, 8, (1, 2, 3, 4, 5, 6), 7),
        ("dddFddFd", 1, 99, (1, 2, 3, 4, 5, 6), 7),  # ahead of what the share shows
        ("dddFddFd", 1, 3, (), 0),
        ("dddFddFd", 1, 0, (), 0),
        ("dddd", 1, None, (), 0),
        ("FFFF", 1, None, (1, 2, 3), 4),
        ("FFFF", 2, None, (1, 2), 3),
        ("F", 1, None, (), 1),
        ("ddF-xx", 1, None, (1, 2), 3),  # newer than the newest ready one: a trainer writes it
        ("ddFdx", 2, None, (1, 2), 3),
        ("dxFd", 1, None, (1,), 3),  # not ready below the anchor: kept
        ("d-dFd", 1, None, (1, 3), 4),  # the gap was there before
        ("dFd-dd", 1, None, (1,), 2),  # a gap above the anchor hides nothing that is needed
        ("xxx", 1, None, (), None),
        ("ddds", 1, None, (), 0),  # no index: a host may refuse it, and needs what is below
        ("dFdds", 1, None, (1,), 2),
        ("FFFss", 2, None, (1,), 2),  # nor is it one of those to keep
        ("dsdFd", 1, None, (1, 3), 4),  # it stays all the same
        ("Fdsd", 1, 3, (), 1),
        ("dsd", 1, None, (), 0),
        ("sss", 1, None, (), None),
        ("", 1, None, (), None),
    ],
)
def test_what_goes(text: str, keep: int, oldest: int | None, removed: tuple[int, ...], anchor: int | None) -> None:
    decision = decide(stream(text), keep, oldest)
    assert (decision.removed, decision.anchor) == (removed, anchor)
    assert sorted((*decision.removed, *decision.kept)) == sorted(stream(text))
    assert decision.reason


def test_what_is_fixed_stays_and_is_named() -> None:
    decision = decide(stream("ddxFd"), 1, None, fixed=[2])
    assert (decision.removed, decision.kept, decision.spared) == ((1,), (2, 3, 4, 5), (2, 3))


def test_what_has_no_index_is_named_wherever_it_lies() -> None:
    decision = decide(stream("dsFdss"), 1, None)
    assert (decision.removed, decision.single, decision.spared) == ((1,), (2, 5, 6), (2,))
    assert decide(stream("ds"), 1, None).single == decide(stream("xs"), 1, None).single == (2,)


def test_the_reason_says_what_may_be_built_on() -> None:
    assert decide(stream("dsd"), 1, None).reason.endswith("builds on the base, or on a version without an index")
    assert decide(stream("dds"), 1, None).reason.endswith("builds on the base")
    assert decide(stream("sx"), 1, None).reason == "no version there that has an index is ready"


def test_the_reason_names_who_is_waited_for() -> None:
    assert decide(stream("ddFd"), 1, 2, who="host a1").reason == "version 2, which host a1 holds, builds on the base"
    assert decide(stream("ddFd"), 1, 4, who="host a1").reason == (
        "version 4, the newest that is ready, builds on the full version 3"
    )
    assert decide(stream("ddFd"), 2, None).reason == "version 3, the oldest of the newest 2, is a full version"


# ---- whose number counts


def test_the_host_furthest_behind_counts_and_one_of_another_stream_does_not() -> None:
    published = {number: f"run1-{number}" for number in range(1, 9)}
    here, behind, stranger = record("a", 7), record("b", 5), record("c", 2, stream="run0")
    holder = oldest_holder([here, behind, stranger], published)
    assert (holder.oldest, holder.strangers) == (behind, (stranger,))


def test_a_host_that_nothing_contradicts_counts_by_its_number() -> None:
    published = {9: "run1-9"}
    long_ago = record("a", 3)
    assert oldest_holder([long_ago, record("b", 9)], published).oldest == long_ago
    fresh = record("c", 0)
    assert oldest_holder([fresh], {**published, 0: "the base of another host"}).oldest == fresh


def test_a_full_version_whose_files_were_touched_is_still_the_same() -> None:
    chain_identity = record("a", 3).chain[-1][1]  # run1-3: structure `run1`, stats `3`
    assert chain_identity == "run1-3"
    assert oldest_holder([record("a", 3)], {3: "run1-other stats"}).oldest is not None
    assert oldest_holder([record("a", 3)], {3: "run2-3"}).oldest is None


# ---- nobody loses a way


def published(found: Mapping[int, Kind]) -> dict[int, Published | SyncError]:
    """The same stream as the planner sees it."""
    entries: dict[int, Published | SyncError] = {}
    for number, kind in found.items():
        where, identity = Path("share"), f"identity {number}"
        if kind is Kind.DELTA:
            entries[number] = DeltaVersion(
                number, where, number - 1, Encoding.XOR, ChecksumFormat.XXH3_128, {}, {}, identity, identity
            )
        elif kind is Kind.FULL:
            entries[number] = Checkpoint(number, VersionKind.FULL, where, {}, {}, identity, identity)
        else:
            entries[number] = NotReady(f"version {number}", version=number)
    return entries


def lineage(found: Mapping[int, Kind], version: int) -> tuple[LineageEntry, ...]:
    """What a host at that version was built from."""
    entries = published(found)
    way: list[LineageEntry] = []
    for number in range(version, 0, -1):
        entry = entries[number]
        assert not isinstance(entry, SyncError)
        way.insert(0, lineage_entry(entry))
        if found[number] is Kind.FULL:
            return tuple(way)
    return (LineageEntry(0, VersionKind.BASE, "base", "base"), *way)


def planned(before: Mapping[int, Kind], now: Mapping[int, Kind], at: int | None, target: int | None) -> int | None:
    """Where a host that was brought to `at` before the prune is led now; None: nowhere."""
    local = None
    if at is not None:
        local = LocalState(at, lineage(before, at), "table", {}, "boot", True, "share", "base", "anchor table")
    same = {} if local is None else {entry.version: True for entry in local.lineage if entry.version in now}
    view = View(Path("share"), target, local, True, tuple(sorted(now)), published(now), same)
    try:
        return make_plan(view).target
    except SyncError:
        return None


def reachable(now: Mapping[int, Kind], at: int | None, target: int) -> bool:
    """Independent of the planner: is there a start at or below the target with whole deltas up to it?"""
    starts = {0, *(number for number, kind in now.items() if kind is Kind.FULL)}
    if at is not None:
        starts.add(at)
    stands = False
    for number in range(target + 1):
        stands = number in starts or (stands and now.get(number) is Kind.DELTA)
    return stands


STREAMS = st.text("dddddFFxss-", max_size=14).map(stream)


def seen(found: Mapping[int, Kind], accepted: set[int]) -> dict[int, Kind]:
    """As one host sees them: of those without an index it takes some for full, and the others are not ready to it."""
    return {
        number: (Kind.FULL if number in accepted else Kind.UNUSABLE) if kind is Kind.SINGLE else kind
        for number, kind in found.items()
    }


@settings(max_examples=400, deadline=None)
@given(STREAMS, st.integers(1, 6), st.none() | st.integers(0, 16), st.sets(st.integers(1, 14)))
def test_whoever_could_reach_a_kept_version_still_can(
    published: dict[int, Kind], keep: int, oldest: int | None, accepted: set[int]
) -> None:
    decision = decide(published, keep, oldest)
    expect_sound(published, decision, keep, oldest)
    found = seen(published, accepted)
    now = {number: found[number] for number in decision.kept}
    floor = decision.anchor or 0
    newest = max((number for number, kind in found.items() if kind is not Kind.UNUSABLE), default=0)
    hosts = [at for at in range(oldest or 0, newest + 1) if at >= floor and reachable(found, None, at)]
    for at in (None, *hosts):
        for target in range(floor, newest + 1):
            if reachable(found, at, target):
                assert reachable(now, at, target), (at, target)
            if planned(found, found, at, target) is not None:
                assert planned(found, now, at, target) == target, (at, target)
        assert planned(found, now, at, None) == planned(found, found, at, None)


def expect_sound(found: Mapping[int, Kind], decision: Decision, keep: int, oldest: int | None) -> None:
    ready = sorted(number for number, kind in found.items() if kind in (Kind.FULL, Kind.DELTA))
    assert sorted((*decision.removed, *decision.kept)) == sorted(found)
    assert {found[number] for number in decision.removed} <= {Kind.FULL, Kind.DELTA}
    assert set(ready[-keep:]) <= set(decision.kept)
    if decision.removed:
        assert decision.anchor is not None and found[decision.anchor] is Kind.FULL
        assert max(decision.removed) < decision.anchor <= ready[-keep:][0]
        assert oldest is None or decision.anchor <= oldest


@settings(max_examples=200, deadline=None)
@given(STREAMS, st.integers(1, 6), st.sets(st.integers(1, 14)), st.data())
def test_a_prune_that_is_killed_half_way_loses_no_way_either(
    found: dict[int, Kind], keep: int, accepted: set[int], data: st.DataObject
) -> None:
    """The oldest go first."""
    decision = decide(found, keep, None)
    gone = decision.removed[: data.draw(st.integers(0, len(decision.removed)))]
    now = {number: kind for number, kind in found.items() if number not in gone}
    for target in range(decision.anchor or 0, max(found, default=0) + 1):
        assert reachable(seen(now, accepted), None, target) >= reachable(seen(found, accepted), None, target)
    assert decide(now, keep, None).removed == decision.removed[len(gone) :]
