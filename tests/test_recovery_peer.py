"""FIELD_GUIDE H20: the peers' receiver ran on the directory; what it says and wrote counts."""

import json
import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, flip_byte
from tests.kill_jobs import HEADER_BYTES, expect_settled, models, stated_version
from tests.kill_peer import peer_directory, peer_lock, peer_takes_over, peer_writes, write_bare_state
from tests.kill_points import PULL_THREADS, count_operations, kill, kill_tearing, no_disk_waits, tracing


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Four versions published; LOCAL at the first."""
    host = Host.create(tmp_path, model=models(1536))
    for encoding in ("xor", "overwrite", "xor", "xor"):
        host.publish(encoding=encoding)
    host.pulled(version=1)
    return host


def _pull(host: Host, version: int | None = None) -> toolkit.Result:
    return host.pull(*PULL_THREADS, version=version)


def _model_bytes(host: Host) -> int:
    return sum(len(tensor.data) for tensor in host.models[0].values())


def test_h20_after_our_kill_the_peers_state_counts_and_our_intent_is_void(host: Host) -> None:
    total = count_operations(lambda: _pull(host, 2))
    for point in range(2, total, 4):
        shutil.rmtree(host.local)
        host.pulled(version=1)
        kill(lambda: _pull(host, 2), point)
        peer_takes_over(host.local, 3, host.models[3], host.root / "scratch")

        with tracing() as trace:
            document = host.pulled(*PULL_THREADS)

        where = f"killed before operation {point} of {total}"
        assert (document["version"], document["from_version"], document["new_stream"]) == (4, 3, False), where
        # Known by hashing: each byte once to know it, once to take it on. The base need not be read for that.
        assert trace.bytes_from(host.base) < HEADER_BYTES, where
        assert document["seeded_from"] is None, where
        assert trace.bytes_from(host.local, ".safetensors") < 2.5 * _model_bytes(host), where
        host.expect_local(4)
    expect_settled(host, 4)


@pytest.mark.parametrize("theirs", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("asked", [2, 3, None])
def test_h20_wherever_the_peer_ended_and_whatever_is_asked_for(theirs: int, asked: int | None, host: Host) -> None:
    assert kill_tearing(lambda: _pull(host, 2), host.local, 1, lambda size: size // 2)
    peer_takes_over(host.local, theirs, host.models[theirs], host.root / "scratch")

    document = host.pulled(*PULL_THREADS, version=asked)

    wanted = 4 if asked is None else asked
    assert (document["version"], document["from_version"]) == (wanted, theirs)
    expected = "rolled_back" if wanted < theirs else "already_current" if wanted == theirs else "updated"
    assert document["result"] == expected
    host.expect_local(wanted)
    expect_settled(host, wanted)


@pytest.mark.parametrize("only", [0, 1, 2])
def test_h20_the_peer_was_killed_too_before_it_could_say_anything(only: int, host: Host) -> None:
    """No state at all beside our intent, and shards that are not what the intent says they are."""
    for point in range(4):
        shutil.rmtree(host.local)
        host.pulled(version=1)
        assert kill_tearing(lambda: _pull(host, 2), host.local, point, lambda size: size // 3)
        with peer_lock(host.local):
            peer_writes(host.local, host.models[3], host.root / "scratch", only=only)
        assert stated_version(host.local) is None
        result = _pull(host)
        assert result.code == 0, result.stderr
        host.expect_local(4)
    expect_settled(host, 4)


def test_h20_the_peers_number_is_not_believed_for_bytes_that_are_not_so(host: Host) -> None:
    """Its old receiver leaves a number over bytes that it did not change: hashing says where they are."""
    write_bare_state(host.local, 3)
    document = host.pulled(*PULL_THREADS)
    assert document["version"] == 4
    expect_settled(host, 4)


@pytest.mark.parametrize("asked", [1, None])
def test_h20_the_peer_ran_between_two_of_our_pulls(asked: int | None, host: Host) -> None:
    peer_takes_over(host.local, 3, host.models[3], host.root / "scratch")
    document = host.pulled(*PULL_THREADS, version=asked)
    assert document["from_version"] == 3
    host.expect_local(4 if asked is None else asked)


def test_h20_a_directory_that_only_the_peer_knew_is_taken_on_without_a_seed(host: Host) -> None:
    """Never ours before: known by hashing against base and published digests, and patched in place."""
    shutil.rmtree(host.local)
    peer_directory(host.local, 2, host.models[2])
    inodes = {path.name: path.stat().st_ino for path in host.local.glob("*.safetensors")}
    with tracing() as trace:
        document = host.pulled(*PULL_THREADS)
    assert (document["result"], document["version"], document["from_version"]) == ("updated", 4, 2)
    assert document["seeded_from"] is None
    assert {path.name: path.stat().st_ino for path in host.local.glob("*.safetensors")} == inodes
    assert trace.bytes_from(host.local, ".safetensors") < 2.5 * _model_bytes(host)
    host.expect_local(4)
    expect_settled(host, 4)


def test_h20_a_tensor_that_the_peer_left_wrong_is_rebuilt_alone(host: Host) -> None:
    peer_takes_over(host.local, 3, host.models[3], host.root / "scratch")
    flip_byte(host.local, "model.norm.weight")
    document = host.pulled(*PULL_THREADS)
    assert document["version"] == 4
    assert document["seeded_from"] is None
    expect_settled(host, 4)


def test_h20_the_peer_can_go_on_after_us(host: Host) -> None:
    """`version` stays where the peers look for it, whatever else we put there."""
    peer_takes_over(host.local, 2, host.models[2], host.root / "scratch")
    host.pulled()
    assert stated_version(host.local) == 4
    peer_takes_over(host.local, 3, host.models[3], host.root / "scratch")
    assert host.pulled()["from_version"] == 3
    host.expect_local(4)


@pytest.mark.parametrize("shards", [1, 3])
def test_h20_shards_of_the_peer_under_other_names_are_not_left_beside_ours(shards: int, host: Host) -> None:
    """An engine without an index loads every `*.safetensors` it sees; and a later version may bring these names."""
    for path in host.local.glob("*.safetensors*"):
        path.unlink()
    peer_takes_over(host.local, 3, host.models[3], host.root / "scratch", shards=shards)
    shutil.copy(host.root / "scratch" / toolkit.INDEX_NAME, host.local)
    host.pulled(*PULL_THREADS)
    named = json.loads((host.local / toolkit.INDEX_NAME).read_bytes())["weight_map"].values()
    assert {path.name for path in host.local.glob("*.safetensors")} == set(named)
    expect_settled(host, 4)
    host.publish_full(shards=shards)
    assert host.pulled()["version"] == 5
    expect_settled(host, 5)


@pytest.mark.parametrize(
    "rotten", ["scalar", "one", "lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"]
)
def test_h20_bytes_once_found_here_are_no_proof_of_themselves(rotten: str, tmp_path: Path) -> None:
    """A rotten tensor of a full version, no tables; killed while it is rebuilt; then the peers' number again.

    What the killed run wrote down of the rotten bytes must not be taken for the full version's digest.
    """
    host = Host.create(tmp_path, model=models(1536))
    host.publish_full()

    def bring() -> None:
        shutil.rmtree(host.local, ignore_errors=True)
        peer_directory(host.local, 1, host.models[1])
        flip_byte(host.local, rotten)

    bring()
    for point in range(count_operations(lambda: _pull(host))):
        bring()
        kill(lambda: _pull(host), point)
        if stated_version(host.local) is not None:
            continue  # not begun, or over
        if toolkit.read_checkpoint(host.local) == host.models[1]:
            flip_byte(host.local, rotten)  # rebuilt already: rotten again, as when it was found
        write_bare_state(host.local, 1)
        result = _pull(host)
        assert result.code == 0, result.stderr
        host.expect_local(1)


@pytest.mark.parametrize("target", [0, 1, 2, 3, None])
def test_h20_what_was_noted_of_rotten_bytes_does_not_outlive_the_peers_next_pass(
    target: int | None, host: Host
) -> None:
    """As above, but the peer puts the bytes right: they are known, whatever a killed run wrote down meanwhile."""
    host.publish_full()
    for point in range(6):
        shutil.rmtree(host.local)
        host.pulled(version=5)
        peer_takes_over(host.local, 5, host.models[5], host.root / "scratch")
        flip_byte(host.local, "lm_head.weight")
        kill_tearing(lambda: _pull(host), host.local, point, lambda size: size // 2)
        peer_takes_over(host.local, 5, host.models[5], host.root / "scratch")
        result = _pull(host, target)
        assert result.code == 0, result.stderr
        host.expect_local(5 if target is None else target)
