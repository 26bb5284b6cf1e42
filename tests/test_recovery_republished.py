"""FIELD_GUIDE S18, S21: published files that go bad, are put right, or become others under the same name."""

import os
import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, expect_error, names_version
from tests.kill_jobs import HEADER_BYTES, spoil_digest
from tests.kill_points import PULL_THREADS, count_operations, kill, no_disk_waits, tracing


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path)


# ---- S18: a flipped bit in a published delta, republished right later


def _flip(shard: Path, place: float) -> None:
    """One bit of the data section flips, `place` of the way through it; the file keeps its times."""
    figures = shard.stat()

    def change(header: dict[str, object], data: bytearray) -> None:
        data[int(len(data) * place)] ^= 0x10

    toolkit.rewrite_shard(shard, change)
    os.utime(shard, ns=(figures.st_atime_ns, figures.st_mtime_ns))


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("place", [0.05, 0.3, 0.6, 0.99])
def test_s18_a_flipped_bit_is_12_and_heals_when_republished(encoding: str, place: float, host: Host) -> None:
    host.publish()
    host.pulled()
    delta = host.publish(encoding=encoding)
    shard = next(delta.glob("*.safetensors"))
    right = shard.read_bytes()
    _flip(shard, place)
    before = toolkit.snapshot(host.local)

    for _ in range(2):  # `pull` always tries
        result = host.pull()
        assert result.code in (11, 12), result.stderr
        assert names_version(result.error["message"], 2)
        assert toolkit.snapshot(host.local) == before
        host.expect_local(1)

    shard.write_bytes(right)
    document = host.pulled()
    assert (document["result"], document["version"]) == ("updated", 2)
    host.expect_local(2)


def test_s18_a_wrong_digest_is_12_and_heals_when_republished(host: Host) -> None:
    host.publish()
    host.pulled()
    delta = host.publish()
    spoil_digest(delta, "one")
    error = expect_error(host.pull(), 12, "checksum_mismatch")
    assert error["tensors"] == ["one"]
    host.expect_local(1)
    toolkit.publish_delta(host.shared, 2, host.models[1], host.models[2])
    assert host.pulled()["version"] == 2
    host.expect_local(2)


@pytest.mark.parametrize("bad_first", [True, False])
def test_s18_republished_right_or_spoilt_between_the_kill_and_the_recovery(bad_first: bool, host: Host) -> None:
    """What was staged counts; what was not comes from the share as it is now."""
    host.publish()
    delta = host.publish()
    shard = next(delta.glob("*.safetensors"))
    right = shard.read_bytes()

    def publish(*, bad: bool) -> None:
        shard.write_bytes(right)
        if bad:
            _flip(shard, 0.6)

    def bring() -> None:
        shutil.rmtree(host.local, ignore_errors=True)
        publish(bad=bad_first)
        host.pulled(version=1)

    bring()
    for point in range(0, count_operations(lambda: host.pull(*PULL_THREADS)), 3):
        bring()
        kill(lambda: host.pull(*PULL_THREADS), point)
        publish(bad=not bad_first)
        with tracing() as trace:
            result = host.pull(*PULL_THREADS)
        assert trace.bytes_from(host.base) < HEADER_BYTES
        if bad_first:
            assert result.code == 0, result.stderr
        else:
            assert result.code in (0, 11, 12), result.stderr
            host.expect_local(2 if result.code == 0 else 1)
            publish(bad=False)
        assert host.pulled()["version"] == 2
        host.expect_local(2)


# ---- S21: other bytes, same size and mtime


def _publish_twin(host: Host, version: int, seed: int, times: dict[str, int] | None) -> dict[str, int]:
    """Dense steps: what zstd makes of them is as long as they are, so twins have equal sizes. Returns mtimes."""
    old = host.models[version - 1]
    host.models[version] = toolkit.step(old, seed, density=1.0)
    directory = toolkit.publish_delta(host.shared, version, old, host.models[version])
    for path in directory.iterdir():
        if times is not None:
            os.utime(path, ns=(times[path.name], times[path.name]))
    return {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}


def _sizes(directory: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.iterdir()}


def test_s21_other_bytes_under_the_same_size_and_mtime_between_two_looks(host: Host) -> None:
    host.publish()
    times = _publish_twin(host, 2, 21, None)
    host.pulled()
    directory = toolkit.version_path(host.shared, 2)
    before = _sizes(directory)
    _publish_twin(host, 2, 22, times)
    assert _sizes(directory) == before, "the twins differ in size or time"

    document = host.pulled()

    assert (document["result"], document["version"], document["new_stream"]) == ("updated", 2, True)
    host.expect_local(2)


def test_s21_other_bytes_under_the_same_size_and_mtime_between_kill_and_recovery(host: Host) -> None:
    host.publish()
    times = _publish_twin(host, 2, 21, None)
    host.pulled(version=1)
    for point in range(0, count_operations(lambda: host.pull(*PULL_THREADS)), 3):
        shutil.rmtree(host.local)
        _publish_twin(host, 2, 21, times)
        host.pulled(version=1)
        kill(lambda: host.pull(*PULL_THREADS), point)
        _publish_twin(host, 2, 22, times)

        document = host.pulled(*PULL_THREADS)

        assert document["version"] == 2
        host.expect_local(2)
        assert host.pulled()["result"] == "already_current"
