"""An engine that spans hosts, driven by its leader: every host pulls, then all ranks load, and no answer is mistaken.

The ranks of one fake engine stand on different hosts: what is called with the leader's path arrives at each rank
with its own host's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests import fake_vllm
from tests.engine_story import SAFETY_S, Story, is_paused, meanwhile, message, outcome, posts, small_host, spec_of
from tests.extension_story import join_pulls, sibling, spoil
from tests.fake_http import Answer, Exchange
from tests.fake_stories import LONG, ask
from tests.fake_vllm import FakeVllm
from tests.fake_weights import fresh_answer
from tests.host import Host
from tests.toolkit import vime
from vime_sync.vllm_extension import PullWeightsExtension

METHODS = ("vime_sync_report", "vime_sync_start_pull", "vime_sync_poll", "vime_sync_reload")


class HostsPullWeightsExtension(PullWeightsExtension):
    """Rank N stands on host N."""

    hosts: ClassVar[list[Host]] = []
    rank: int


def _at_home(name: str) -> Any:
    def call(self: HostsPullWeightsExtension, *args: Any, **kwargs: Any) -> Any:
        home = str(self.hosts[self.rank].local)
        return getattr(PullWeightsExtension, name)(self, *args, **{**kwargs, "local_checkpoint_dir": home})

    return call


for _name in METHODS:
    setattr(HostsPullWeightsExtension, _name, _at_home(_name))


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    """The leader's holds version 1, the other one nothing yet."""
    leader = small_host(tmp_path)
    both = [leader, sibling(leader, "other")]
    monkeypatch.setattr(HostsPullWeightsExtension, "hosts", both)
    return both


def methods(fake: FakeVllm) -> list[str]:
    return [call.body["method"] for call in fake.calls if call.path == "/collective_rpc"]


def test_the_leader_has_every_host_pull_before_all_ranks_load(hosts: list[Host]) -> None:
    """Through the command, which holds the lock of its own LOCAL all the while."""
    leader, other = hosts
    with FakeVllm(leader.base, ranks=2, extension_class=HostsPullWeightsExtension) as fake:
        with meanwhile(leader.pull, "--engine", str(spec_of(fake))) as pulling:
            try:
                result = pulling.result(SAFETY_S / 2)
            finally:
                told = methods(fake)
                if not pulling.done():
                    fake.stop()
        assert result.code == 0, result.stderr
        assert told[:2] == ["vime_sync_report", "vime_sync_start_pull"] and told[-1] == "vime_sync_reload"
        other.expect_local(1)
        assert fake.holds(leader.models[1])
        assert fake.complete(LONG) == fresh_answer(leader.models[1], LONG)
        pause = posts(fake).index("POST /pause")
        assert posts(fake)[pause + 1 :].count("POST /collective_rpc") == 1  # all pulled while it served
    join_pulls()


def test_hosts_that_hold_it_are_not_asked_to_pull(hosts: list[Host]) -> None:
    leader, other = hosts
    other.pulled()
    with FakeVllm(leader.base, ranks=2, extension_class=HostsPullWeightsExtension) as fake:
        leader.pulled("--engine", str(spec_of(fake)))
        assert methods(fake) == ["vime_sync_report", "vime_sync_reload"]


def answering(monkeypatch: pytest.MonkeyPatch, method: str, change: Callable[[Any, str], Any]) -> None:
    """What the ranks answer to that method becomes what `change` makes of it and the call's nonce."""
    real = fake_vllm.DEVELOPMENT["POST", "/collective_rpc"]

    def rpc(fake: FakeVllm, exchange: Exchange) -> Answer:
        answer, body = real(fake, exchange), exchange.call.body
        if body["method"] != method:
            return answer
        return Answer(200, {"results": change(answer.body["results"], body["kwargs"]["nonce"])})

    monkeypatch.setitem(fake_vllm.DEVELOPMENT, ("POST", "/collective_rpc"), rpc)


