"""From published to served: what a real engine answers after each version is what those weights say."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.real_vllm.daemon import Daemon
from tests.real_vllm.server import Server
from tests.real_vllm.stream import TinyHost
from tests.real_vllm.traffic import TOKENS, Traffic
from tests.real_vllm.truth import PROMPTS, Truth, ask_all, different, same


def test_each_version_is_served_as_a_server_on_the_same_weights_answers(
    host: TinyHost, engine: Server, truth: Truth
) -> None:
    """Delta by xor, by overwrite, a full version, a delta over it; clients ask all the while."""
    steps: tuple[Callable[[], Path], ...] = (
        lambda: host.publish(encoding="xor"),
        lambda: host.publish(encoding="overwrite"),
        lambda: host.publish_full(shards=2),
        lambda: host.publish(encoding="xor"),
    )
    expected = [truth.of(host.models[0])]
    with Daemon(host, "--probe", engines=(engine,)) as daemon:
        daemon.until_served(0)
        assert same(ask_all(engine), expected[0])
        with Traffic(engine, PROMPTS[0]) as traffic:
            for version, publish in enumerate(steps, start=1):
                # These fill the prefix cache with blocks that are wrong from the next version on.
                assert same(ask_all(engine), expected[-1])
                publish()
                daemon.until_served(version)
                expected.append(truth.of(host.models[version]))
                answers = ask_all(engine)
                assert same(answers, expected[version])
                assert different(answers, expected[version - 1])
                host.expect_local(version)
        assert daemon.ack()["version"] == 4
    waited = toolkit.vime_plain("wait", "--ack-dir", daemon.acks, "--version", "4", "--hosts", "rollout")
    assert waited.code == 0, waited.stderr

    # Requests that run are let end before a load: each is of one version from its first token to its last.
    right = [answers[0].token_ids[:TOKENS] for answers in expected]
    seen = {answer.token_ids for answer in traffic.answers}
    assert seen <= set(right)
    assert {right[0], right[-1]} <= seen


def test_a_daemon_pinned_to_an_older_version_rolls_the_engine_back(
    host: TinyHost, engine: Server, truth: Truth
) -> None:
    for encoding in ("xor", "overwrite", "xor"):
        host.publish(encoding=encoding)
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(3)
        assert same(ask_all(engine), truth.of(host.models[3]))
    with Daemon(host, "--version", "1", engines=(engine,)) as daemon:
        daemon.until_served(1)
        host.expect_local(1)
        answers = ask_all(engine)
        assert same(answers, truth.of(host.models[1]))
        assert different(answers, truth.of(host.models[3]))
        assert engine.weight_version() == "1"


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_pull_and_reload_bring_an_engine_along_without_a_daemon(
    host: TinyHost, engine: Server, truth: Truth, mode: str, tmp_path: Path
) -> None:
    assert engine.api_key is not None
    (tmp_path / "key").write_text(engine.api_key + "\n", encoding="utf-8")
    options: tuple[str, ...] = ("--engine", f"vllm={engine.url}", "--pause-mode", mode, "--probe")
    options += ("--engine-api-key-file", str(tmp_path / "key"))
    host.publish()
    before = ask_all(engine)
    document = host.pulled(*options)
    assert [(found["state"], found["version"]) for found in document["engines"]] == [("at_version", 1)]
    answers = ask_all(engine)
    assert same(answers, truth.of(host.models[1]))
    assert different(answers, before) or same(before, answers)  # the modes follow each other on one engine

    # Somebody has loaded something else by hand: the engine's number does not show it, an operator reloads.
    engine.call("reload_weights", weights_path=str(host.base))
    assert not same(ask_all(engine), answers)
    again = toolkit.vime("reload", "--local", host.local, *options)
    assert again.code == 0, again.stderr
    assert same(ask_all(engine), answers)


def test_without_a_cleared_prefix_cache_these_prompts_would_show_it(
    host: TinyHost, engine: Server, truth: Truth
) -> None:
    """The trap that the stories must be able to fall into: old blocks under new weights answer like neither."""
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
    old = ask_all(engine)
    engine.call("reload_weights", weights_path=str(host.base))
    mixed = ask_all(engine)
    assert not same(mixed, old)
    assert not same(mixed, truth.of(host.models[0]))
    assert engine.ask("/reset_prefix_cache", {}).json() == {"success": True}
    assert same(ask_all(engine), truth.of(host.models[0]))
