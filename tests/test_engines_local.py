"""Promise 1 by attack: no engine is told to load bytes of this host that are not proven, and none serves such bytes.

Whatever happens to LOCAL between the commit and the end of a load, it is either loaded as it was proven, or the
command says that it was not.
"""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.engine_story import (
    SAFETY_S,
    VLLM_LOAD,
    Story,
    is_paused,
    meanwhile,
    outcome,
    posts,
    reached,
    small_host,
    spec_of,
)
from tests.fake_engine import Fault
from tests.fake_sglang import FakeSglang
from tests.fake_stories import LONG, SHORT
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.fake_weights import fresh_answer
from tests.host import Host, expect_error, flip_byte
from tests.kill_points import kill, observing, shard_writes
from tests.toolkit import vime
from vime_sync.vllm_extension import PullWeightsExtension

TENSOR = "lm_head.weight"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@pytest.fixture
def story(host: Host) -> Story:
    return Story(host)


def shard_of(host: Host) -> Path:
    return next(path for path in host.local.glob("*.safetensors") if TENSOR in toolkit.split_shard(path)[0])


def rot_without_a_trace(host: Host) -> None:
    """A byte of a shard changes, its size and its time of change do not."""
    path = shard_of(host)
    before = path.stat()
    flip_byte(host.local, TENSOR)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


# ---- before a load


@pytest.mark.parametrize("attack", [rot_without_a_trace, lambda host: flip_byte(host.local, TENSOR)])
def test_reload_of_changed_bytes_is_damage_and_no_engine_is_told(host: Host, attack: Callable[[Host], None]) -> None:
    attack(host)
    with FakeVllm(host.base) as fake, FakeWebhook() as hook:
        engines = ("--engine", str(spec_of(fake)), "--engine", str(spec_of(hook)))
        error = expect_error(vime("reload", "--local", host.local, *engines), 22, "damaged")
        assert error["tensors"] == [TENSOR]
        assert posts(fake) == [] and hook.documents == []
        healed = vime("pull", "--local", host.local, *engines)
        assert (healed.code, healed.document["tensors_repaired"]) == (0, 1), healed.stderr
        assert fake.holds(host.models[1]) and len(hook.documents) == 1


@pytest.mark.parametrize("attack", ["gone", "short", "other header", "config"])
def test_reload_of_broken_files_tells_no_engine(host: Host, attack: str) -> None:
    path = shard_of(host)
    if attack == "gone":
        path.unlink()
    elif attack == "short":
        path.write_bytes(path.read_bytes()[:-1])
    elif attack == "other header":
        toolkit.rewrite_shard(path, lambda header, data: header.update(__metadata__={"format": "np"}))
    else:
        (host.local / "config.json").write_text("{}")
    with FakeVllm(host.base) as fake:
        expect_error(vime("reload", "--local", host.local, "--engine", str(spec_of(fake))), 22, "damaged")
        assert posts(fake) == []


def test_a_file_that_was_touched_and_is_the_same_is_loaded(host: Host) -> None:
    path = shard_of(host)
    shutil.copy(path, host.local / "copy")
    (host.local / "copy").replace(path)
    with FakeVllm(host.base) as fake:
        assert vime("reload", "--local", host.local, "--engine", str(spec_of(fake))).code == 0
        assert fake.holds(host.models[1])


def test_bytes_between_two_versions_are_not_loaded(host: Host) -> None:
    host.publish()
    with FakeVllm(host.base) as fake:
        engine = ("--engine", str(spec_of(fake)))
        kill(lambda: host.pull("--threads", "1", *engine), 1, shard_writes(host.local))
        assert posts(fake) == []
        expect_error(vime("reload", "--local", host.local, *engine), 22, "damaged")
        assert posts(fake) == []
        assert host.pulled(*engine)["version"] == 2
        assert posts(fake) == VLLM_LOAD and fake.holds(host.models[2])


def test_what_was_found_damaged_is_not_loaded(host: Host, story: Story) -> None:
    flip_byte(host.local, TENSOR)
    expect_error(vime("verify", "--local", host.local), 22, "damaged")
    with FakeVllm(host.base) as fake:
        assert outcome(story.serve(fake)[0])[2] is not None
        expect_error(vime("reload", "--local", host.local, "--engine", str(spec_of(fake))), 22, "damaged")
        assert posts(fake) == []


