"""However the worker extension is called, it answers, with what can be sent and with the caller's nonce (E11)."""

import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.extension_story import arguments, call, make_worker
from tests.host import Host
from tests.kill_points import no_disk_waits
from vime_sync.vllm_extension import PullWeightsExtension, pulling

METHODS = ("pull_weights", "vime_sync_report", "vime_sync_start_pull", "vime_sync_poll", "vime_sync_reload")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host.create(tmp_path, model=toolkit.make_model(tensors=2, kib=4))
    host.publish()
    return host


def test_the_class_has_only_the_methods_that_are_called() -> None:
    """vLLM refuses to start where a worker has an attribute of the same name, a private one too."""
    assert sorted(name for name in dir(PullWeightsExtension) if not name.startswith("__")) == sorted(METHODS)


def test_into_an_engine_comes_only_what_a_pull_needs() -> None:
    """The command line's and the daemon's libraries need not be there at all."""
    script = "import sys; import vime_sync.vllm_extension; print(*{name.partition('.')[0] for name in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"typer", "rich", "click", "watchdog", "prometheus_client"} & set(ran.stdout.split())


@pytest.mark.parametrize("method", METHODS)
def test_without_arguments_it_says_what_is_missing(method: str, host: Host) -> None:
    answer = call(make_worker(host.base), method)
    assert (answer["success"], answer["nonce"], answer["error"]) == (False, None, "usage")
    assert "local_checkpoint_dir" in answer["message"]


@pytest.mark.parametrize("method", METHODS)
def test_too_many_arguments_or_one_given_twice_are_answered(method: str, host: Host) -> None:
    worker = make_worker(host.base)
    assert call(worker, method, *([0] * 20))["success"] is False
    answer = call(worker, method, "a", "b", "c", nonce=7, local_checkpoint_dir=str(host.local))
    assert (answer["success"], answer["nonce"]) == (False, 7)
    assert "multiple values" in answer["message"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["relative", "", 7, True, ["/tmp"], {}, "/nul\0byte", "~/local"])
def test_a_path_that_cannot_be_meant_is_answered(method: str, path: Any, host: Host) -> None:
    answer = call(make_worker(host.base), method, **{**arguments(host, 1), "local_checkpoint_dir": path})
    assert (answer["success"], answer["error"], answer["nonce"]) == (False, "usage", "trainer")


@pytest.mark.parametrize("method", ["pull_weights", "vime_sync_start_pull", "vime_sync_reload"])
@pytest.mark.parametrize(
    "version",
    [None, -1, 1.0, True, "", "one", "-1", "٣", 10**30, 10**5000, [1], math.nan],
    ids=lambda value: type(value).__name__,
)
def test_a_version_that_cannot_be_meant_is_answered(method: str, version: Any, host: Host) -> None:
    answer = call(make_worker(host.base), method, **arguments(host, version))
    assert (answer["success"], answer["error"], answer["nonce"]) == (False, "usage", "trainer")
    assert not host.local.exists()


def test_a_reload_is_of_a_version_with_a_number(host: Host) -> None:
    host.pulled()
    answer = call(make_worker(host.base), "vime_sync_reload", **arguments(host, "latest"))
    assert (answer["success"], answer["error"]) == (False, "usage")


@pytest.mark.parametrize(
    "wrong",
    [{"source_dir": 7}, {"base_dir": "here"}, {"reload": "yes"}, {"wait_s": -1}, {"wait_s": math.nan}, {"wait_s": "1"}],
    ids=str,
)
def test_other_arguments_of_a_wrong_kind_are_answered(wrong: dict[str, Any], host: Host) -> None:
    answer = call(make_worker(host.base), "pull_weights", **arguments(host, 1, **wrong))
    assert (answer["success"], answer["error"]) == (False, "usage")
    assert next(iter(wrong)) in answer["message"]
    assert not host.local.exists()


def test_unknown_arguments_are_ignored(host: Host) -> None:
    answer = call(make_worker(host.base), "pull_weights", **arguments(host, 1, flush_cache=True, world={"size": 2}))
    assert (answer["success"], answer["version"]) == (True, 1)


@pytest.mark.parametrize("nonce", ["abc", "", 0, -5, 2**63 - 1, 1796077885.25, None, True])
def test_a_nonce_comes_back_as_it_is(nonce: Any, host: Host) -> None:
    worker = make_worker(host.base)
    for method in METHODS:
        answer = call(worker, method, **{**arguments(host, 1), "nonce": nonce})
        assert (type(answer["nonce"]), answer["nonce"]) == (type(nonce), nonce)
    assert worker.vime_sync_report(nonce, str(host.local))["nonce"] == nonce


@pytest.mark.parametrize(
    "nonce", [math.nan, math.inf, 2**64, 10**5000, "\ud800", object(), {"a": math.nan}, b"x"], ids=type
)
def test_a_nonce_that_cannot_be_sent_never_hangs_the_engine(nonce: Any, host: Host) -> None:
    worker = make_worker(host.base)
    answer = worker.vime_sync_report(nonce=nonce, local_checkpoint_dir=str(host.local))
    assert answer["success"]
    assert isinstance(answer["nonce"], str)
    answer["nonce"].encode()


def test_a_message_of_any_kind_can_be_sent(host: Host) -> None:
    host.pulled()
    worker = make_worker(host.base)
    worker.rank = object()

    def fail(weights_path: str) -> None:
        raise ValueError("\udcff" + "x" * 10_000)

    worker.reload_weights = fail
    answer = call(worker, "vime_sync_reload", **arguments(host, 1))
    assert (answer["success"], answer["rank"]) == (False, -1)
    assert len(answer["message"]) < 5_000


def test_a_local_that_cannot_be_read_is_answered(host: Host) -> None:
    host.local.write_text("a file")
    worker = make_worker(host.base)
    answer = call(worker, "pull_weights", **arguments(host, 1))
    assert (answer["success"], answer["error"]) == (False, "usage")
    assert call(worker, "vime_sync_reload", **arguments(host, 1))["success"] is False


def test_a_pull_without_a_share_or_base_says_what_it_needs(host: Host) -> None:
    worker = make_worker(host.base)
    worker.model_config.model = "/nowhere"
    for wanted in (arguments(host, 1, source_dir=None), arguments(host, 0)):
        answer = call(worker, "pull_weights", **wanted)
        assert (answer["success"], answer["error"]) == (False, "usage")


def test_no_more_threads_to_be_had_is_an_answer(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker(host.base)

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        for method in ("pull_weights", "vime_sync_start_pull"):
            assert "new thread" in call(worker, method, **arguments(host, 1))["message"]
    assert call(worker, "vime_sync_poll", nonce=1, local_checkpoint_dir=str(host.local))["version"] is None


def test_a_bug_in_a_pull_is_an_answer_and_a_poll_comes_to_an_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(pulling, "reconcile", broken)
    worker = make_worker(host.base)
    answer = call(worker, "pull_weights", **arguments(host, 1))
    assert (answer["success"], answer["message"]) == (False, "ZeroDivisionError: ours")
    call(worker, "vime_sync_start_pull", **arguments(host, 1))
    for thread in threading.enumerate():
        if thread.name == "vime-sync-pull":
            thread.join(60)
    answer = call(worker, "vime_sync_poll", nonce=1, local_checkpoint_dir=str(host.local))
    assert (answer["success"], answer["done"], answer["message"]) == (False, True, "ZeroDivisionError: ours")
