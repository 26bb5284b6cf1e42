"""What a vLLM is told, in which order, and what becomes of it when a step goes wrong."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.engine_story import (
    QUICK,
    VLLM_LOAD,
    Story,
    is_paused,
    meanwhile,
    message,
    outcome,
    posts,
    reached,
    small_host,
)
from tests.fake_engine import Fault
from tests.fake_stories import LONG, SHORT, ask
from tests.fake_vllm import FakeVllm
from tests.fake_weights import fresh_answer
from tests.host import Host
from vime_sync.engines.spec import ExtensionUse, PauseMode
from vime_sync.errors import EngineBusy
from vime_sync.vllm_extension import PullWeightsExtension

BOOM: dict[str, Any] = {"error": {"message": "boom", "type": "x", "param": None, "code": 500}}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@pytest.fixture
def story(host: Host) -> Story:
    return Story(host)


def calls_to(fake: FakeVllm, path: str) -> list[tuple[dict[str, str], Any]]:
    return [(call.query, call.body) for call in fake.calls if call.path == path]


# ---- the way it goes


@pytest.mark.parametrize("mode", list(PauseMode))
def test_the_steps_of_a_load_and_what_they_say(host: Host, mode: PauseMode) -> None:
    with FakeVllm(host.base) as fake:
        assert outcome(Story(host, replace(QUICK, pause_mode=mode)).serve(fake)[0]) == ("at_version", 1, None)
        assert posts(fake) == VLLM_LOAD
        assert calls_to(fake, "/pause") == [({"mode": mode.value, "clear_cache": "true"}, None)]
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(host.local)}}
        assert calls_to(fake, "/collective_rpc") == [({}, load)]  # and never a timeout in the body
        assert calls_to(fake, "/update_weight_version") == [({}, {"new_version": "1"})]
        # The version is read back after it was set, and before anybody is served.
        tail = fake.told()[fake.told().index("POST /update_weight_version") :]
        assert tail == [
            "POST /update_weight_version",
            "GET /weight_info",
            "GET /is_paused",
            "POST /resume",
            "GET /is_paused",
        ]


def test_what_holds_the_bytes_is_left_alone_and_a_forced_load_is_done(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        story.serve(fake)
        fake.calls.clear()
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert posts(fake) == []
        assert outcome(story.serve(fake, is_forced=True)[0]) == ("at_version", 1, None)
        assert posts(fake) == VLLM_LOAD


def test_running_requests_end_before_a_load_and_waiting_ones_come_after(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake, fake.held_completions(), meanwhile(fake.complete, LONG) as running:
        fake.wait_for_requests(running=1)
        with meanwhile(story.serve, fake) as serving:
            fake.wait_for_calls("/pause")
            with meanwhile(fake.complete, SHORT) as waiting:
                fake.wait_for_requests(running=1, waiting=1)
                assert fake.told("/collective_rpc") == []
                fake.hold_completions(False)
                assert running.result() == fresh_answer(host.models[0], LONG)
                assert waiting.result() == fresh_answer(host.models[1], SHORT)
        assert outcome(serving.result()[0]) == ("at_version", 1, None)


def test_servers_without_a_weight_version_are_loaded_once(host: Host, story: Story) -> None:
    with FakeVllm(host.base, weight_info=False) as fake:
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert fake.holds(host.models[1])
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert len(fake.told("/collective_rpc")) == 1


def test_through_the_extension(host: Host, story: Story) -> None:
    with FakeVllm(host.base, ranks=2, extension_class=PullWeightsExtension) as fake:
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        methods = [body["method"] for _, body in calls_to(fake, "/collective_rpc")]
        assert methods == ["vime_sync_report", "vime_sync_reload"]
        assert posts(fake).index("POST /pause") == 1  # asked while it serves, loaded while it does not
        assert fake.holds(host.models[1])
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


def test_the_extension_can_be_left_unused(host: Host) -> None:
    story = Story(host, replace(QUICK, extension=ExtensionUse.NEVER))
    with FakeVllm(host.base, extension_class=PullWeightsExtension) as fake:
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert [body["method"] for _, body in calls_to(fake, "/collective_rpc")] == ["reload_weights"]


# ---- found as it should not be


def test_an_engine_paused_by_others_is_loaded_and_left_paused(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        ask(fake, "/pause", {})
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert fake.holds(host.models[1])
        assert fake.told("/resume") == [] and is_paused(fake)


def test_an_engine_paused_by_others_stays_so_when_only_the_second_load_works(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        ask(fake, "/pause", {})
        fake.faults["/collective_rpc"] = Fault(status=500, body=BOOM, times=1)
        story.serve(fake)
        assert fake.holds(host.models[1])
        assert fake.told("/resume") == [] and is_paused(fake)


def test_an_engine_that_sleeps_is_not_touched(host: Host, story: Story) -> None:
    """A load in its sleep is reported to crash it."""
    with FakeVllm(host.base) as fake:
        ask(fake, "/sleep", {})
        fake.calls.clear()
        report = story.serve(fake)[0]
        assert outcome(report) == ("failed", None, 31) and "/wake_up" in message(report)
        assert posts(fake) == []
        ask(fake, "/wake_up", {})
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)


def test_an_engine_that_is_put_to_sleep_after_a_killed_load_is_not_touched(host: Host, story: Story) -> None:
    """It may be paused by us, and it sleeps all the same."""
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(close=True)
        assert outcome(story.serve(fake)[0]) == ("unknown", None, 32)
        ask(fake, "/sleep", {})
        fake.faults.clear()
        fake.calls.clear()
        assert outcome(story.serve(fake)[0]) == ("failed", None, 31)
        assert posts(fake) == []


# ---- steps that go wrong


def test_a_pause_that_does_not_come_about_is_taken_back(host: Host) -> None:
    story = Story(host, replace(QUICK, timeout_s=1.0))
    with FakeVllm(host.base) as fake, fake.held_completions(), meanwhile(fake.complete, LONG) as running:
        fake.wait_for_requests(running=1)
        report = story.serve(fake)[0]
        assert outcome(report) == ("failed", None, 31) and "--pause-mode abort" in message(report)
        assert posts(fake)[1:] == ["POST /pause", "POST /resume"]
        fake.hold_completions(False)
        assert running.result() == fresh_answer(host.models[0], LONG)
        assert fake.complete(SHORT) == fresh_answer(host.models[0], SHORT)
        assert outcome(Story(host).serve(fake)[0]) == ("at_version", 1, None)


@pytest.mark.parametrize("fault", [Fault(status=500, body=BOOM), Fault(status=500, when="after"), Fault(body=[])])
def test_an_engine_that_cannot_be_paused_goes_on_with_what_it_has(host: Host, story: Story, fault: Fault) -> None:
    """Nothing was loaded: whoever waits for an answer is better off with the old weights."""
    with FakeVllm(host.base) as fake:
        fake.faults["/pause"] = replace(fault, reached=threading.Event())
        assert outcome(story.serve(fake)[0])[2] == 31
        assert fake.told("/collective_rpc") == []
        assert not is_paused(fake)
        assert fake.complete(SHORT) == fresh_answer(host.models[0], SHORT)


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version"])
def test_a_server_that_dies_in_a_step_is_loaded_when_it_is_back(host: Host, story: Story, path: str) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults[path] = fault = Fault(hang=threading.Event())
        with meanwhile(story.serve, fake) as serving:
            reached(fault.reached)
            fake.stop()
        assert outcome(serving.result()[0])[2] in (30, 32)
        fake.faults.clear()
        fake.start()
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


@pytest.mark.parametrize("answer", [{"results": []}, {"results": None}, {}, [], b"fine", {"results": [None, None]}])
def test_a_200_that_does_not_say_what_it_should_is_no_success(host: Host, story: Story, answer: Any) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(status=200, body=answer)
        assert outcome(story.serve(fake)[0]) == ("failed", None, 32)
        assert fake.told("/resume") == []


def test_a_stale_answer_is_not_taken_for_a_load(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(status=200, body={"results": [{"rank": 0}]})
        report = story.serve(fake)[0]
        assert outcome(report)[2] == 32 and "another call" in message(report)
        assert len(fake.told("/collective_rpc")) == 1 and is_paused(fake)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/weight_info", Fault(body={"weight_version": "41"}, times=2)),
        ("/update_weight_version", Fault(body={"success": True})),
        ("/update_weight_version", Fault(status=500, body=BOOM)),
    ],
)
def test_a_version_that_is_read_back_wrong_leaves_it_uncertain(
    host: Host, story: Story, path: str, fault: Fault
) -> None:
    with FakeVllm(host.base) as fake:
        if path == "/weight_info":
            fake.faults["/update_weight_version"] = Fault(body={"success": True})
        fake.faults[path] = replace(fault, reached=threading.Event())
        assert outcome(story.serve(fake)[0]) == ("failed", None, 32)
        assert fake.told("/resume") == [] and is_paused(fake)
        fake.faults.clear()
        assert outcome(story.serve(fake, is_forced=True)[0]) == ("at_version", 1, None)


@pytest.mark.parametrize("fault", [Fault(status=500, body=BOOM), Fault(close=True)])
def test_a_resume_that_fails_is_done_again_next_time(host: Host, story: Story, fault: Fault) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/resume"] = replace(fault, reached=threading.Event())
        assert outcome(story.serve(fake)[0])[2] == 32
        assert is_paused(fake)
        fake.faults.clear()
        assert outcome(story.serve(fake, is_forced=True)[0]) == ("at_version", 1, None)
        assert fake.complete(SHORT) == fresh_answer(host.models[1], SHORT)


def test_ranks_out_of_step_are_left_alone_until_a_restart(host: Host, story: Story) -> None:
    with FakeVllm(host.base, ranks=2, extension_class=PullWeightsExtension) as fake:
        ask(fake, "/collective_rpc", {"method": "no_such_method"})
        assert outcome(story.serve(fake)[0])[2] == 32
        fake.calls.clear()
        assert not story.look(fake).lacking
        assert outcome(story.serve(fake)[0])[2] == 32
        assert "POST /pause" not in posts(fake)
        fake.stop()
        story.look(fake)
        fake.start()
        assert story.look(fake).lacking
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)


def test_an_engine_at_a_load_of_its_own_is_busy_and_not_disturbed(host: Host) -> None:
    story = Story(host, replace(QUICK, look_timeout_s=1.0))
    with FakeVllm(host.base) as fake, fake.stopped_load(after_tensors=1) as gate:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(host.base)}}
        with meanwhile(ask, fake, "/collective_rpc", body):
            gate.wait()
            report = story.serve(fake, is_forced=True)[0]
            assert outcome(report) == ("unknown", None, 30) and isinstance(report.error, EngineBusy)
            assert len(posts(fake)) == 1
            gate.go_on.set()


def test_a_version_of_other_names_is_no_reason_to_disturb_an_engine_that_is_down(host: Host, story: Story) -> None:
    model = {name: tensor for name, tensor in host.models[1].items() if name != "one"}
    toolkit.publish_full(host.shared, 2, model)
    host.pulled()
    with FakeVllm(host.base) as fake:
        fake.stop()
        assert outcome(story.serve(fake)[0]) == ("unreachable", None, 30)