def test_bytes_that_change_at_the_commit_are_no_success(host: Host) -> None:
    """The pull is done, the engine was asked for, and it was not loaded: that is not exit 0."""
    host.publish()

    commits: list[Path] = []

    def attack(operation: str, path: Path) -> None:
        if operation == "rename" and path.name == "state.json":
            commits.append(path)
            if len(commits) == 1:
                flip_byte(host.local, TENSOR)

    with FakeVllm(host.base) as fake:
        with observing(attack):
            result = host.pull("--engine", str(spec_of(fake)))
        assert posts(fake) == []
        assert result.code != 0 and result.error["message"]
        assert result.document.get("engines", [{}])[0].get("state") != "at_version"
        assert host.pulled("--engine", str(spec_of(fake)))["tensors_repaired"] == 1
        assert fake.holds(host.models[2])


@pytest.mark.parametrize("extension", [None, PullWeightsExtension])
def test_bytes_that_change_while_requests_end_are_not_loaded(
    host: Host, story: Story, extension: type[PullWeightsExtension] | None
) -> None:
    """A pause may take minutes."""
    with FakeVllm(host.base, extension_class=extension) as fake:
        fake.faults["/pause"] = fault = Fault(hang=threading.Event(), when="after")
        with meanwhile(story.serve, fake) as serving:
            reached(fault.reached)
            rot_without_a_trace(host)
            assert fault.hang is not None
            fault.hang.set()
        assert outcome(serving.result()[0])[2] in (31, 32)
        assert fake.holds(host.models[0]) and not is_paused(fake)  # it goes on with what it had
        assert fake.complete(SHORT) == fresh_answer(host.models[0], SHORT)
        fake.faults.clear()
        assert host.pulled("--engine", str(spec_of(fake)))["tensors_repaired"] == 1
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


@pytest.mark.parametrize("extension", [None, PullWeightsExtension])
def test_bytes_that_change_while_they_are_loaded_are_never_served(
    host: Host, extension: type[PullWeightsExtension] | None
) -> None:
    """The lock is held by who loads: nobody else can heal LOCAL meanwhile, and nobody is to wait for that."""
    with FakeVllm(host.base, extension_class=extension) as fake:
        engine = ("--engine", str(spec_of(fake)))
        with fake.stopped_load(after_tensors=0) as gate, meanwhile(host.pull, *engine) as pulling:
            gate.wait()
            rot_without_a_trace(host)
            gate.go_on.set()
            try:
                assert pulling.result(SAFETY_S / 2).code in (31, 32)
            finally:
                told, held, paused = list(fake.calls), fake.holds(host.models[1]), fake.generation.pause_mode
                if not pulling.done():
                    fake.stop()
        assert not held and paused is not None
        assert [call for call in told if call.path == "/resume"] == []
        assert host.pulled(*engine)["tensors_repaired"] == 1
        assert fake.complete(LONG) == fresh_answer(host.models[1], LONG)


def test_bytes_that_change_before_the_second_try_are_not_loaded(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        fake.faults["/collective_rpc"] = fault = Fault(status=500, hang=threading.Event(), times=1)
        with meanwhile(story.serve, fake) as serving:
            reached(fault.reached)
            rot_without_a_trace(host)
            assert fault.hang is not None
            fault.hang.set()
        assert outcome(serving.result()[0])[2] in (31, 32)
        assert len(fake.told("/collective_rpc")) == 1 and is_paused(fake)


def test_sglang_does_not_serve_bytes_that_changed_either(host: Host, story: Story) -> None:
    with FakeSglang(host.base) as fake:
        with fake.stopped_load(after_tensors=0) as gate, meanwhile(story.serve, fake) as serving:
            gate.wait()
            rot_without_a_trace(host)
            gate.go_on.set()
        assert outcome(serving.result()[0])[2] in (31, 32)
        assert fake.told("/continue_generation") == [] and fake.generation.paused()


def test_a_webhook_that_was_told_of_bytes_that_changed_is_told_again(host: Host, story: Story) -> None:
    with FakeWebhook() as hook:
        hook.faults["/"] = fault = Fault(hang=threading.Event())
        with meanwhile(story.serve, hook) as serving:
            reached(fault.reached)
            rot_without_a_trace(host)
            assert fault.hang is not None
            fault.hang.set()
        assert outcome(serving.result()[0])[2] in (31, 32)
        hook.faults.clear()
        told = len(hook.documents)
        assert host.pulled("--engine", str(spec_of(hook)))["engines"][0]["state"] == "at_version"
        assert len(hook.documents) == told + 1
