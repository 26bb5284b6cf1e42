"""LOCAL/.weight_sync/engines.json, what each engine loaded: garbage in it counts as nothing, and it keeps no secret."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine_story import QUICK, VLLM_LOAD, Story, is_paused, outcome, posts, small_host, spec_of
from tests.fake_engine import Fault
from tests.fake_vllm import FakeVllm
from tests.fake_webhook import FakeWebhook
from tests.host import Host
from tests.kill_points import observing
from tests.sealed import sealed
from tests.toolkit import vime, vime_plain

KEY = "sk-VERY-SECRET"
GOOD = {"weights": None, "told": None, "open": False, "leave_paused": False, "error": None, "error_id": None}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@pytest.fixture
def story(host: Host) -> Story:
    return Story(host)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0\0",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"schema": "vime-sync/engines/2", "engines": {}}',
        b'{"schema": "vime-sync/engines/1", "engines": []}',
        b'{"schema": "vime-sync/engines/1", "engines": {"a": 1, "b": [], "c": {}}}',
    ],
)
def test_a_record_that_is_none_means_that_nothing_is_known(host: Host, story: Story, content: bytes) -> None:
    with FakeVllm(host.base) as fake:
        story.serve(fake)
        story.record.write_bytes(content)
        fake.calls.clear()
        assert outcome(story.serve(fake)[0]) == ("at_version", 1, None)
        assert posts(fake) == VLLM_LOAD
        assert story.remembered(fake)["told"] == "1"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"weights": [1, "x"]},
        {"weights": "1x0"},
        {"weights": {"1": "x"}},
        {"weights": [float("inf"), "x", 0]},
        {"weights": [float("nan"), "x", 0]},
        {"weights": [10**400, "x", 0]},
        {"told": []},
        {"told": {"a": 1}},
        {"open": "no"},
        {"leave_paused": [1]},
        {"error": {"a": 1}},
        {"error": ["\x1b[2J"], "error_id": {}},
        {"error": 5, "error_id": 32},
        {"error": "was bad", "error_id": ["engine_refused"]},
    ],
)
def test_nonsense_about_one_engine_harms_nobody(host: Host, story: Story, fields: dict[str, Any]) -> None:
    record = {**GOOD, **fields} if fields else 1
    with FakeVllm(host.base) as fake, FakeVllm(host.base) as other, FakeWebhook() as hook:
        story.serve(other)
        told = len(posts(other))
        document = json.loads(story.record.read_text())
        document["engines"].update({spec_of(engine).key: record for engine in (fake, hook)})
        story.record.write_bytes(sealed(document))
        assert vime("status", "--local", host.local).code == 0
        assert vime_plain("status", "--local", host.local).code == 0
        engines = [str(spec_of(engine)) for engine in (fake, other, hook)]
        result = vime_plain("pull", "--local", host.local, env={"VIME_SYNC_ENGINE": " ".join(engines)})
        assert result.code == 0, result.stderr
        assert fake.holds(host.models[1]) and other.holds(host.models[1])
        assert len(posts(other)) == told  # what is known of it counts still


def test_a_record_of_other_weights_is_not_believed(host: Host, story: Story) -> None:
    with FakeVllm(host.base) as fake:
        story.serve(fake)
        document = json.loads(story.record.read_text())
        document["engines"][spec_of(fake).key]["weights"][1] = "0" * 32
        story.record.write_bytes(sealed(document))
        assert story.look(fake).lacking


def test_an_engine_is_not_touched_when_it_cannot_be_put_on_record(host: Host) -> None:
    """Who paused it would be forgotten."""

    def full(operation: str, path: Path) -> None:
        if path.name.startswith("engines.json"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with FakeVllm(host.base) as fake:
        with observing(full):
            result = host.pull("--engine", str(spec_of(fake)))
        assert result.code == 21 and "engines.json" in result.error["message"], result.stderr
        assert posts(fake) == []
        assert host.pulled("--engine", str(spec_of(fake)))["engines"][0]["state"] == "at_version"


def test_an_engine_whose_load_cannot_be_noted_is_loaded_again(host: Host) -> None:
    writes = 0

    def full(operation: str, path: Path) -> None:
        nonlocal writes
        if operation == "create" and path.name.startswith("engines.json"):
            writes += 1
            if writes > 1:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with FakeVllm(host.base) as fake, FakeVllm(host.base) as other:
        engines = ("--engine", str(spec_of(fake)), "--engine", str(spec_of(other)))
        with observing(full):
            assert host.pull(*engines).code == 21
        assert not is_paused(fake) and not is_paused(other)
        host.pulled(*engines)
        assert fake.holds(host.models[1]) and other.holds(host.models[1])


def test_no_secret_is_on_record(host: Host) -> None:
    story = Story(host, replace(QUICK, api_key=KEY))
    with FakeVllm(host.base, api_key=KEY) as fake, FakeWebhook() as hook:
        fake.faults["/collective_rpc"] = Fault(status=500, body={"error": f"wrong key {KEY}"})
        story.serve(fake)
        engine = f"webhook={hook.url}/?token={KEY}"
        result = vime("pull", "--local", host.local, "--engine", engine)
        assert (result.code, len(hook.documents)) == (0, 1)
        shown = vime("status", "--local", host.local)
        written = b"".join(path.read_bytes() for path in story.record.parent.rglob("*") if path.is_file())
        assert "wrong key" in story.record.read_text()
        assert KEY.encode() not in written
        assert KEY not in f"{shown.stdout} {shown.stderr} {result.stdout} {result.stderr}"
