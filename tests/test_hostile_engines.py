"""Engines that restart between two steps, lie, refuse, repeat the key: what they serve afterwards, and what is said.

FIELD_GUIDE E2, E3, E4, E7, E8, E12: none is called at a version that it does not serve, and none stays paused by us.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests import toolkit
from tests.daemon_story import running
from tests.engine_story import QUICK, Story, is_paused, message, outcome, posts, small_host
from tests.fake_engine import Fault
from tests.fake_http import Answer, Exchange
from tests.fake_sglang import FakeSglang
from tests.fake_stories import ask
from tests.fake_vllm import FakeVllm
from tests.host import Host
from vime_sync.daemon import engine_care
from vime_sync.engines import sglang
from vime_sync.engines.spec import PauseMode, parse_engines
from vime_sync.engines.vllm import VllmEngine
from vime_sync.errors import UsageError
from vime_sync.local.lock import describe_holder
from vime_sync.local.paths import local_paths
from vime_sync.vllm_extension import PullWeightsExtension

# Holds the lock as a process of ours with a secret in its command line would, until its input ends.
HOLDER = """
import fcntl, sys
with open(sys.argv[-1], "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@pytest.fixture
def story(host: Host) -> Story:
    return Story(host)


def restart_at(fake: FakeVllm, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process answers from the end of its first answer to `step` on; no connection is ever refused."""
    answer = fake.answer
    steps = [step]

    def answer_and_restart(exchange: Exchange) -> Answer:
        given = answer(exchange)
        if exchange.call.path in steps:
            steps.clear()
            before = fake.ranks
            fake.boot()
            before.end()
            before.join()
        return given

    monkeypatch.setattr(fake, "answer", answer_and_restart)


def left_paused(story: Story, fake: FakeVllm) -> None:
    """We paused it for a load, and never came to resume it."""
    fake.faults["/resume"] = Fault(close=True)
    story.serve(fake)
    del fake.faults["/resume"]
    assert is_paused(fake) and story.remembered(fake)["open"] is True


# ---- restarts


@pytest.mark.parametrize("step", ["/collective_rpc", "/reset_prefix_cache"])
def test_a04_an_engine_that_restarts_between_two_steps_of_a_load_is_loaded_again(
    host: Host, story: Story, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with FakeVllm(host.base) as fake:
        restart_at(fake, step, monkeypatch)
        for _ in range(3):
            if story.serve(fake)[0].state.value == "at_version":
                break
        assert outcome(story.look(fake).reports[0]) == ("at_version", 1, None)
        assert fake.holds(host.models[1]) and not is_paused(fake)


def test_a08_one_that_others_had_paused_and_that_died_in_our_load_is_not_left_paused(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        ask(fake, "/pause", {})
        fake.faults["/collective_rpc"] = Fault(close=True, times=1)
        story.serve(fake)
        fake.restart()  # nobody who paused the one before is asked to resume this one
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert fake.holds(host.models[1]) and not is_paused(fake)


def test_a08_one_that_others_had_paused_and_that_lives_on_is_left_paused(host: Host, story: Story) -> None:
    """The other side of it."""
    with FakeVllm(host.base) as fake:
        ask(fake, "/pause", {})
        fake.faults["/collective_rpc"] = Fault(close=True, times=1)
        story.serve(fake)
        story.serve(fake)
        assert fake.holds(host.models[1]) and is_paused(fake)


# ---- answers that tell nothing, or something else


@pytest.mark.parametrize(
    "fault",
    [
        Fault(500, {"error": "busy"}, times=1),
        Fault(503, b"<html>no upstream</html>", times=1),
        Fault(200, b"<html>log in</html>", times=1),
        Fault(200, {}, times=1),
    ],
    ids=["500", "503", "page", "empty"],
)
def test_a17_one_answer_that_does_not_tell_of_the_extension_decides_nothing(
    host: Host, story: Story, fault: Fault
) -> None:
    with FakeVllm(host.base, ranks=2, extension_class=PullWeightsExtension) as fake:
        fake.faults["/server_info"] = replace(fault)
        story.serve(fake)
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        methods = [call.body["method"] for call in fake.calls if call.path == "/collective_rpc"]
        assert methods and "reload_weights" not in methods  # on other hosts that would load what happens to lie there


@pytest.mark.parametrize("mode", [PauseMode.WAIT, PauseMode.KEEP])
def test_a01_a_flush_that_is_refused_leaves_no_sglang_paused(
    host: Host, monkeypatch: pytest.MonkeyPatch, mode: PauseMode
) -> None:
    monkeypatch.setattr(sglang, "_FLUSH_PAUSE_S", 0.0)
    story = Story(host, replace(QUICK, pause_mode=mode))
    with FakeSglang(host.base) as fake:
        fake.faults["/flush_cache"] = Fault(400, b"requests are running")
        report = story.serve(fake)[0]
        assert "goes on with the weights it has" in message(report)
        assert not fake.generation.paused() and fake.holds(host.models[0])
        assert story.look(fake).lacking  # nothing was given up
        del fake.faults["/flush_cache"]
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        modes = {(call.body or {}).get("mode") for call in fake.calls if call.path == "/pause_generation"}
        assert modes == {PauseMode.WAIT: {None}, PauseMode.KEEP: {"retract"}}[mode]  # in place no flush ever works


@pytest.mark.parametrize("body", [{"status": "error"}, {"status": "resumed"}, None], ids=["error", "no effect", "none"])
def test_a06_a_resume_that_did_not_resume_is_no_success(host: Host, story: Story, body: Any) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/resume"] = Fault(200, body)
        assert story.serve(fake)[0].state.value != "at_version"
        assert is_paused(fake) and story.remembered(fake)["open"] is True


def test_a02_whatever_one_engine_breaks_in_us_is_its_own_trouble(
    host: Host, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = VllmEngine.load
    with FakeVllm(host.base) as odd, FakeVllm(host.base) as other:

        def breaks(self: VllmEngine, *arguments: Any) -> Any:
            if self.spec.url == odd.url:
                raise RecursionError("maximum recursion depth exceeded")
            return load(self, *arguments)

        monkeypatch.setattr(VllmEngine, "load", breaks)
        first, second = story.serve(odd, other)
        assert first.error is not None and "RecursionError" in message(first)
        assert outcome(second) == ("at_version", 1, None)


def test_a03_a_probability_of_hundreds_of_digits_is_not_finite(host: Host) -> None:
    body = b'{"choices": [{"logprobs": {"token_logprobs": [1%s]}}]}' % (b"0" * 400)
    with FakeVllm(host.base) as fake:
        fake.faults["/v1/completions"] = Fault(200, body)
        report = Story(host, replace(QUICK, probe=True)).serve(fake)[0]
        assert report.state.value == "failed" and "no finite token probability" in message(report)


@pytest.mark.parametrize("size", [Fault(404, {}), Fault(200, {"world_size": 0})], ids=["not told", "none"])
def test_a05_a_load_that_no_rank_answered_is_no_success(host: Host, story: Story, size: Fault) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults = {"/get_world_size": replace(size), "/collective_rpc": Fault(200, {"results": []})}
        assert story.serve(fake)[0].state.value == "failed"
        assert fake.holds(host.models[0])


# ---- what is said, and to whom


@pytest.mark.parametrize("place", ["error", "detail", "list"])
@pytest.mark.parametrize("spelling", ["slashes", "escapes", "quoted"])
def test_a07_the_key_is_told_in_no_spelling(host: Host, spelling: str, place: str) -> None:
    key = "S3CR/T+KEY="
    told = {
        "slashes": json.dumps(key).replace("/", "\\/"),
        "escapes": '"' + "".join(f"\\u{ord(letter):04x}" for letter in key) + '"',
        "quoted": json.dumps(quote(key, safe="")),
    }[spelling]
    body = f'{{"detail": [{{"msg": {told}}}]}}' if place == "list" else f'{{"{place}": {told}}}'
    story = Story(host, replace(QUICK, api_key=key))
    with FakeVllm(host.base, api_key=key) as fake:
        fake.faults["/collective_rpc"] = Fault(401, body.encode())
        report = story.serve(fake)[0]
        assert "***" in message(report)
        for text in (message(report), story.record.read_text(encoding="utf-8")):
            assert told.strip('"') not in text and key not in text


@pytest.mark.parametrize("odd", ["\0", "\ud800"], ids=["NUL", "surrogate"])
def test_a09_the_failure_command_runs_whatever_the_engine_said(host: Host, tmp_path: Path, odd: str) -> None:
    mark = tmp_path / "ran"
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(500, {"error": f"no room{odd} left"})
        command = ("/usr/bin/touch", str(mark))
        with running(host, engines=[f"vllm={fake.url}"], on_engine_failure=command) as daemon:
            daemon.wait_for(lambda: daemon.messages("--on-engine-failure"), "word of the command")
    assert mark.exists()


def test_a10_a_fresh_engine_whose_load_never_goes_well_is_left_alone_for_a_while(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_care, "grown_s", lambda failures, cap_s: 1000.0)
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = Fault(500, {"error": "cannot load"})
        with running(host, engines=[f"vllm={fake.url}"]) as daemon:
            daemon.wait_for(lambda: daemon.messages("cannot load"), "the failure")
            loads = len(fake.told("/collective_rpc"))
            fake.restart()  # as a command would do it
            fake.wait_for_calls("/weight_info", len(fake.told("/weight_info")) + 4)
            assert len(fake.told("/collective_rpc")) == loads


def test_a13_the_holder_of_the_lock_is_named_without_its_options(host: Host, tmp_path: Path) -> None:
    script = tmp_path / "holder.py"
    script.write_text(HOLDER, encoding="utf-8")
    words = [script.name, "--api-key", "S3CRET", "--engine=S3CRET", str(host.local / toolkit.STATE_DIRECTORY / "lock")]
    with subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        told = describe_holder(local_paths(host.local))
        process.communicate()
    assert str(process.pid) in told and "S3CRET" not in told


# ---- records found again


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST"])
def test_a20_an_engine_that_we_left_paused_is_found_under_its_other_name(host: Host, story: Story, name: str) -> None:
    with FakeVllm(host.base) as fake:
        left_paused(story, fake)
        with running(host, engines=[f"vllm=http://{name}:{fake.port}"]) as daemon:
            daemon.wait_for(lambda: daemon.teller.board.snapshot.is_ready, "ready")
            assert not is_paused(fake) and fake.holds(host.models[1])


@pytest.mark.parametrize("other", ["http://localhost:8000", "http://[::1]:8000"])
def test_a20_one_server_is_one_engine(other: str) -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_engines(["vllm=http://127.0.0.1:8000", f"vllm={other}"])


def test_a20_one_that_we_left_paused_and_that_is_not_named_any_more_is_told_of(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        left_paused(story, fake)
        with running(host) as daemon:
            daemon.wait_for(lambda: daemon.messages(str(fake.port), "/resume"), "a warning")
            assert posts(fake)[-1] == "POST /resume"  # the one that came to nothing: no engine of others is touched
