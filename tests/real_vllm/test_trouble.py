"""Loads that go wrong in a real engine: never resumed half loaded, told with the reason, mended when they can be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import toolkit
from tests.real_vllm.daemon import Daemon
from tests.real_vllm.faults import ACCIDENT
from tests.real_vllm.server import Server
from tests.real_vllm.stream import TinyHost
from tests.real_vllm.tiny_model import tiny_files, with_nan
from tests.real_vllm.truth import Truth, ask_all, same


def loads_begun(engine: Server) -> int:
    (found,) = engine.call("story_loads")
    return int(found["begun"])


def test_e03_one_failed_load_is_tried_again_and_then_served(host: TinyHost, engine: Server, truth: Truth) -> None:
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        engine.call("story_fail_loads", times=1)
        before = loads_begun(engine)
        host.publish()
        daemon.until_served(2)
        assert loads_begun(engine) == before + 2
        assert same(ask_all(engine), truth.of(host.models[2]))


def test_e03_a_load_that_fails_twice_is_given_up_and_the_next_version_mends_it(
    host: TinyHost, engine: Server, truth: Truth
) -> None:
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        engine.call("story_fail_loads", times=2)
        before = loads_begun(engine)
        host.publish()
        assert ACCIDENT in daemon.until_failed()
        assert engine.is_paused()  # half loaded: whoever asked it anything would kill it
        assert daemon.get("/healthz")[0] == 503
        status = daemon.until_status(lambda _: True, "no status")
        assert status["local_version"] == 2  # the checkpoint is whole; it is the engine that is not
        assert loads_begun(engine) == before + 2

        host.publish()
        daemon.until_served(3)
        assert not engine.is_paused()
        assert same(ask_all(engine), truth.of(host.models[3]))


def test_e03_an_engine_that_died_of_it_is_served_after_its_restart(
    host: TinyHost, engine: Server, truth: Truth, tmp_path: Path
) -> None:
    """The operator's command is told; here the story restarts the engine, as the command would."""
    called = tmp_path / "called"
    command = f"touch {called}"
    host.publish()
    with Daemon(host, "--on-engine-failure", command, engines=(engine,)) as daemon:
        daemon.until_served(1)
        engine.call("story_fail_loads", times=2)
        host.publish()
        daemon.until_failed(ACCIDENT)
        daemon.until_file(called)
        # Somebody resumes it all the same, and asks: that is its end.
        engine.ask("/resume", {})
        assert engine.ask("/v1/completions", {"prompt": "hello", "max_tokens": 1}).status_code == 500
        engine.wait_until_dead()
        engine.launch()
        daemon.until_served(2)
        assert same(ask_all(engine), truth.of(host.models[2]))


def test_e04_weights_of_nan_are_found_by_the_probe(host: TinyHost, engine: Server, truth: Truth) -> None:
    host.publish()
    with Daemon(host, "--probe", engines=(engine,)) as daemon:
        daemon.until_served(1)
        host.publish_model(with_nan(host.models[1]))
        assert "probe" in daemon.until_failed()
        assert engine.is_paused()
        assert daemon.get("/healthz")[0] == 503

        host.publish_model(host.models[1])
        daemon.until_served(3)
        assert same(ask_all(engine), truth.of(host.models[1]))


def test_e04_a_version_that_lacks_a_tensor_is_not_loaded(host: TinyHost, engine: Server, truth: Truth) -> None:
    """The real engine would say 200, and keep the old tensor."""
    lacking = "model.layers.1.mlp.up_proj.weight"
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        answers = ask_all(engine)
        part = {name: tensor for name, tensor in host.models[1].items() if name != lacking}
        host.models[2] = part
        toolkit.publish_full(host.shared, 2, part, extra_files=tiny_files())
        daemon.until_status(
            lambda status: lacking in (status["engines"][0]["error"] or ""), "the missing tensor is not named"
        )
        assert not engine.is_paused()
        assert engine.weight_version() == "1"
        assert same(ask_all(engine), answers)  # it goes on with what it has
        assert daemon.get("/healthz")[0] == 503

        host.models[2] = host.models[1]
        host.publish_full()
        daemon.until_served(3)
        assert same(ask_all(engine), truth.of(host.models[3]))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TinyHost, Server]]:
    """A server without its development endpoints, started on version 2 as a whole checkpoint."""
    host = TinyHost.begin(tmp_path_factory.mktemp("bare"))
    host.publish()
    host.publish()
    toolkit.write_checkpoint(host.root / "whole", host.models[2], shards=1, index=False, extra_files=tiny_files())
    with Server(host.root / "whole", dev_mode=False) as server:
        yield host, server


def test_a_load_by_hand_is_as_good_as_a_fresh_start(bare: tuple[TinyHost, Server], truth: Truth) -> None:
    """What all stories take for the truth, held against a server that was started on those weights."""
    host, server = bare
    assert same(ask_all(server), truth.of(host.models[2]))


def test_e05_without_development_mode_the_error_says_so(
    bare: tuple[TinyHost, Server], engine: Server, truth: Truth
) -> None:
    host, server = bare
    with Daemon(host, engines=(engine, server)) as daemon:
        daemon.until_status(
            lambda status: status["engines"][0]["version"] == 2 and bool(status["engines"][1]["error"]),
            "the one is not served, or the other not told",
        )
        assert "VLLM_SERVER_DEV_MODE=1" in daemon.log_text()
        assert same(ask_all(engine), truth.of(host.models[2]))  # E8: one engine's trouble is none of the other's
        assert same(ask_all(server), truth.of(host.models[2]))
        assert daemon.get("/healthz")[0] == 503
