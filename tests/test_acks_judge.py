"""Who holds a version, by the records alone: counts and names, streams, engines, and hosts that disagree."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ack_hosts import record, serving
from vime_sync.acks import Ack, AckEngine, parse_hosts
from vime_sync.acks.judge import Reason, Wanted, describe, disagreement, judge
from vime_sync.errors import UsageError


def missing(acks: list[Ack], version: int, hosts: str, **options: Any) -> str:
    return describe(judge(acks, version, parse_hosts(hosts), **options).missing)


def test_a_count_counts_records() -> None:
    acks = [record("a1", 6), record("a1", 7, local="/other"), record("a2", 5)]
    assert missing(acks, 6, "2") == ""
    assert missing(acks, 6, "3") == "host a2 (/nvme/ckpt) is at version 5"
    assert missing(acks, 6, "4") == "host a2 (/nvme/ckpt) is at version 5; 1 more host has no record"
    assert missing(acks, 6, "5").endswith("; 2 more hosts have no record")


def test_of_a_named_host_every_record_must_hold_it() -> None:
    acks = [record("a1", 6), record("a1", 7, local="/other"), record("a2", 5)]
    assert missing(acks, 6, "a1") == ""
    assert missing(acks, 7, "a1") == "host a1 (/nvme/ckpt) is at version 6"
    assert missing(acks, 6, "a1,a2,a7,a9") == "host a2 (/nvme/ckpt) is at version 5; hosts a7, a9 have no record"


def test_hosts_with_the_same_trouble_share_a_row_and_many_are_not_all_named() -> None:
    acks = [record(f"a{number}", 5) for number in range(1, 10)]
    text = missing(acks, 6, "9")
    assert text.startswith("hosts a1 (/nvme/ckpt), a2 (/nvme/ckpt), ")
    assert text.endswith(", a8 (/nvme/ckpt) and 1 more are at version 5")


def test_a_host_that_was_rolled_back_holds_no_more() -> None:
    assert missing([record("a1", 7)], 7, "1") == ""
    assert missing([record("a1", 6)], 7, "1") == "host a1 (/nvme/ckpt) is at version 6"


def test_v2_the_old_runs_number_is_not_the_new_runs_version() -> None:
    old, new = record("a1", 7, stream="old"), record("a2", 3, stream="new")
    share = {3: "new-3"}
    assert missing([old, new], 3, "2", published=share) == "host a1 (/nvme/ckpt) is at version 7 of another stream"
    assert missing([old, new], 3, "1", published=share) == ""
    assert missing([record("a1", 3, stream="new"), new], 3, "2", published=share) == ""


def test_v2_an_old_host_whose_chain_no_longer_names_the_version_has_to_be_proven_by_the_one_it_is_at() -> None:
    old = record("a1", 60, stream="old", first=29)
    assert "does not tell" in missing([old], 3, "1", published={3: "new-3"})
    assert "another stream" in missing([old], 3, "1", published={3: "new-3", 60: "new-60"})
    assert missing([old], 3, "1", published={3: "old-3", 60: "old-60"}) == ""
    assert missing([old], 3, "1") == ""  # nothing to compare with: the number counts


def test_a_version_that_the_share_does_not_show_proves_nothing() -> None:
    assert "does not tell" in missing([record("a1", 3)], 3, "1", published={})
    assert missing([record("a1", 5)], 3, "1", published={5: "run1-5"}) == ""  # 3 was pruned meanwhile


def test_version_0_needs_no_share() -> None:
    assert missing([record("a1", 0)], 0, "1", published={}) == ""
    other_times = replace(record("a2", 0), chain=((0, "the same base, copied later"),))
    assert missing([record("a1", 0), other_times], 0, "2") == ""


def test_without_a_share_the_stream_is_the_one_that_most_hosts_hold() -> None:
    new = [record("a1", 3, stream="new"), record("a2", 3, stream="new")]
    old = record("a3", 9, stream="old")
    assert missing([*new, old], 3, "a1,a2,a3") == "host a3 (/nvme/ckpt) is at version 9 of another stream"
    assert missing([*new, old], 3, "3") != "" and missing([*new, old], 3, "2") == ""


def test_served_means_by_each_engine_and_not_by_one_that_is_yet_to_be_taken_back() -> None:
    ack = record("a1", 7)
    for engine_trouble, told in (
        (ack, "no engine there is known"),
        (serving(ack, 6), "at version 6"),
        (serving(serving(ack), None, "failed", port=8001), "http://127.0.0.1:8001 is failed"),
        (serving(ack, 9), "at version 9"),
        (replace(ack, engines=(AckEngine("http://x", "at_version", None),)), "http://x is at_version"),
    ):
        assert missing([engine_trouble], 7, "1") == ""
        text = missing([engine_trouble], 7, "1", served=True)
        assert text.startswith("host a1 (/nvme/ckpt) holds version 7, but ") and told in text
    assert missing([serving(serving(ack), port=8001)], 7, "1", served=True) == ""
    assert missing([serving(ack, 6)], 6, "1", served=True) == ""  # while it is on its way to 7


def test_other_weights_under_one_version_are_a_fault_and_another_stream_is_none() -> None:
    one, same, later = record("a1", 3), record("a2", 3), record("a4", 4)
    wrong = record("a3", 3, lineage="bad")
    assert disagreement([one, same, later]) is None
    assert disagreement([one, same, later, wrong]) == (one, wrong)
    assert disagreement([one, record("a3", 3, stream="old")]) is None  # it is on its way from there
    seeded = replace(record("a5", 3, first=2), lineage=one.lineage)
    assert disagreement([one, seeded]) is None
    bases = (record("a1", 0), record("a2", 0, stream="other base"))
    assert disagreement(bases) == bases


@pytest.mark.parametrize("text", ["", "0", "00", ",", "a1,,a2", "a1, ", "9" * 10])
def test_hosts_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hosts(text)


def test_hosts_are_a_number_or_names() -> None:
    assert parse_hosts("32") == Wanted(count=32)
    assert parse_hosts("a1, a2,a1") == Wanted(names=("a1", "a2"))


ENGINE_LISTS = st.lists(
    st.tuples(st.sampled_from(["at_version", "failed"]), st.one_of(st.none(), st.integers(0, 6))), max_size=2
)
HOSTS = st.builds(
    lambda host, local, version, stream, engines: replace(
        record(host, version, local=f"/{local}", stream=stream),
        engines=tuple(AckEngine("http://x", kind, loaded) for kind, loaded in engines),
    ),
    st.sampled_from(["a1", "a2", "a3"]),
    st.integers(0, 2),
    st.integers(0, 5),
    st.sampled_from(["run1", "run2"]),
    ENGINE_LISTS,
)


@given(
    acks=st.lists(HOSTS, max_size=8, unique_by=lambda ack: (ack.host, ack.local)),
    version=st.integers(0, 5),
    wanted=st.one_of(
        st.builds(Wanted, count=st.integers(1, 6)),
        st.builds(Wanted, names=st.lists(st.sampled_from(["a1", "a2", "a9"]), min_size=1, unique=True).map(tuple)),
    ),
    served=st.booleans(),
)
def test_the_judgement_is_what_its_sentence_says(acks: list[Ack], version: int, wanted: Wanted, served: bool) -> None:
    """Said again over plain values: the share publishes run2, where versions are named by their stream."""
    published = {number: f"run2-{number}" for number in range(1, 6)}
    verdict = judge(acks, version, wanted, published=published, served=served)

    def holds(ack: Ack) -> bool:
        right_stream = version == 0 or f"run2-{version}" in {identity for _, identity in ack.chain}
        serves = len(ack.engines) > 0 and all(
            engine.state == "at_version" and engine.version in range(version, ack.version + 1) for engine in ack.engines
        )
        return ack.version >= version and right_stream and (serves or not served)

    records = Counter(ack.host for ack in acks)
    if wanted.names:
        enough = all(records[name] and all(holds(ack) for ack in acks if ack.host == name) for name in wanted.names)
        concerned = [ack for ack in acks if ack.host in wanted.names]
    else:
        enough = sum(map(holds, acks)) >= wanted.count
        concerned = acks
    assert (not verdict.missing) is enough
    assert list(verdict.holders) == [ack for ack in concerned if holds(ack)]
    assert (describe(verdict.missing) == "") is enough
    if not enough:
        named = {(laggard.host, laggard.local) for laggard in verdict.missing if laggard.local is not None}
        assert named == {(ack.host, ack.local) for ack in concerned if not holds(ack)}
    unnamed = sum(laggard.count for laggard in verdict.missing if laggard.reason is Reason.NO_RECORD)
    if wanted.count and not enough:
        assert unnamed == max(0, wanted.count - len(acks))
