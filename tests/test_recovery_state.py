"""FIELD_GUIDE H4 and its neighbours: no state, garbage, a copy of LOCAL; one hash says where the bytes are."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, flip_byte, names_version
from tests.kill_jobs import HEADER_BYTES, expect_settled, models, state_path, stated_version
from tests.kill_peer import write_bare_state
from tests.kill_points import PULL_THREADS, Trace, kill_tearing, no_disk_waits, tracing


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two versions published, and LOCAL at the second; one tensor is as in the base all along."""
    host = Host.create(tmp_path, model=models(1536))
    names = list(host.models[0])
    host.publish(only=names[1:])
    host.publish(encoding="overwrite", only=names[1:])
    host.pulled(version=1)
    host.pulled(version=2)
    return host


def _inodes(local: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in local.glob("*.safetensors")}


def _model_bytes(host: Host) -> int:
    return sum(len(tensor.data) for tensor in host.models[0].values())


def _expect_identified(host: Host, document: dict[str, object], trace: Trace, before: dict[str, int]) -> None:
    """Known again by one hash of what is here: nothing was written anew, no checkpoint was copied."""
    assert (document["version"], document["seeded_from"], document["new_stream"]) == (2, None, False)
    assert document["tensors_repaired"] == document["bytes_written"] == 0
    assert _inodes(host.local) == before
    assert _model_bytes(host) <= trace.bytes_from(host.local, ".safetensors") < 1.5 * _model_bytes(host)
    expect_settled(host, 2)


_SPOILT = {
    "absent": None,
    "empty": b"",
    "garbage": b"\x93\x00\xff garbage",
    "zeros": bytes(400),
    "not an object": b'["000002"]',
    "no version": b"{}",
    "version is a word": b'{"version": "newest"}',
    "version is null": b'{"version": null}',
    "negative": b'{"version": "-00001"}',
    "half": b'{"version": "000002", "vime_sync": {"schema"',
    "deep": b"[" * 100_000,
    "bare": b'{"version": "000002"}',
    "ours is garbage": b'{"version": "000002", "vime_sync": {"schema": 1, "version": 2}}',
    "of a later schema": b'{"version": "000002", "vime_sync": {"schema": 99}}',
}


@pytest.mark.parametrize("content", _SPOILT)
def test_h04_a_spoilt_state_is_recovered_by_hashing(content: str, host: Host) -> None:
    raw = _SPOILT[content]
    if raw is None:
        state_path(host.local).unlink()
    else:
        state_path(host.local).write_bytes(raw)
    before = _inodes(host.local)
    status = toolkit.vime("status", "--local", host.local)
    assert (status.code, status.document["state"] == "ready") == (0, False)

    with tracing() as trace:
        document = host.pulled(*PULL_THREADS)

    _expect_identified(host, document, trace, before)
    assert trace.bytes_from(host.base) < HEADER_BYTES, "the digest table of the base is here"


@pytest.mark.parametrize("content", ["absent", "garbage", "bare"])
def test_h04_the_target_may_be_another_version(content: str, host: Host) -> None:
    host.publish()
    for version in (3, 1):
        raw = _SPOILT[content]
        if raw is None:
            state_path(host.local).unlink()
        else:
            state_path(host.local).write_bytes(raw)
        document = host.pulled(version=version)
        assert document["version"] == version
        assert document["seeded_from"] in (None, 0) if version == 1 else document["seeded_from"] is None
        expect_settled(host, version)


def _tables_gone(local: Path) -> None:
    shutil.rmtree(local / toolkit.STATE_DIRECTORY / "digests")


def _tables_garbage(local: Path) -> None:
    for path in (local / toolkit.STATE_DIRECTORY / "digests").iterdir():
        path.write_bytes(b"\x00" * 100)


@pytest.mark.parametrize("with_state", [True, False])
@pytest.mark.parametrize("spoil", [_tables_gone, _tables_garbage])
def test_h04_digest_tables_gone_or_spoilt(spoil: Callable[[Path], None], with_state: bool, host: Host) -> None:
    """The base and the published digests know every tensor all the same."""
    spoil(host.local)
    if not with_state:
        state_path(host.local).unlink()
    before = _inodes(host.local)
    document = host.pulled(*PULL_THREADS)
    assert (document["version"], document["new_stream"]) == (2, False)
    assert _inodes(host.local) == before, "the checkpoint was built anew"
    expect_settled(host, 2)


def test_h04_an_identified_host_can_go_anywhere_afterwards(host: Host) -> None:
    """The tensor that never changed is proven by the base alone."""
    _tables_gone(host.local)
    state_path(host.local).unlink()
    host.pulled()
    host.publish(encoding="overwrite")
    for version in (0, 3, 1, 2, 0):
        assert host.pulled(version=version)["version"] == version
        expect_settled(host, version)


def test_h04_only_what_is_wrong_is_rebuilt(host: Host) -> None:
    """No state, and one tensor rotted since: the others are known again."""
    state_path(host.local).unlink()
    flip_byte(host.local, "scalar")
    document = host.pulled()
    assert (document["version"], document["seeded_from"]) == (2, None)
    assert document["tensors_repaired"] == 1
    assert document["bytes_written"] < _model_bytes(host) / 4
    expect_settled(host, 2)


def test_h04_each_tensor_is_taken_from_where_it_is(host: Host) -> None:
    """A receiver of others died half way and left tensors at versions 0, 1 and 2 under no number."""
    state_path(host.local).unlink()
    mixed = {name: host.models[number % 3][name] for number, name in enumerate(host.models[0])}
    toolkit.write_checkpoint(host.local, mixed)
    document = host.pulled()
    assert document["version"] == 2
    assert document["seeded_from"] is None
    not_there = sum(len(tensor.data) for name, tensor in mixed.items() if tensor != host.models[2][name])
    assert document["bytes_written"] <= not_there + 64 * 1024
    expect_settled(host, 2)


