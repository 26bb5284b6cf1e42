"""What a share or a cache should never hold, and at times does: `publish` refuses, and says so."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import toolkit
from tests.host import expect_error
from tests.publish_world import PUBLISHER_DIRECTORY, Trainer
from vime_sync.publish import publish_tensors, workshop

_BUILD = f"build-x-1-{'0' * 32}"
_DEEP = b'{"a":' + b"[" * 100_000


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer.create(tmp_path)


def refused(trainer: Trainer, code: int, error_id: str, *options: str | Path) -> dict[str, Any]:
    """The next version is refused, and not a name nor a byte of the share is another one than before."""
    before = toolkit.snapshot(trainer.shared)
    checkpoint = trainer.save(toolkit.step(trainer.models[0], 99))
    error = expect_error(trainer.publish(checkpoint, *options), code, error_id)
    after = toolkit.snapshot(trainer.shared)
    holder = f"{PUBLISHER_DIRECTORY}/holder.json"
    assert {name: data for name, data in after.items() if name != holder} == {
        name: data for name, data in before.items() if name != holder
    }
    return error


# ---- a share that shows less than it should


@pytest.mark.parametrize("before", ["xor", "full"])
@pytest.mark.parametrize("now", ["xor", "full", "every"])
def test_s16_an_empty_mount_point_gets_no_version(trainer: Trainer, before: str, now: str) -> None:
    """Whatever was published, and whatever comes next; nothing is even made there."""
    trainer.published(None, "--encoding", before)
    trainer.shared.rename(trainer.root / "away")
    trainer.shared.mkdir()
    options = ("--full-every", "1") if now == "every" else ("--encoding", now)
    error = refused(trainer, 10, "share_unreachable", *options)
    assert "knows of version 1" in error["message"] and "shows nothing" in error["message"]
    assert list(trainer.shared.iterdir()) == []
    trainer.shared.rmdir()
    (trainer.root / "away").rename(trainer.shared)
    trainer.published(None, *options)
    trainer.expect_pulled(2)


@pytest.mark.parametrize("now", ["xor", "full"])
def test_s16_a_full_version_that_is_lost_keeps_its_number(trainer: Trainer, now: str) -> None:
    trainer.published()
    trainer.published(None, "--encoding", "full")
    shutil.rmtree(trainer.path(2))
    assert "only up to 1" in refused(trainer, 10, "share_unreachable", "--encoding", now)["message"]


def test_a_cache_begun_by_a_full_version_is_filled_by_the_next_delta(trainer: Trainer) -> None:
    trainer.published(None, "--encoding", "full")
    assert trainer.published()["kind"] == "delta"
    trainer.expect_decoded(2)
    trainer.expect_pulled(2)


@pytest.mark.parametrize("encoding", ["xor", "full"])
def test_a_cache_of_somebody_elses_is_refused_by_full_versions_too(trainer: Trainer, encoding: str) -> None:
    trainer.cache.mkdir()
    (trainer.cache / "thesis.txt").write_text("mine")
    refused(trainer, 23, "not_ours", "--encoding", encoding)
    assert [path.name for path in trainer.cache.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("spoil", [b"", b"{}", b"null", _DEEP, b'{"version": 1e400}', "pipe", "edited"])
def test_a_spoilt_memory_of_the_cache_is_asked_about(trainer: Trainer, spoil: bytes | str) -> None:
    """It may be all that tells an unmounted share from a new one; a look at the share settles it."""
    trainer.published(None, "--encoding", "full")
    record = trainer.cache / toolkit.STATE_DIRECTORY / "published.json"
    if spoil == "edited":
        record.write_bytes(record.read_bytes().replace(b'"version": 1', b'"version": 0'))
    else:
        _put(record, spoil)
    error = refused(trainer, 22, "damaged")
    assert str(record) in error["message"] and "remove that file" in error["hint"]
    record.unlink()
    trainer.published()


def _put(path: Path, what: bytes | str) -> None:
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    else:
        assert isinstance(what, bytes)
        path.write_bytes(what)


# ---- the publisher's corner


def _corner(trainer: Trainer) -> Path:
    return trainer.shared / PUBLISHER_DIRECTORY


def _to_a_link_outside(trainer: Trainer, theirs: Path) -> None:
    _corner(trainer).symlink_to(theirs)


def _to_a_link_inside(trainer: Trainer, theirs: Path) -> None:
    shutil.copytree(theirs, trainer.shared / "theirs")
    _corner(trainer).symlink_to("theirs")


def _to_a_dangling_link(trainer: Trainer, theirs: Path) -> None:
    _corner(trainer).symlink_to("nowhere")


def _to_a_file(trainer: Trainer, theirs: Path) -> None:
    _corner(trainer).write_text("mine")


def _to_a_linked_lock(trainer: Trainer, theirs: Path) -> None:
    _corner(trainer).mkdir()
    (_corner(trainer) / "lock").symlink_to(theirs / "lock")


def _to_a_directory_for_a_lock(trainer: Trainer, theirs: Path) -> None:
    _corner(trainer).mkdir()
    (_corner(trainer) / "lock").mkdir()


@pytest.mark.parametrize(
    "change",
    [
        _to_a_link_outside,
        _to_a_link_inside,
        _to_a_dangling_link,
        _to_a_file,
        _to_a_linked_lock,
        _to_a_directory_for_a_lock,
    ],
)
def test_nothing_is_written_where_the_corner_is_not_ours(
    trainer: Trainer, change: Callable[[Trainer, Path], None]
) -> None:
    theirs = trainer.root / "theirs"
    (theirs / _BUILD).mkdir(parents=True)
    for name in ("lock", "holder.json", "base.json", f"{_BUILD}/work.txt"):
        (theirs / name).write_text("mine")
    change(trainer, theirs)
    before = toolkit.snapshot(theirs)
    error = refused(trainer, 23, "not_ours")
    assert PUBLISHER_DIRECTORY in error["message"] and "Remove or rename it" in error["hint"]
    assert toolkit.snapshot(theirs) == before


def test_a_lock_that_is_there_is_never_emptied(trainer: Trainer) -> None:
    _corner(trainer).mkdir()
    (_corner(trainer) / "lock").write_text("mine")
    trainer.published()
    assert (_corner(trainer) / "lock").read_text() == "mine"


def test_records_that_are_links_are_replaced_and_not_written_through(trainer: Trainer) -> None:
    theirs = trainer.root / "theirs"
    theirs.write_text("mine")
    _corner(trainer).mkdir()
    for name in ("holder.json", "base.json"):
        (_corner(trainer) / name).symlink_to(theirs)
    trainer.published()
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize("spoil", [b"[" * 100_000, _DEEP, b'{"base_weights": 1}', b"\xff", "pipe", "edited"])
def test_a_spoilt_record_of_the_base_is_a_missing_one_and_said(trainer: Trainer, spoil: bytes | str) -> None:
    trainer.published()
    record = _corner(trainer) / "base.json"
    if spoil == "edited":
        record.write_bytes(record.read_bytes().replace(b'"base_weights": "', b'"base_weights": "0'))
    else:
        _put(record, spoil)
    document = trainer.published()
    assert any("base.json is spoilt" in warning for warning in document["warnings"])
    trainer.expect_pulled(2)


@pytest.mark.parametrize("spoil", [_DEEP, b'{"pid": [], "host": 1}', b"{}", "pipe"])
def test_a_spoilt_record_of_the_holder_names_nobody(trainer: Trainer, spoil: bytes | str) -> None:

    _put(trainer.root / "holder.json", spoil)
    assert "process" in workshop._describe(trainer.root / "holder.json")


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "pipe"])
@pytest.mark.parametrize("name", [_BUILD, f"{_BUILD}.parts", _BUILD.replace("build", "dead")])
def test_remains_that_are_no_directory_go_too(trainer: Trainer, name: str, kind: str) -> None:
    _corner(trainer).mkdir()
    theirs = trainer.root / "theirs"
    theirs.write_text("mine")
    path = _corner(trainer) / name
    if kind == "link":
        path.symlink_to(theirs)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    else:
        _put(path, b"x" if kind == "file" else "pipe")
    trainer.published()
    assert trainer.leftovers() == []
    assert theirs.read_text() == "mine"


# ---- numbers


@pytest.mark.parametrize("encoding", ["xor", "full"])
@pytest.mark.parametrize("kind", ["file", "dangling"])
def test_a_name_that_is_no_directory_takes_its_number(trainer: Trainer, encoding: str, kind: str) -> None:
    """Known before the work, and called what it is."""
    trainer.published()
    if kind == "file":
        trainer.path(2).write_text("mine")
    else:
        trainer.path(2).symlink_to("nowhere")
    error = refused(trainer, 2, "usage", "--encoding", encoding)
    assert "weight_v000002 is no directory" in error["message"]
    assert trainer.published(trainer.models[1], "--encoding", "full", "--version", "3")["version"] == 3


def test_no_number_uses_up_those_that_follow(trainer: Trainer) -> None:
    trainer.published()
    refused(trainer, 2, "usage", "--encoding", "full", "--version", str(10**15 + 1))
    refused(trainer, 2, "usage", "--encoding", "full", "--version", "9" * 18)
    trainer.published(trainer.models[0], "--encoding", "full", "--version", str(10**15))
    assert "at most" in refused(trainer, 2, "usage")["message"]


# ---- files of any name


_ODD_NAMES = ("config.json", "part-0", "joined-0", "model.safetensors.index.json.new", "part-1/inner", "lock")


def _files(root: Path, *, directory: bool) -> Path:
    files = root / "files"
    for name in _ODD_NAMES:
        path = files / (f"{name}/deep" if directory else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"mine: {name}")
    return files


@pytest.mark.parametrize("directory", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_full_version_carries_files_of_any_name(trainer: Trainer, threads: int, directory: bool) -> None:
    files = _files(trainer.root, directory=directory)
    tensors = [(f"t{number}", np.arange(9 + number, dtype=np.float32)) for number in range(5)]
    publish_tensors(tensors, shared=trainer.shared, files=files, encoding="full", threads=threads)
    published = toolkit.snapshot(trainer.path(1))
    assert published.items() >= toolkit.snapshot(files).items()
    assert set(toolkit.read_checkpoint(trainer.path(1))) == {name for name, _ in tensors}
    assert trainer.leftovers() == []


def test_a_checkpoint_without_an_index_carries_files_of_any_name(trainer: Trainer) -> None:
    extra = {name: f"mine: {name}".encode() for name in _ODD_NAMES}
    checkpoint = trainer.save(trainer.models[0], shards=1, index=False, extra_files=extra)
    assert trainer.publish(checkpoint, "--encoding", "full").code == 0
    assert toolkit.snapshot(trainer.path(1)).items() >= toolkit.snapshot(checkpoint).items()
