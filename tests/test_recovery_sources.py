"""FIELD_GUIDE S15, S18, S21: published files that vanish, go bad or become others while we need them."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from tests import toolkit
from tests.host import Host, expect_error, names_version
from tests.kill_jobs import spoil_digest, stated_version
from tests.kill_points import PULL_THREADS, count_operations, kill, no_disk_waits, tracing
from tests.toolkit import Model
from vime_sync import fsio


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path)


# ---- S15: the trainer removes versions while we read them


class _AtRead:
    """Does something before the n-th read below a directory; from then on open files there may be stale (NFS)."""

    def __init__(self, directory: Path, at: int | None, action: Callable[[], None], stale: bool) -> None:
        self.directory, self.at, self.action, self.stale = directory, at, action, stale
        self.seen = 0
        self.done = False
        self._before: set[int] = set()

    @contextmanager
    def active(self) -> Iterator[None]:
        read_into = fsio.File.read_into

        def hooked(file: fsio.File, view: memoryview, offset: int) -> None:
            if file.path.is_relative_to(self.directory):
                if not self.done:
                    self._before.add(id(file))
                    if self.seen == self.at:
                        self.done = True
                        self.action()
                    self.seen += 1
                if self.done and self.stale and id(file) in self._before:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(file.path))
            read_into(file, view, offset)

        with mock.patch.object(fsio.File, "read_into", hooked):
            yield


def _at_every_read(
    host: Host, restore: Callable[[], None], action: Callable[[], None], below: Path, stale: bool
) -> Iterator[toolkit.Result]:
    """The outcome of a pull for each read below a directory before which the action strikes."""
    at = 0
    while True:
        restore()
        hook = _AtRead(below, at, action, stale)
        with hook.active():
            result = host.pull(*PULL_THREADS)
        if not hook.done:
            assert at > 3
            return
        yield result
        at += 1


def _expect_taken_or_waiting(host: Host, result: toolkit.Result, before: int, read: int, newest: int) -> None:
    """What was read (then it was whole) or what replaced it; where it vanished in the first look, wait and see."""
    assert result.code in (0, 10), result.stderr
    version = stated_version(host.local)
    assert version in (before, read, newest)
    host.expect_local(version)
    assert host.pulled()["version"] == newest
    host.expect_local(newest)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_s15_the_newest_delta_vanishes_while_it_is_read(encoding: str, stale: bool, host: Host) -> None:
    host.publish()
    delta = host.publish(encoding=encoding)
    shutil.copytree(delta, host.root / "delta")

    def restore() -> None:
        shutil.rmtree(host.local, ignore_errors=True)
        shutil.rmtree(delta, ignore_errors=True)
        shutil.copytree(host.root / "delta", delta)
        host.pulled(version=1)

    for result in _at_every_read(host, restore, lambda: shutil.rmtree(delta), delta, stale):
        assert result.code in (0, 10), result.stderr
        version = stated_version(host.local)
        assert version in (1, 2)
        assert result.code == 10 or result.document["version"] == version
        host.expect_local(version)
        assert toolkit.vime("verify", "--local", host.local).code == 0


@pytest.mark.parametrize("stale", [False, True])
def test_s15_deltas_pruned_for_a_full_version_while_they_are_read(stale: bool, host: Host) -> None:
    host.publish()
    host.publish()
    host.publish()
    host.publish_full()
    shutil.copytree(host.shared, host.root / "all")

    def show(*versions: int) -> None:
        for number in range(1, 5):
            path = toolkit.version_path(host.shared, number)
            shutil.rmtree(path, ignore_errors=True)
            if number in versions:
                shutil.copytree(host.root / "all" / path.name, path)

    def restore() -> None:
        shutil.rmtree(host.local, ignore_errors=True)
        show(1, 2, 3)
        host.pulled(version=0)

    for result in _at_every_read(host, restore, lambda: show(4), host.shared, stale):
        _expect_taken_or_waiting(host, result, 0, 3, 4)


@pytest.mark.parametrize("stale", [False, True])
def test_s15_a_full_version_vanishes_for_the_next_while_it_is_copied(stale: bool, host: Host) -> None:
    host.publish()
    host.publish_full()
    host.publish_full()
    shutil.copytree(host.shared, host.root / "all")

    def show(version: int, without: int) -> None:
        path = toolkit.version_path(host.shared, version)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(host.root / "all" / path.name, path)
        shutil.rmtree(toolkit.version_path(host.shared, without), ignore_errors=True)

    def restore() -> None:
        shutil.rmtree(host.local, ignore_errors=True)
        show(2, without=3)
        host.pulled(version=1)

    for result in _at_every_read(host, restore, lambda: show(3, without=2), host.shared, stale):
        _expect_taken_or_waiting(host, result, 1, 2, 3)


@pytest.mark.parametrize("kind", ["xor", "full"])
def test_s15_s21_a_version_replaced_by_another_while_it_is_read(kind: str, host: Host) -> None:
    """Either the one or the other, never a mixture; and the next look sees that it is another now."""
    host.publish()
    first, other = toolkit.step(host.models[1], 2), toolkit.step(host.models[1], 3)

    def publish(model: Model) -> None:
        if kind == "full":
            toolkit.publish_full(host.shared, 2, model)
        else:
            shutil.rmtree(toolkit.version_path(host.shared, 2), ignore_errors=True)
            toolkit.publish_delta(host.shared, 2, host.models[1], model)

    def restore() -> None:
        shutil.rmtree(host.local, ignore_errors=True)
        publish(first)
        host.pulled(version=1)

    below = toolkit.version_path(host.shared, 2)
    for result in _at_every_read(host, restore, lambda: publish(other), below, stale=False):
        assert result.code in (0, 10), result.stderr
        taken = stated_version(host.local) == 2
        assert toolkit.read_checkpoint(host.local) in ([first, other] if taken else [host.models[1]])
        host.pulled()
        assert toolkit.read_checkpoint(host.local) == other


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
        assert trace.opens(host.base) == []
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
