"""FIELD_GUIDE S15: published files that vanish, or become others, while they are read."""

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import stated_version
from tests.kill_points import PULL_THREADS, no_disk_waits
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
    host: Host, restore: Callable[[], None], action: Callable[[], None], below: Path, stale: bool, stride: int = 1
) -> Iterator[toolkit.Result]:
    """The outcome of a pull for each (or each `stride`-th) read below a directory before which the action strikes."""
    for at in itertools.count(step=stride):
        restore()
        hook = _AtRead(below, at, action, stale)
        with hook.active():
            result = host.pull(*PULL_THREADS)
        if not hook.done:
            assert at > 3
            return
        yield result


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

    for result in _at_every_read(host, restore, lambda: show(4), host.shared, stale, 3):
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

    for result in _at_every_read(host, restore, lambda: show(3, without=2), host.shared, stale, 2):
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
