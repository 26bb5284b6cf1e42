"""FIELD_GUIDE E1 to E6 and E8 to E12, row by row, by the commands and by the serving that the daemon does.

(E7, a killed daemon, is in test_field_engines_killed.py.) What an engine holds is compared with whole models.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import toolkit
from tests.engine_story import (
    QUICK,
    VLLM_LOAD,
    Story,
    is_paused,
    outcome,
    posts,
    small_host,
    spec_of,
)
from tests.fake_engine import Fault
from tests.fake_stories import LONG, SHORT, ask
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.fake_weights import fresh_answer
from tests.host import Host, expect_error, flip_byte

REASON = {"error": {"message": "no kernel image for this device", "type": "x", "param": None, "code": 500}}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@pytest.fixture
def story(host: Host) -> Story:
    return Story(host)


def answers_as(fake: FakeVllm, host: Host, version: int) -> bool:
    """Short prompts do not show a stale prefix, long ones do."""
    model = host.models[version]
    return all(fake.complete(prompt) == fresh_answer(model, prompt) for prompt in (SHORT, LONG))


# ---- E1, E2


def test_e01_an_engine_that_was_down_is_loaded_when_it_is_up(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake:
        fake.stop()
        result = host.pull("--engine", str(spec_of(fake)))
        assert (result.code, result.error["id"], result.error["retryable"]) == (30, "engine_unreachable", True)
        assert (result.document["result"], result.document["version"]) == ("updated", 2)  # LOCAL is right all the same
        assert result.document["engines"][0]["state"] == "unreachable"
        fake.start()
        assert host.pulled("--engine", str(spec_of(fake)))["engines"][0]["state"] == "at_version"
        assert answers_as(fake, host, 2)


def test_e02_an_engine_that_restarted_is_loaded_again(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        assert fake.complete(LONG) == fresh_answer(host.models[0], LONG)
        host.pulled("--engine", str(spec_of(fake)))
        assert answers_as(fake, host, 1)
        assert not story.look(fake).lacking
        fake.restart()
        assert answers_as(fake, host, 0)
        assert story.look(fake).lacking
        assert host.pulled("--engine", str(spec_of(fake)))["result"] == "already_current"
        assert answers_as(fake, host, 1)


def test_e02_a_restart_that_only_a_look_saw_counts_too(host: Host, story: Story) -> None:
    """Servers of before 0.21 tell no version: that they were away is all there is to notice."""
    with FakeVllm(host.base, weight_info=False) as fake:
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        fake.stop()
        assert outcome(story.look(fake).reports[0]) == ("unreachable", None, 30)
        fake.start()
        looked = story.look(fake)
        assert looked.lacking and not looked.reports[0].is_current
        story.serve(fake)
        assert fake.holds(host.models[1])


@pytest.mark.parametrize("seen_down", [True, False])
def test_e02_a_restart_after_a_failed_load_is_a_new_chance(host: Host, story: Story, seen_down: bool) -> None:
    """The error says: restart the engine, it is then brought to the local version. So it must be."""
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(status=500, body=REASON)
        assert host.pull("--engine", str(spec_of(fake))).code == 31
        fake.faults.clear()
        fake.stop()
        if seen_down:
            story.look(fake)
        fake.start()
        assert host.pulled("--engine", str(spec_of(fake)))["engines"][0]["state"] == "at_version"
        assert fake.holds(host.models[1])


# ---- E3, E4


def test_e03_a_reload_that_fails_twice_is_failed_and_not_resumed(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(status=500, body=REASON)
        result = host.pull("--engine", str(spec_of(fake)))
        assert (result.code, result.error["id"]) == (31, "engine_refused")
        assert "no kernel image for this device" in result.error["message"]
        assert posts(fake) == ["POST /pause", "POST /collective_rpc"] * 2
        assert is_paused(fake)
        engine = result.document["engines"][0]
        assert (engine["state"], engine["version"]) == ("failed", None)
        assert "no kernel image" in engine["error"]
        assert not story.look(fake).lacking  # the daemon does not try these weights in this engine again


def test_e03_a_second_load_mends_the_first(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(status=500, body=REASON, times=1)
        assert host.pulled("--engine", str(spec_of(fake)))["engines"][0]["state"] == "at_version"
        assert posts(fake) == ["POST /pause", "POST /collective_rpc", *VLLM_LOAD, "POST /v1/completions"]
        assert answers_as(fake, host, 1)


@pytest.mark.parametrize("change", ["lacks", "other shape"])
def test_e04_names_and_shapes_are_checked_before_the_engine_is_touched(host: Host, change: str) -> None:
    model = dict(host.models[1])
    if change == "lacks":
        del model["model.norm.weight"]
    else:
        norm = model["model.norm.weight"]
        model["model.norm.weight"] = replace(norm, shape=(norm.shape[0], 1, norm.shape[1]))
    toolkit.publish_full(host.shared, 2, model)
    with FakeVllm(host.base) as fake:
        result = host.pull("--engine", str(spec_of(fake)))
        assert (result.code, result.error["id"], result.error["version"]) == (31, "engine_not_ready", 2)
        assert result.error["tensors"] == ["model.norm.weight"]
        assert posts(fake) == []
        assert answers_as(fake, host, 0)


@pytest.mark.parametrize("tied", [True, False])
def test_e04_a_tied_head_may_be_left_out(tmp_path: Path, tied: bool) -> None:
    config = {"config.json": b'{"tie_word_embeddings": true}' if tied else b"{}"}
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8), extra_files=config)
    model = toolkit.step(host.models[0], 1)
    del model["lm_head.weight"]
    toolkit.publish_full(host.shared, 1, model, extra_files=config)
    with FakeVllm(host.base) as fake:
        assert host.pull("--engine", str(spec_of(fake))).code == (0 if tied else 31)
        assert ("POST /collective_rpc" in posts(fake)) == tied


def test_e04_a_base_that_cannot_be_read_proves_nothing(host: Host) -> None:
    host.publish_full()
    host.pulled()
    with FakeVllm(host.base) as fake:
        for shard in host.base.glob("*.safetensors"):
            shard.write_bytes(b"rotten")
        assert toolkit.vime("reload", "--local", host.local, "--engine", str(spec_of(fake))).code == 0
        assert fake.holds(host.models[2])


def test_e04_weights_that_answer_nan_do_not_pass_the_probe(host: Host) -> None:
    model = dict(host.models[1])
    norm = model["model.norm.weight"]
    assert norm.dtype == "BF16"
    model["model.norm.weight"] = replace(norm, data=b"\xc0\x7f" * (len(norm.data) // 2))
    toolkit.publish_full(host.shared, 2, model)
    with FakeVllm(host.base) as fake:
        result = host.pull("--probe", "--engine", str(spec_of(fake)))
        assert (result.code, result.document["engines"][0]["state"]) == (32, "failed")
        assert "not JSON compliant" in result.error["message"]
        assert is_paused(fake)  # nobody gets an answer from them


# ---- E5, E6


def test_e05_without_development_endpoints_it_says_what_to_set(host: Host) -> None:
    with FakeVllm(host.base, dev_mode=False) as fake:
        result = host.pull("--engine", str(spec_of(fake)))
        assert (result.code, result.error["id"]) == (31, "engine_not_ready")
        assert "VLLM_SERVER_DEV_MODE=1" in result.error["hint"]
        assert posts(fake) == []


def test_e06_a_prefix_cache_that_is_not_cleared_is_forced(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        fake.complete(LONG)
        fake.faults["/reset_prefix_cache"] = Fault(body={"success": False}, times=1)
        host.pulled("--engine", str(spec_of(fake)))
        queries = [call.query for call in fake.calls if call.path == "/reset_prefix_cache"]
        assert queries == [{}, {"reset_running_requests": "true"}]
        assert answers_as(fake, host, 1)


def test_e06_a_prefix_cache_that_is_never_cleared_is_a_failure(host: Host) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/reset_prefix_cache"] = Fault(body={"success": False})
        result = host.pull("--engine", str(spec_of(fake)))
        assert (result.code, result.document["engines"][0]["state"]) == (31, "failed")
        assert len(fake.told("/collective_rpc")) == 2 and fake.told("/resume") == []


# ---- E8, E9, E10


def test_e08_one_engine_fails_and_the_other_is_served(host: Host) -> None:
    with FakeVllm(host.base) as broken, FakeVllm(host.base) as sound, FakeWebhook() as hook:
        broken.faults["/collective_rpc"] = Fault(status=500, body=REASON)
        specs = [str(spec_of(fake)) for fake in (broken, sound, hook)]
        result = toolkit.vime("pull", "--local", host.local, env={"VIME_SYNC_ENGINE": " ".join(specs)})
        assert result.code == 31 and "no kernel image" in result.error["message"]
        states = [(engine["url"], engine["state"], engine["version"]) for engine in result.document["engines"]]
        assert states == [(broken.url, "failed", None), (sound.url, "at_version", 1), (hook.url, "at_version", 1)]
        assert answers_as(sound, host, 1)
        assert [document["version"] for document in hook.documents] == [1]


def test_e09_a_load_longer_than_we_wait_gets_no_second_one_on_top(host: Host, story: Story) -> None:
    hasty = Story(host, replace(QUICK, timeout_s=1.5, look_timeout_s=1.5))
    with FakeVllm(host.base) as fake:
        with fake.stopped_load(after_tensors=2):
            assert outcome(hasty.serve(fake)[0]) == ("unknown", None, 32)
            assert outcome(hasty.serve(fake, is_forced=True)[0]) == ("unknown", None, 30)
            assert len(fake.told("/collective_rpc")) == 1
        assert is_paused(fake)  # blocks until the load is through
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert answers_as(fake, host, 1)


@pytest.mark.parametrize("upper", [True, False])
def test_e10_proxies_of_the_environment_are_not_for_engines(
    host: Host, monkeypatch: pytest.MonkeyPatch, upper: bool
) -> None:
    with FakeVllm(host.base) as fake, FakeWebhook() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name.upper() if upper else name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        host.pulled("--engine", str(spec_of(fake)), "--probe")
        assert proxy.calls == []
        assert fake.holds(host.models[1])


# ---- E11, E12


@pytest.mark.parametrize("rank", [0, 1])
def test_e11_a_rank_that_fails_leaves_the_engine_uncertain(host: Host, rank: int) -> None:
    with FakeVllm(host.base, ranks=2) as fake:
        fake.rank_failures[rank] = "no memory"
        result = host.pull("--engine", str(spec_of(fake)))
        assert (result.code, result.error["id"]) == (32, "engine_out_of_step")
        assert "no memory" in result.error["message"]
        assert len(fake.told("/collective_rpc")) == 1  # a second call would get the first one's answers
        assert is_paused(fake)


def _other_stream(host: Host) -> None:
    shutil.rmtree(toolkit.version_path(host.shared, 1))
    host.models[1] = toolkit.step(host.models[0], 77)
    toolkit.publish_delta(host.shared, 1, host.models[0], host.models[1])


def _repair(host: Host) -> None:
    flip_byte(host.local, "lm_head.weight")
    expect_error(toolkit.vime("verify", "--local", host.local), 22, "damaged")


@pytest.mark.parametrize("change", [_other_stream, _repair])
def test_e12_the_right_number_of_other_bytes_is_loaded_again(host: Host, change: Callable[[Host], None]) -> None:
    with FakeVllm(host.base) as fake:
        host.pulled("--engine", str(spec_of(fake)))
        change(host)
        fake.calls.clear()
        document = host.pulled("--engine", str(spec_of(fake)))
        assert (document["result"], document["version"]) == ("updated", 1)
        assert posts(fake) == VLLM_LOAD
        assert answers_as(fake, host, 1)


def test_e12_the_right_number_alone_proves_nothing(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        ask(fake, "/update_weight_version", {"new_version": "1"})
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert fake.holds(host.models[1])
