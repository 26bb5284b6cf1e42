"""The fake engines behave as the real ones were seen to: pauses, faults, restarts, the other kinds, story by story."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests import toolkit
from tests.fake_engine import Fault
from tests.fake_http import Answer
from tests.fake_sglang import FakeSglang
from tests.fake_stories import LONG, NEW, OLD, SHORT, aside, ask, nothing_left, reload
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.fake_weights import fresh_answer


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No thread and no socket of a fake outlives its block."""
    with nothing_left():
        yield


@pytest.fixture
def base(tmp_path: Path) -> Path:
    toolkit.write_checkpoint(tmp_path / "base", OLD)
    return tmp_path / "base"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    toolkit.write_checkpoint(tmp_path / "new", NEW)
    return tmp_path / "new"


# ---- pauses and prompts on the way


def test_a_prompt_waits_while_paused_and_the_server_says_healthy(base: Path, new: Path) -> None:
    with FakeVllm(base) as fake:
        assert ask(fake, "/pause", {}).json() == {"status": "paused"}
        assert ask(fake, "/is_paused").json() == {"is_paused": True}
        assert ask(fake, "/is_sleeping").json() == {"is_sleeping": True}  # paused counts as sleeping
        with aside(fake.complete, SHORT) as asked:
            fake.wait_for_requests(waiting=1)
            assert ask(fake, "/health").status_code == 200
            reload(fake, new)
            assert not asked.done()
            assert ask(fake, "/resume", {}).json() == {"status": "resumed"}
        assert asked.result() == fresh_answer(NEW, SHORT)


def test_a_waiting_prompt_leaves_with_its_client(base: Path) -> None:
    with FakeVllm(base) as fake:
        ask(fake, "/pause", {})
        with pytest.raises(requests.ReadTimeout):
            ask(fake, "/v1/completions", {"model": "m", "prompt": SHORT}, timeout=0.1)
        ask(fake, "/resume", {})
        assert fake.complete(SHORT) == fresh_answer(OLD, SHORT)
        assert not fake.generation.waiting


def test_an_aborting_pause_ends_what_runs(base: Path) -> None:
    with FakeVllm(base) as fake, fake.held_completions():
        with aside(ask, fake, "/v1/completions", {"model": "m", "prompt": SHORT}) as asked:
            fake.wait_for_requests(running=1)
            ask(fake, "/pause?mode=abort", {})
        choice = asked.result().json()["choices"][0]
        assert (choice["finish_reason"], choice["text"]) == ("abort", "")


def test_a_waiting_pause_drains_what_runs(base: Path) -> None:
    with FakeVllm(base) as fake, fake.held_completions(), aside(fake.complete, SHORT) as asked:
        fake.wait_for_requests(running=1)
        with aside(ask, fake, "/pause?mode=wait", {}) as pausing:
            fake.wait_for_calls("/pause")
            assert ask(fake, "/health").status_code == 200 and not pausing.done()
            fake.hold_completions(False)
        assert pausing.result().json() == {"status": "paused"}
        assert asked.result() == fresh_answer(OLD, SHORT)


def test_a_keeping_pause_freezes_what_runs_and_its_answer_is_of_both_models(base: Path, new: Path) -> None:
    with FakeVllm(base) as fake, fake.held_completions(), aside(fake.complete, SHORT) as asked:
        fake.wait_for_requests(running=1)
        ask(fake, "/pause?mode=keep", {})
        assert ask(fake, "/reset_prefix_cache", {}).json() == {"success": True}
        fake.hold_completions(False)
        reload(fake, new)
        assert not asked.done()
        ask(fake, "/resume", {})
        assert asked.result() not in {fresh_answer(OLD, SHORT), fresh_answer(NEW, SHORT)}


