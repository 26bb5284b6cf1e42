"""Two that publish at once, and a share that is full: one fails clearly, and no version is ever mixed or half there."""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import IO

import pytest

from tests import toolkit
from tests.host import expect_error
from tests.kill_points import observing
from tests.publish_world import PUBLISHER_DIRECTORY, Trainer
from tests.toolkit import Result
from vime_sync import fsio


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    """Two versions are there, the cache holds the first."""
    trainer = Trainer.create(tmp_path)
    trainer.published()
    trainer.published()
    return trainer


def refused(trainer: Trainer, code: int, error_id: str, *options: str | Path, checkpoint: Path | None = None) -> str:
    """The next version is not published, and nothing is left of the try; returns the message."""
    before = trainer.versions()
    source = trainer.save(toolkit.step(trainer.models[0], 99)) if checkpoint is None else checkpoint
    error = expect_error(trainer.publish(source, *options), code, error_id)
    assert trainer.versions() == before
    assert trainer.leftovers() == []
    return str(error["message"])


# ---- rivals


def test_two_publishers_at_once(trainer: Trainer) -> None:
    """The second one says who is at it, and leaves no trace."""
    checkpoint = trainer.save(toolkit.step(trainer.models[2], 2))
    seen: list[Result] = []

    def second(operation: str, path: Path) -> None:
        if operation == "create" and path.name == "part-0" and not seen:
            seen.append(trainer.publish(checkpoint, "--encoding", "full", cache=False))

    with observing(second):
        assert trainer.publish(checkpoint).code == 0
    error = expect_error(seen[0], 20, "publisher_conflict")
    assert f"process {os.getpid()}" in error["message"]
    trainer.models[3] = toolkit.read_checkpoint(checkpoint)
    trainer.expect_pulled(3)


def _rival(trainer: Trainer, make_it: bool) -> None:
    directory = trainer.path(3)
    directory.mkdir()
    if make_it:
        shutil.copytree(trainer.path(2), directory, dirs_exist_ok=True)


@pytest.mark.parametrize("make_it", [False, True])
@pytest.mark.parametrize("encoding", ["xor", "full"])
def test_a_version_that_appears_meanwhile_is_not_touched(trainer: Trainer, encoding: str, make_it: bool) -> None:
    """By somebody who knows nothing of our lock; also where he has only made the directory."""
    checkpoint = trainer.save(toolkit.step(trainer.models[2], 2))

    def rival(operation: str, path: Path) -> None:
        if operation == "write" and "build-" in str(path) and not trainer.path(3).exists():
            _rival(trainer, make_it)

    options = ("--encoding", encoding, "--threads", "1")
    with observing(rival):
        error = expect_error(trainer.publish(checkpoint, *options), 20, "publisher_conflict")
    assert "weight_v000003" in error["message"]
    assert (list(trainer.path(3).iterdir()) != []) is make_it
    assert trainer.leftovers() == []


def test_the_rename_itself_never_replaces_a_version(trainer: Trainer) -> None:
    """It appears in the last moment, after everything was asked."""
    checkpoint = trainer.save(toolkit.step(trainer.models[2], 2))

    def rival(operation: str, path: Path) -> None:
        if operation == "rename" and path == trainer.path(3):
            _rival(trainer, make_it=True)

    with observing(rival):
        expect_error(trainer.publish(checkpoint), 20, "publisher_conflict")
    assert toolkit.snapshot(trainer.path(3)) == toolkit.snapshot(trainer.path(2))


def test_the_newest_version_replaced_meanwhile(trainer: Trainer) -> None:
    def rival(operation: str, path: Path) -> None:
        if operation == "create" and path.name == "part-0":
            toolkit.rewrite_index(trainer.path(2), lambda document: None)

    with observing(rival):
        message = refused(trainer, 20, "publisher_conflict")
    assert "version 2 was replaced" in message


def test_a_share_without_locks(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with a warning, and removes only what is surely dead: of this host, its process gone."""

    def no_locks(file: int | IO[bytes], operation: int) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        if str(trainer.shared) in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSYS, "Function not implemented")

    host = os.uname().nodename
    corner = trainer.shared / PUBLISHER_DIRECTORY
    alive, dead = corner / f"build-{host}-{os.getpid()}-{'0' * 32}", corner / f"build-{host}-4194305-{'1' * 32}"
    elsewhere = corner / f"build-otherhost-4194305-{'2' * 32}"
    for path in (alive, dead, elsewhere):
        path.mkdir()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    document = trainer.published()
    assert any("has no locks" in warning for warning in document["warnings"])
    assert trainer.leftovers() == sorted(path.name for path in (alive, elsewhere))


# ---- the disk


@pytest.mark.parametrize("encoding", ["xor", "full"])
def test_h6_a_full_share(trainer: Trainer, encoding: str) -> None:
    def full(operation: str, path: Path) -> None:
        if operation == "sync" and "build-" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with observing(full):
        message = refused(trainer, 21, "local_io", "--encoding", encoding)
    assert "No space left" in message
    trainer.published(None, "--encoding", encoding)
    trainer.expect_pulled(3)


def test_a_full_version_that_does_not_fit_is_not_begun(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsio, "free_bytes", lambda directory: 1000)
    assert "1000 bytes free" in refused(trainer, 21, "local_io", "--encoding", "full")