def test_a_host_with_other_weights_under_the_number_is_named_and_nothing_is_paused(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pull went well, from another share or another base."""
    leader, other = hosts
    other.pulled()

    def change(results: Any, nonce: str) -> Any:
        return [results[0], {**results[1], "lineage": "0" * 32, "host": "the-other-one"}]

    answering(monkeypatch, "vime_sync_report", change)
    with FakeVllm(leader.base, ranks=2, extension_class=HostsPullWeightsExtension) as fake:
        report = Story(leader).serve(fake)[0]
        assert outcome(report)[2] == 31 and "the-other-one" in message(report), message(report)
        assert "POST /pause" not in posts(fake) and not is_paused(fake)
    join_pulls()


def test_a_host_that_cannot_pull_says_why_and_the_engine_serves_on(hosts: list[Host]) -> None:
    leader, _ = hosts
    spoil(leader, 1)
    with FakeVllm(leader.base, ranks=2, extension_class=HostsPullWeightsExtension) as fake:
        with meanwhile(Story(leader).serve, fake) as serving:
            report = serving.result(SAFETY_S)[0]
        assert outcome(report)[2] == 31 and "rank 1" in message(report), message(report)
        assert "POST /pause" not in posts(fake) and not is_paused(fake)
        assert fake.complete(LONG) == fresh_answer(leader.models[0], LONG)
    join_pulls()


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        (lambda nonce: [], 32),
        (lambda nonce: None, 32),
        (lambda nonce: [None], 32),
        (lambda nonce: ["{}"], 32),
        (lambda nonce: [{"success": True}], 32),
        (lambda nonce: [{"nonce": nonce + "x", "success": True}], 32),
        (lambda nonce: [{"nonce": nonce, "success": True}, {"nonce": "old", "success": True}], 32),
        (lambda nonce: [{"nonce": nonce}] * 2, 31),
        (lambda nonce: [{"nonce": nonce, "success": 1}] * 2, 31),
        (lambda nonce: [{"nonce": nonce, "success": True}, {"nonce": nonce, "success": False}], 31),
        (lambda nonce: [{"nonce": nonce, "success": True}], 32),  # of two ranks only one has answered
    ],
)
def test_only_a_yes_of_every_rank_to_this_very_call_counts(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch, answers: Any, code: int
) -> None:
    leader, other = hosts
    other.pulled()
    answering(monkeypatch, "vime_sync_reload", lambda results, nonce: answers(nonce))
    with FakeVllm(leader.base, ranks=2, extension_class=HostsPullWeightsExtension) as fake:
        report = Story(leader).serve(fake)[0]
        assert outcome(report)[2] == code, message(report)
        assert fake.told("/resume") == [] and is_paused(fake)


def test_e11_a_rank_that_fails_under_the_extension_is_mended(hosts: list[Host]) -> None:
    leader, _ = hosts
    with FakeVllm(leader.base, ranks=2, extension_class=PullWeightsExtension) as fake:
        fake.rank_failures[1] = "no memory"
        result = leader.pull("--engine", str(spec_of(fake)))
        assert (result.code, result.error["id"]) == (31, "engine_refused")
        assert "rank 1" in result.error["message"] and "no memory" in result.error["message"]
        assert is_paused(fake)
        fake.rank_failures.clear()
        assert vime("reload", "--local", leader.local, "--engine", str(spec_of(fake))).code == 0
        assert fake.complete(LONG) == fresh_answer(leader.models[1], LONG)


@pytest.mark.parametrize("command", ["pull", "reload"])
def test_e11_an_answer_to_another_call_is_seen_by_its_nonce(hosts: list[Host], command: str) -> None:
    leader, _ = hosts
    with FakeVllm(leader.base, ranks=2, extension_class=PullWeightsExtension) as fake:
        run = ("--local", leader.local, "--engine", str(spec_of(fake)))
        assert ask(fake, "/collective_rpc", {"method": "no_such_method"}).status_code == 500
        result = vime(command, *run)
        assert (result.code, result.error["id"]) == (32, "engine_out_of_step")
        assert "another call" in result.error["message"]
        assert "POST /pause" not in posts(fake)
        fake.restart()  # as the hint says
        assert vime(command, *run).code == 0
        assert fake.complete(LONG) == fresh_answer(leader.models[1], LONG)
