"""An engine of two tensor-parallel ranks with the worker extension, driven by the daemon and by a trainer."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real_vllm.daemon import Daemon
from tests.real_vllm.faults import ACCIDENT
from tests.real_vllm.process_group import until
from tests.real_vllm.server import Server
from tests.real_vllm.stream import TinyHost
from tests.real_vllm.truth import Truth, ask_all, different, same

Answer = dict[str, Any]


def arguments(host: TinyHost, version: int | str, nonce: str) -> dict[str, Any]:
    """What a trainer sends; the base is what the engine was started from."""
    return {
        "local_checkpoint_dir": str(host.local),
        "source_dir": str(host.shared),
        "target_version": version,
        "nonce": nonce,
    }


def expect_all(answers: list[Answer], nonce: str, version: int) -> None:
    """Every rank in its order says that its host holds the version, and answers this call."""
    assert [answer["rank"] for answer in answers] == [0, 1]
    for answer in answers:
        assert answer["success"], answer
        assert (answer["nonce"], answer["weight_version"]) == (nonce, str(version))


@contextmanager
def lock_of(local: Path) -> Iterator[None]:
    """Somebody else works on LOCAL for a while."""
    lock = local / ".weight_sync" / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def test_a_trainer_pulls_through_the_engine_and_then_loads(host: TinyHost, ranks: Server, truth: Truth) -> None:
    host.publish()
    before = ask_all(ranks)
    expect_all(ranks.call("pull_weights", **arguments(host, "1", "a")), "a", 1)
    host.expect_local(1)
    assert same(ask_all(ranks), before)  # pulled, not loaded

    assert ranks.ask("/pause?mode=wait", {}).json() == {"status": "paused"}
    expect_all(ranks.call("pull_weights", **arguments(host, 1, "b"), reload=True), "b", 1)
    assert ranks.ask("/reset_prefix_cache", {}).json() == {"success": True}
    ranks.ask("/resume", {})
    assert same(ask_all(ranks), truth.of(host.models[1]))

    # The base was remembered at the first call: by now the workers' configuration names LOCAL.
    other = TinyHost.begin(host.root / "other")
    other.publish()
    expect_all(ranks.call("pull_weights", **arguments(other, "latest", "c")), "c", 1)
    other.expect_local(1)


def test_what_cannot_be_pulled_is_answered_by_every_rank(host: TinyHost, ranks: Server) -> None:
    answers = ranks.call("pull_weights", **arguments(host, 7, "gone"), version_wait_s=0)
    assert [(answer["success"], answer["nonce"], answer["rank"]) for answer in answers] == [
        (False, "gone", 0),
        (False, "gone", 1),
    ]
    assert all(answer["error"] and answer["message"] for answer in answers)
    report = ranks.call("vime_sync_report", local_checkpoint_dir=str(host.local), nonce="next")
    assert [answer["nonce"] for answer in report] == ["next", "next"]  # no rank is a call behind


def test_a_pull_in_the_background_lets_the_engine_serve(host: TinyHost, ranks: Server, truth: Truth) -> None:
    host.publish()
    before = ask_all(ranks)
    with lock_of(host.local):
        begun = ranks.call("vime_sync_start_pull", **arguments(host, 1, "start"))
        assert [(answer["success"], answer["done"]) for answer in begun] == [(True, False)] * 2
        assert same(ask_all(ranks), before)  # answers come while the pull waits for the lock
        poll = ranks.call("vime_sync_poll", local_checkpoint_dir=str(host.local), nonce="poll")
        assert [(answer["nonce"], answer["done"]) for answer in poll] == [("poll", False)] * 2

    def finished() -> list[Answer] | None:
        answers: list[Answer] = ranks.call("vime_sync_poll", local_checkpoint_dir=str(host.local), nonce="poll")
        return answers if all(answer["done"] for answer in answers) else None

    expect_all(until(finished, "the pull does not end"), "poll", 1)
    host.expect_local(1)
    assert same(ask_all(ranks), before)


def test_the_daemon_drives_both_ranks_through_the_extension(host: TinyHost, ranks: Server, truth: Truth) -> None:
    host.publish()
    with Daemon(host, "--probe", engines=(ranks,)) as daemon:
        daemon.until_served(1)
        answers = ask_all(ranks)
        assert same(answers, truth.of(host.models[1]))
        host.publish_full()
        daemon.until_served(2)
        assert same(ask_all(ranks), truth.of(host.models[2]))
        assert different(ask_all(ranks), answers)


@pytest.mark.parametrize("rank", [0, 1])
def test_e11_a_rank_that_fails_is_told_and_the_next_answers_are_not_stale(
    host: TinyHost, ranks: Server, truth: Truth, rank: int
) -> None:
    host.publish()
    with Daemon(host, engines=(ranks,)) as daemon:
        daemon.until_served(1)
        ranks.call("story_fail_loads", times=2, rank=rank)
        host.publish()
        assert ACCIDENT in daemon.until_failed()
        assert ranks.is_paused()
        report = ranks.call("vime_sync_report", local_checkpoint_dir=str(host.local), nonce="in step")
        assert [answer["nonce"] for answer in report] == ["in step", "in step"]

        host.publish()
        daemon.until_served(3)
        assert same(ask_all(ranks), truth.of(host.models[3]))


def test_e11_without_the_extension_a_rank_that_fails_leaves_the_engine_to_be_restarted(
    host: TinyHost, ranks: Server
) -> None:
    """The last story of this engine: its ranks stay a call apart."""
    host.publish()
    with Daemon(host, "--vllm-extension", "never", engines=(ranks,)) as daemon:
        daemon.until_served(1)
        ranks.call("story_fail_loads", times=1, rank=0)
        host.publish()
        assert "other ranks" in daemon.until_failed(ACCIDENT)
        loads = ranks.log_text().count('"POST /collective_rpc')
        host.publish()
        daemon.until_status(lambda status: status["local_version"] == 3, "version 3 is not pulled")
        engine = daemon.engine(ranks.url)
        assert engine["state"] == "failed", engine
        assert ranks.is_paused()
        assert ranks.log_text().count('"POST /collective_rpc') == loads  # nothing more is asked of it