def test_the_cache_is_not_reset_while_prompts_run_unless_forced(base: Path) -> None:
    with FakeVllm(base) as fake, fake.held_completions(), aside(fake.complete, LONG) as asked:
        fake.wait_for_requests(running=1)
        refused = ask(fake, "/reset_prefix_cache", {})
        assert (refused.status_code, refused.json()) == (200, {"success": False})
        assert ask(fake, "/reset_prefix_cache?reset_running_requests=true", {}).json() == {"success": True}
        fake.hold_completions(False)
        assert asked.result() == fresh_answer(OLD, LONG)


def test_a_reload_occupies_the_loop_and_health_answers(base: Path, new: Path) -> None:
    with FakeVllm(base) as fake, fake.stopped_load(after_tensors=1) as gate, aside(reload, fake, new) as reloading:
        gate.wait()
        assert ask(fake, "/health").status_code == 200
        assert ask(fake, "/get_world_size").json() == {"world_size": 1}
        with pytest.raises(requests.ReadTimeout):
            ask(fake, "/weight_info", timeout=0.1)
        with aside(fake.complete, SHORT) as asked, aside(ask, fake, "/is_paused") as looking:
            fake.wait_for_requests(waiting=1)
            assert not looking.done() and not reloading.done()
            gate.go_on.set()
        assert looking.result().json() == {"is_paused": False}
        assert asked.result() == fresh_answer(NEW, SHORT)


def test_a_client_that_gives_up_does_not_stop_the_reload(base: Path, new: Path) -> None:
    with FakeVllm(base) as fake, fake.stopped_load(after_tensors=1) as gate:
        with pytest.raises(requests.ReadTimeout):
            named = {"weights_path": str(new)}
            ask(fake, "/collective_rpc", {"method": "reload_weights", "kwargs": named}, timeout=0.1)
        gate.go_on.set()
        ask(fake, "/is_paused")  # comes after it in the loop
        assert fake.holds(NEW)


# ---- the server and its lives


def test_a_restart_loads_the_base_again_on_the_same_port(base: Path, new: Path) -> None:
    with FakeVllm(base) as fake:
        assert ask(fake, "/weight_info").json() == {"weight_version": "default"}
        assert ask(fake, "/update_weight_version", {"new_version": 7}).status_code == 400
        ask(fake, "/update_weight_version", {"new_version": "7"})
        ask(fake, "/pause", {})
        reload(fake, new)
        assert ask(fake, "/weight_info").json() == {"weight_version": "7"}
        fake.stop()
        with pytest.raises(requests.ConnectionError):
            ask(fake, "/health")
        fake.start()
        assert ask(fake, "/weight_info").json() == {"weight_version": "default"}
        assert ask(fake, "/is_paused").json() == {"is_paused": False}
        assert fake.holds(OLD) and fake.complete(SHORT) == fresh_answer(OLD, SHORT)
        assert fake.told("/pause") == ["POST /pause"]


def test_a_stop_cuts_everybody_who_waits(base: Path) -> None:
    with FakeVllm(base) as fake:
        ask(fake, "/pause", {})
        with aside(ask, fake, "/v1/completions", {"model": "m", "prompt": SHORT}) as asked:
            fake.wait_for_requests(waiting=1)
            fake.stop()
        assert isinstance(asked.exception(), requests.ConnectionError)


def test_endpoints_that_a_server_lacks_are_404(base: Path) -> None:
    with FakeVllm(base, dev_mode=False) as fake:
        assert ask(fake, "/health").status_code == 200
        missing = ask(fake, "/collective_rpc", {"method": "reload_weights"})
        assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
    with FakeVllm(base, weight_info=False) as fake:
        assert ask(fake, "/weight_info").status_code == 404
        assert ask(fake, "/pause", {}).status_code == 200
        assert ask(fake, "/pause").status_code == 405


def test_a_key_guards_the_prompts_only(base: Path) -> None:
    with FakeVllm(base, api_key="secret") as fake:
        assert ask(fake, "/v1/models").status_code == 401
        assert ask(fake, "/is_paused").status_code == 200
        assert fake.complete(SHORT) == fresh_answer(OLD, SHORT)


# ---- faults