def test_h04_without_base_and_tables_what_cannot_be_known_is_22_and_left_alone(host: Host) -> None:
    """One tensor never changed: no published digest knows it, and nothing else is here to know it by."""
    _tables_gone(host.local)
    state_path(host.local).unlink()
    host.base.rename(host.root / "away")
    before = toolkit.snapshot(host.local)

    result = toolkit.pull(host.shared, host.local)

    assert result.code == 22, result.stderr
    assert result.error["version"] == 0
    assert names_version(result.error["message"] + result.error["hint"], 0)
    assert toolkit.snapshot(host.local) == before
    (host.root / "away").rename(host.base)
    assert host.pulled()["version"] == 2
    expect_settled(host, 2)


@pytest.mark.parametrize("claimed", [0, 1, 7])
def test_h04_a_bare_number_is_only_a_hint(claimed: int, host: Host) -> None:
    write_bare_state(host.local, claimed)
    assert host.pulled()["version"] == 2
    expect_settled(host, 2)


@pytest.mark.parametrize("seen", ["gone", "empty"])
@pytest.mark.parametrize("content", ["absent", "garbage", "bare"])
def test_h04_s16_with_the_share_away_an_unknown_state_resets_nothing(content: str, seen: str, host: Host) -> None:
    """The digest tables know the bytes: this host is no fresh one, and version 0 is no answer."""
    raw = _SPOILT[content]
    if raw is None:
        state_path(host.local).unlink()
    else:
        state_path(host.local).write_bytes(raw)
    before = toolkit.snapshot(host.local)
    away = host.root / "away"
    host.shared.rename(away)
    if seen == "empty":
        host.shared.mkdir()

    result = host.pull()

    assert (result.code, result.error.get("id")) == (10, "share_unreachable"), result.stderr or result.stdout
    assert toolkit.snapshot(host.local) == before
    shutil.rmtree(host.shared, ignore_errors=True)
    away.rename(host.shared)
    assert host.pulled()["version"] == 2
    expect_settled(host, 2)


# ---- LOCAL copied or moved elsewhere (FIELD_GUIDE H19)


@pytest.mark.parametrize("times", ["kept", "new"])
def test_h19_a_copy_of_local_is_hashed_and_believed(times: str, host: Host) -> None:
    elsewhere = Host(host.root, host.models)
    copy = host.root / "copy"
    shutil.copytree(host.local, copy, copy_function=shutil.copy2 if times == "kept" else shutil.copyfile)
    before = _inodes(copy)
    with tracing() as trace:
        result = toolkit.pull(host.shared, copy, *PULL_THREADS, base=host.base)
    assert (result.code, result.document["version"], result.document["bytes_written"]) == (0, 2, 0)
    assert _inodes(copy) == before
    assert trace.bytes_from(copy, ".safetensors") >= _model_bytes(host)
    assert trace.bytes_from(host.base) < HEADER_BYTES
    elsewhere.expect_local(2, copy)
    host.publish()
    assert toolkit.pull(host.shared, copy, base=host.base).document["version"] == 3
    elsewhere.expect_local(3, copy)
    host.expect_local(2)


def test_h19_a_copy_with_a_wrong_byte_is_mended(host: Host) -> None:
    copy = host.root / "copy"
    shutil.copytree(host.local, copy)
    flip_byte(copy, "model.norm.weight")
    result = toolkit.pull(host.shared, copy, base=host.base)
    assert (result.code, result.document["version"], result.document["tensors_repaired"]) == (0, 2, 1)
    host.expect_local(2, copy)


def test_h19_local_moved_is_local(host: Host) -> None:
    moved = host.root / "moved"
    host.local.rename(moved)
    result = toolkit.pull(host.shared, moved, base=host.base)
    assert (result.code, result.document["result"]) == (0, "already_current")
    host.expect_local(2, moved)


def test_h19_a_copy_taken_between_two_versions_heals(host: Host) -> None:
    host.publish()
    for point in range(3):
        shutil.rmtree(host.local)
        host.pulled(version=2)
        assert kill_tearing(lambda: host.pull(*PULL_THREADS), host.local, point, lambda size: size // 2)
        copy = host.root / f"copy {point}"
        shutil.copytree(host.local, copy)
        result = toolkit.pull(host.shared, copy, base=host.base)
        assert (result.code, result.document.get("version")) == (0, 3), result.stderr
        host.expect_local(3, copy)
        assert stated_version(host.local) is None  # the original was not touched
    host.pulled()
    host.expect_local(3)


# ---- another base with the same content


@pytest.mark.parametrize("state", ["kept", "gone"])
def test_h19_another_path_of_the_same_base_is_the_same_base(state: str, host: Host) -> None:
    other = host.root / "other base"
    shutil.copytree(host.base, other, copy_function=shutil.copyfile)  # other times, too
    shutil.rmtree(host.base)
    if state == "gone":
        state_path(host.local).unlink()
        _tables_gone(host.local)
    before = _inodes(host.local)
    result = toolkit.pull(host.shared, host.local, base=other)
    assert (result.code, result.document.get("version"), result.document.get("new_stream")) == (0, 2, False)
    assert _inodes(host.local) == before
    flip_byte(host.local, next(iter(host.models[0])))
    result = toolkit.pull(host.shared, host.local, base=other)
    assert (result.code, result.document.get("tensors_repaired")) == (0, 1), result.stderr
    host.expect_local(2)
    assert json.loads(state_path(host.local).read_text(encoding="utf-8"))["version"] == "000002"
