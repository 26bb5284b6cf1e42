"""--probe: after a load a completion has to come, and its probability has to be a number (FIELD_GUIDE E4)."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine_story import QUICK, VLLM_LOAD, Story, is_paused, message, outcome, posts, small_host
from tests.fake_engine import Fault
from tests.fake_stories import SHORT
from tests.fake_vllm import FakeVllm
from tests.fake_weights import fresh_answer
from tests.host import Host
from vime_sync.engines import probe
from vime_sync.errors import EngineNotReady

KEY = "k1"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@pytest.fixture
def story(host: Host, monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setattr(probe, "_TIMEOUT_S", 1.0)
    return Story(host, replace(QUICK, probe=True, api_key=KEY))


def completed(*values: Any) -> dict[str, Any]:
    return {"choices": [{"text": "x", "logprobs": {"token_logprobs": list(values)}, "finish_reason": "length"}]}


def test_one_completion_behind_the_load(host: Host, story: Story) -> None:
    with FakeVllm(host.base, api_key=KEY, served_model_name="its-own-name") as fake:
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert posts(fake) == [*VLLM_LOAD, "POST /v1/completions"]
        asked = [call.body for call in fake.calls if call.path == "/v1/completions"]
        assert asked[0]["model"] == "its-own-name" and asked[0]["max_tokens"] == 1


def test_without_it_nothing_is_asked(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        Story(host).serve(fake)
        assert fake.told("/v1/completions") == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, body={"error": {"message": "EngineCore encountered an issue"}}),
        Fault(status=400, body={"error": {"message": "Out of range float values are not JSON compliant"}}),
        Fault(body=b'{"choices": [{"logprobs": {"token_logprobs": [NaN]}}]}'),
        Fault(body=b'{"choices": [{"logprobs": {"token_logprobs": [-Infinity]}}]}'),
        Fault(body=b'{"choices": [{"logprobs": {"token_logprobs": [-1e999]}}]}'),
        Fault(body=completed()),
        Fault(body=completed(None)),
        Fault(body=completed(-1.5, None)),
        Fault(body=completed("-1.5")),
        Fault(body=completed(True)),
        Fault(body={"choices": []}),
        Fault(body={"choices": [{"text": "x", "logprobs": None}]}),
        Fault(body={"choices": {"0": 1}}),
        Fault(body=[]),
        Fault(body=b"hello"),
        Fault(body=b""),
        Fault(close=True),
        Fault(hang=threading.Event()),
    ],
)
def test_whatever_is_no_finite_completion_is_a_failure(host: Host, story: Story, fault: Fault) -> None:
    """It is asked after both loads; then nobody gets an answer from it."""
    with FakeVllm(host.base, api_key=KEY) as fake:
        fake.faults["/v1/completions"] = replace(fault, reached=threading.Event())
        report = story.serve(fake)[0]
        assert outcome(report)[2] == 32 and "probe" in message(report)
        assert is_paused(fake)
        assert not [call for call in fake.calls if "timeout" in str(call.body)]
        fake.faults.clear()
        assert outcome(story.serve(fake, is_forced=True)[0]) == ("at_version", 1, None)
        assert fake.complete(SHORT) == fresh_answer(host.models[1], SHORT)


@pytest.mark.parametrize("value", [-0.5, 0, -1e-300])
def test_a_finite_number_is_one(host: Host, story: Story, value: float) -> None:
    with FakeVllm(host.base, api_key=KEY) as fake:
        fake.faults["/v1/completions"] = Fault(body=completed(value))
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)


def test_a_list_of_models_that_cannot_be_read_does_not_matter(host: Host, story: Story) -> None:
    with FakeVllm(host.base, api_key=KEY) as fake:
        fake.faults["/v1/models"] = Fault(body={"data": [None, {"id": 3}]})
        fake.faults["/v1/models"] = Fault(body={"data": "none"})
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)


def test_an_engine_that_is_left_paused_by_others_is_not_probed(host: Host, story: Story) -> None:
    """The completion would hang until they resume it."""
    with FakeVllm(host.base, api_key=KEY) as fake:
        fake.generation.pause("wait", clear_cache=True)
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert fake.told("/v1/completions") == [] and is_paused(fake)


def test_a_wrong_key_is_found_out_before_the_engine_is_paused(host: Host) -> None:
    story = Story(host, replace(QUICK, probe=True, api_key="wrong"))
    with FakeVllm(host.base, api_key="right") as fake:
        report = story.serve(fake)[0]
        assert isinstance(report.error, EngineNotReady) and "--engine-api-key-file" in report.error.hint
        assert posts(fake) == []