def test_faults_take_the_place_of_answers_as_often_as_asked(base: Path, new: Path) -> None:
    with FakeVllm(base) as fake:
        fake.faults["/collective_rpc"] = Fault(status=503, body={"busy": True}, times=1)
        assert reload(fake, new).status_code == 503 and fake.holds(OLD)
        assert reload(fake, new).status_code == 200 and fake.holds(NEW)
        fake.faults["/collective_rpc"] = Fault(body=b"<html>", when="after")
        assert reload(fake, base).text == "<html>" and fake.holds(OLD)  # it did it, and says rubbish
        fake.faults["/collective_rpc"] = Fault(close=True, when="after")
        with pytest.raises(requests.ConnectionError):
            reload(fake, new)
        assert fake.holds(NEW)
        fake.faults["/collective_rpc"] = Fault(huge_bytes=1 << 20)
        assert len(reload(fake, base).content) == 1 << 20
        fake.faults.clear()
        assert reload(fake, base).json() == {"results": [None]}


def test_a_fault_can_hang_and_trickle(base: Path) -> None:
    with FakeVllm(base) as fake:
        fake.faults["/resume"] = fault = Fault(hang=threading.Event())
        assert fault.hang is not None
        with aside(ask, fake, "/resume", {}) as resuming:
            assert fault.reached.wait(30) and not resuming.done()
            fault.hang.set()
        assert resuming.result().json() == {"status": "resumed"}  # it only delayed
        fake.faults["/health"] = Fault(trickle=True)
        with requests.get(fake.url + "/health", stream=True, timeout=60, headers={"Connection": "close"}) as response:
            content = response.iter_content(1)
            assert [next(content) for _ in range(3)] == [b" "] * 3


# ---- the other kinds


def test_sglang_updates_from_disk_and_goes_back_when_it_cannot(base: Path, new: Path, tmp_path: Path) -> None:
    with FakeSglang(base) as fake:
        fake.complete(LONG)
        for step in ("/pause_generation", "/flush_cache"):
            assert ask(fake, step, {}).status_code == 200
        updated = ask(fake, "/update_weights_from_disk", {"model_path": str(new), "weight_version": "7"})
        assert updated.status_code == 200 and updated.json()["success"] is True
        ask(fake, "/continue_generation", {})
        assert fake.holds(NEW) and fake.complete(LONG) == fresh_answer(NEW, LONG)
        assert ask(fake, "/get_weight_version").json() == {"weight_version": "7"}
        failed = ask(fake, "/update_weights_from_disk", {"model_path": str(tmp_path / "nowhere")})
        assert failed.status_code == 400 and failed.json()["success"] is False
        assert "nowhere" in failed.json()["message"]
        assert fake.holds(NEW) and fake.complete(SHORT) == fresh_answer(NEW, SHORT)
        fake.restart()
        information = ask(fake, "/get_model_info").json()
        assert (information["model_path"], information["weight_version"]) == (str(base), "default")


def test_a_webhook_keeps_what_it_is_told() -> None:
    with FakeWebhook() as hook:
        assert ask(hook, "/any/path", {"version": 7}).status_code == 204
        hook.reply = Answer(500, {"no": "room"})
        assert ask(hook, "/any/path", {"version": 8}).json() == {"no": "room"}
        assert hook.documents == [{"version": 7}, {"version": 8}]
        assert hook.calls[0].path == "/any/path"


def test_as_a_process_it_is_killed_and_started_again_on_its_port(base: Path) -> None:
    def started(port: int) -> "tuple[subprocess.Popen[str], str]":
        command = [sys.executable, "-m", "tests.fake_vllm", "--port", str(port), "--model", str(base)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    process, url = started(0)
    process.kill()
    process.communicate()
    process, again = started(int(url.rpartition(":")[2]))
    assert again == url
    loaded = requests.get(url + "/fake/loaded", timeout=60, headers={"Connection": "close"}).json()
    assert set(loaded["ranks"][0]["tensors"]) == set(OLD)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
