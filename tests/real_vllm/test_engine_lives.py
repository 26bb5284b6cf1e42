"""Engines and daemons that come, go and die at the wrong moment; in the end every answer is right."""

import shutil
from pathlib import Path

from tests import toolkit
from tests.host import flip_byte
from tests.real_vllm.daemon import Daemon
from tests.real_vllm.process_group import until
from tests.real_vllm.server import Server, free_port
from tests.real_vllm.stream import TinyHost
from tests.real_vllm.tiny_model import tiny_qwen3, train
from tests.real_vllm.truth import Truth, ask_all, different, same

LOADED = '"POST /collective_rpc'


class HeldLoad:
    """The engine's next load, stopped in the middle until the end of the `with` block."""

    def __init__(self, engine: Server, gate: Path) -> None:
        self._gate = gate
        engine.call("story_hold_next_load", gate=str(gate))

    def __enter__(self) -> "HeldLoad":
        return self

    def __exit__(self, *_: object) -> None:
        self._gate.touch()

    def wait(self) -> None:
        until(Path(f"{self._gate}.reached").exists, "no load is begun")


def test_e01_an_engine_that_comes_up_after_the_version_is_loaded(
    host: TinyHost, engine_process: Server, truth: Truth
) -> None:
    engine_process.kill()
    host.publish()
    with Daemon(host, engines=(engine_process,)) as daemon:
        daemon.until_status(lambda status: status["local_version"] == 1, "version 1 is not pulled")
        daemon.until_status(lambda status: status["engines"][0]["state"] == "unreachable", "it is not unreachable")
        assert daemon.get("/healthz")[0] == 503
        engine_process.launch()
        daemon.until_served(1)
        assert engine_process.weight_version() == "1"
        assert not engine_process.is_paused()
        assert same(ask_all(engine_process), truth.of(host.models[1]))
    assert daemon.ack()["version"] == 1


def test_e02_an_engine_that_restarts_on_its_own_is_loaded_again(host: TinyHost, engine: Server, truth: Truth) -> None:
    host.publish(encoding="overwrite")
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        engine.kill()
        daemon.until_status(lambda status: status["engines"][0]["state"] == "unreachable", "its end is not noticed")
        assert daemon.get("/healthz")[0] == 503
        engine.launch()
        daemon.until_served(1)
        assert same(ask_all(engine), truth.of(host.models[1]))


def test_e07_a_daemon_killed_in_the_middle_of_a_load_finishes_it_at_its_next_start(
    host: TinyHost, engine: Server, truth: Truth, tmp_path: Path
) -> None:
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        with HeldLoad(engine, tmp_path / "gate") as load:
            host.publish()
            load.wait()
            daemon.kill()
        assert engine.is_paused()  # nobody else will resume it
        daemon.start()
        daemon.until_served(2)
        assert not engine.is_paused()
        assert same(ask_all(engine), truth.of(host.models[2]))


def test_a_daemon_told_to_end_in_the_middle_of_a_load_waits_for_it(
    host: TinyHost, engine: Server, truth: Truth, tmp_path: Path
) -> None:
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        with HeldLoad(engine, tmp_path / "gate") as load:
            host.publish()
            load.wait()
            daemon.terminate()
        assert daemon.wait() == 0
        assert not engine.is_paused()
        assert engine.weight_version() == "2"
        assert same(ask_all(engine), truth.of(host.models[2]))

        loads = engine.log_text().count(LOADED)
        daemon.start()
        daemon.until_served(2)
        assert engine.log_text().count(LOADED) == loads  # what it holds is remembered over the restart


def test_e08_one_engine_is_dead_and_the_other_one_is_served(host: TinyHost, engine: Server, truth: Truth) -> None:
    dead = f"127.0.0.1:{free_port()}"
    host.publish()
    with Daemon(host, engines=(engine, f"http://{dead}")) as daemon:
        daemon.until_status(
            lambda status: [found["state"] for found in status["engines"]] == ["at_version", "unreachable"],
            "the two are not told apart",
        )
        assert same(ask_all(engine), truth.of(host.models[1]))
        assert daemon.get(f"/healthz/127.0.0.1:{engine.port}")[0] == 200
        assert daemon.get(f"/healthz/{dead}")[0] == 503
        assert daemon.get("/healthz")[0] == 503


def test_e12_the_right_number_of_the_old_stream_is_not_the_right_weights(
    host: TinyHost, engine: Server, truth: Truth
) -> None:
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        old = ask_all(engine)
        assert same(old, truth.of(host.models[1]))

        # The trainer begins anew from the same base, and comes to version 1 once more.
        anew = TinyHost(host.root, {0: host.models[0], 1: train(tiny_qwen3(), seed=500)})
        shutil.rmtree(toolkit.version_path(host.shared, 1))
        toolkit.publish_delta(host.shared, 1, anew.models[0], anew.models[1])
        daemon.until_log("new stream")
        daemon.until_served(1)
        assert engine.weight_version() == "1"  # as before: the number tells nothing
        new = ask_all(engine)
        assert same(new, truth.of(anew.models[1]))
        assert different(new, old)


def test_e12_after_a_repair_the_engine_is_loaded_again(host: TinyHost, engine: Server, truth: Truth) -> None:
    """It may have loaded the rotten bytes: that they were noticed late is all that is known."""
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        loads = engine.log_text().count(LOADED)
        flip_byte(host.local, "model.norm.weight")
        found = toolkit.vime("verify", "--local", host.local)
        assert found.code == 22, found.stderr
        engine.until_log(LOADED, loads + 1)
        daemon.until_served(1)
        host.expect_local(1)
        assert same(ask_all(engine), truth.of(host.models[1]))


def test_an_engine_that_others_paused_is_loaded_and_stays_paused(host: TinyHost, engine: Server, truth: Truth) -> None:
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        engine.ask("/pause?mode=wait", {})
        host.publish()
        daemon.until_status(lambda status: status["engines"][0]["version"] == 2, "the paused engine is not loaded")
        assert engine.is_paused()  # whoever paused it resumes it
        engine.ask("/resume", {})
        daemon.until_served(2)
        assert same(ask_all(engine), truth.of(host.models[2]))


def test_an_engine_that_sleeps_is_left_alone_and_loaded_when_it_wakes(
    host: TinyHost, engine: Server, truth: Truth
) -> None:
    host.publish()
    with Daemon(host, engines=(engine,)) as daemon:
        daemon.until_served(1)
        engine.ask("/sleep?level=1", {})
        host.publish()
        daemon.until_status(lambda status: "sleeps" in (status["engines"][0]["error"] or ""), "its sleep is not told")
        assert engine.weight_version() == "1"
        assert daemon.get("/healthz")[0] == 503
        engine.ask("/wake_up", {})
        daemon.until_served(2)
        assert same(ask_all(engine), truth.of(host.models[2]))
