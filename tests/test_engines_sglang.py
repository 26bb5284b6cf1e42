"""What an SGLang is told, in which order, and what becomes of it when a step goes wrong."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.engine_story import (
    QUICK,
    SGLANG_LOAD,
    Story,
    meanwhile,
    message,
    outcome,
    posts,
    reached,
    small_host,
)
from tests.fake_engine import Fault
from tests.fake_sglang import FakeSglang
from tests.fake_stories import LONG, SHORT
from tests.fake_weights import fresh_answer
from tests.host import Host
from vime_sync.engines import sglang
from vime_sync.engines.spec import PauseMode


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@pytest.fixture
def story(host: Host) -> Story:
    return Story(host)


@pytest.fixture(autouse=True)
def no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries to flush."""
    monkeypatch.setattr(sglang, "_FLUSH_PAUSE_S", 0.0)


@pytest.mark.parametrize("tells_version", [True, False])
def test_the_steps_of_a_load_and_what_they_say(host: Host, story: Story, tells_version: bool) -> None:
    with FakeSglang(host.base, weight_version_endpoint=tells_version) as fake:
        fake.complete(LONG)
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert posts(fake)[1:] == SGLANG_LOAD
        update = [call.body for call in fake.calls if call.path == "/update_weights_from_disk"]
        assert update == [{"model_path": str(host.local), "weight_version": "1"}]
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)
        assert not story.look(fake).lacking
        fake.restart()
        assert story.look(fake).lacking


@pytest.mark.parametrize(("mode", "said"), [(PauseMode.ABORT, "abort"), (PauseMode.KEEP, "retract")])
def test_the_mode_of_the_pause_is_handed_on(host: Host, mode: PauseMode, said: str) -> None:
    with FakeSglang(host.base) as fake:
        Story(host, replace(QUICK, pause_mode=mode)).serve(fake)
        assert [call.body for call in fake.calls if call.path == "/pause_generation"] == [{"mode": said}]


def test_the_key_is_sent_with_every_step(host: Host) -> None:
    with FakeSglang(host.base, api_key="k1") as fake:
        assert outcome(Story(host, replace(QUICK, api_key="k1")).serve(fake)[0]) == ("at_version", 1, None)
        refused = Story(host).serve(fake, is_forced=True)[0]
        assert outcome(refused)[2] == 31 and "Unauthorized" in message(refused)
        assert not fake.generation.paused()


def test_an_update_that_is_refused_twice_is_failed_with_its_reason(host: Host, story: Story) -> None:
    with FakeSglang(host.base) as fake:
        fake.rank_failures[0] = "no memory"
        report = story.serve(fake)[0]
        assert outcome(report) == ("failed", None, 31) and "no memory" in message(report)
        assert fake.told("/update_weights_from_disk") == ["POST /update_weights_from_disk"] * 2
        assert fake.told("/continue_generation") == [] and fake.generation.paused()
        fake.rank_failures.clear()
        # After a failure a completion has to prove it; the fake's own has no probabilities.
        logprobs = {"choices": [{"logprobs": {"token_logprobs": [-0.5]}}]}
        fake.faults["/v1/completions"] = Fault(body=logprobs, times=1)
        assert outcome(story.serve(fake, is_forced=True)[0]) == ("at_version", 1, None)
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


@pytest.mark.parametrize("answer", [{"success": False, "message": "no"}, {}, [], b"fine", {"success": "true"}])
def test_a_200_without_success_is_a_failure(host: Host, story: Story, answer: Any) -> None:
    with FakeSglang(host.base) as fake:
        fake.faults["/update_weights_from_disk"] = Fault(status=200, body=answer)
        assert outcome(story.serve(fake)[0]) == ("failed", None, 31)
        assert fake.told("/continue_generation") == []


def test_a_cache_that_is_flushed_late_is_waited_for_and_one_that_never_is_fails(host: Host, story: Story) -> None:
    with FakeSglang(host.base) as fake:
        fake.faults["/flush_cache"] = Fault(status=400, body=b"requests are running", times=3)
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        fake.faults["/flush_cache"] = Fault(status=400, body=b"requests are running")
        report = story.serve(fake, is_forced=True)[0]
        assert outcome(report)[2] == 31 and "requests are running" in message(report)
        assert len(fake.told("/update_weights_from_disk")) == 1


def test_a_version_that_is_read_back_wrong_leaves_it_uncertain(host: Host, story: Story) -> None:
    with FakeSglang(host.base) as fake:
        fake.faults["/get_weight_version"] = Fault(body={"weight_version": "41"})
        assert outcome(story.serve(fake)[0]) == ("failed", None, 32)
        assert fake.told("/continue_generation") == [] and fake.generation.paused()


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=500, when="after"), Fault(close=True, when="after")])
def test_an_engine_that_cannot_be_paused_goes_on_with_what_it_has(host: Host, story: Story, fault: Fault) -> None:
    with FakeSglang(host.base) as fake:
        fake.faults["/pause_generation"] = replace(fault, reached=threading.Event())
        assert outcome(story.serve(fake)[0])[2] == 31
        assert fake.told("/update_weights_from_disk") == [] and not fake.generation.paused()
        assert fake.complete(SHORT) == fresh_answer(host.models[0], SHORT)


def test_one_that_cannot_be_paused_at_all_says_so(host: Host, story: Story) -> None:
    with FakeSglang(host.base) as fake:
        fake.faults["/pause_generation"] = Fault(status=404, body={"detail": "Not Found"})
        report = story.serve(fake)[0]
        assert outcome(report)[2] == 31 and "Update SGLang" in message(report)
        assert fake.told("/update_weights_from_disk") == []


@pytest.mark.parametrize("path", ["/pause_generation", "/flush_cache", "/update_weights_from_disk"])
def test_a_server_that_dies_in_a_step_is_loaded_when_it_is_back(host: Host, story: Story, path: str) -> None:
    with FakeSglang(host.base) as fake:
        fake.faults[path] = fault = Fault(hang=threading.Event())
        with meanwhile(story.serve, fake) as serving:
            reached(fault.reached)
            fake.stop()
        assert outcome(serving.result()[0])[2] in (30, 32)
        fake.faults.clear()
        fake.start()
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


def test_names_are_checked_before_it_is_touched(host: Host, story: Story) -> None:
    model = {name: tensor for name, tensor in host.models[1].items() if name != "model.norm.weight"}
    toolkit.publish_full(host.shared, 2, model)
    host.pulled()
    with FakeSglang(host.base) as fake:
        assert outcome(story.serve(fake)[0])[2] == 31
        assert posts(fake) == []
