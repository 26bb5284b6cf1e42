"""What `publish` refuses, so that no wrong delta ever spoils a stream: wrong old bytes, new bytes that move, rivals."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, expect_error, flip_byte
from tests.kill_points import observing, operations
from tests.publish_world import Trainer, index_of
from vime_sync import fsio
from vime_sync.publish import choice, compare


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


# ---- the old bytes


def test_a_rotten_cache_is_noticed_and_heals(trainer: Trainer) -> None:
    trainer.published()
    state = trainer.cache / toolkit.STATE_DIRECTORY / "state.json"
    stats = {path: path.stat() for path in trainer.cache.glob("*.safetensors")}
    flip_byte(trainer.cache, "lm_head.weight")  # the cache is at 2: the next publication brings it to 3 first
    for path, stat in stats.items():
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert state.exists()
    trainer.published()
    trainer.expect_decoded(4)
    trainer.expect_pulled(4)


def test_rot_that_no_stat_shows_is_found_by_the_digest(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor is wrong when it is compared: refused, marked, and healed by the next run."""
    trainer.published(toolkit.step(trainer.models[2], 2, only=["one"]))
    checkpoint = trainer.save(toolkit.step(trainer.models[3], 3))
    read_into = fsio.File.read_into

    def rotten(file: fsio.File, view: memoryview, offset: int) -> None:
        read_into(file, view, offset)
        if file.path.is_relative_to(trainer.cache) and file.path.suffix == ".safetensors" and len(view) > 1000:
            view[-1] ^= 0x01

    toolkit.pull(trainer.shared, trainer.cache, base=trainer.base)  # nothing is left to do for the cache
    with monkeypatch.context() as patch:
        patch.setattr(fsio.File, "read_into", rotten)
        message = refused(trainer, 22, "damaged", checkpoint=checkpoint)
    assert "--cache" in message and "nothing was published" in message
    assert toolkit.vime("status", "--local", trainer.cache).document["state"] == "damaged"
    trainer.published()
    trainer.expect_pulled(4)


def test_a_lost_cache_is_made_anew(trainer: Trainer) -> None:
    shutil.rmtree(trainer.cache)
    trainer.published()
    trainer.expect_pulled(3)


def test_a_base_that_changed_since_version_1_is_noticed(tmp_path: Path) -> None:
    """A tensor that no delta touched: nothing on the share proves it, the publisher's own record does."""
    trainer = Trainer.create(tmp_path)
    trainer.published(toolkit.step(trainer.models[0], 1, only=["one"]))
    flip_byte(trainer.base, "lm_head.weight")
    message = refused(trainer, 13, "wrong_base")
    assert "version 1" in message


def test_a_base_that_changed_is_no_matter_while_the_cache_holds_the_true_one(trainer: Trainer) -> None:
    flip_byte(trainer.base, "lm_head.weight")
    checkpoint = trainer.save(toolkit.step(trainer.models[2], 2))
    result = trainer.publish(checkpoint)
    assert result.code == 0, result.stderr
    trainer.models[3] = toolkit.read_checkpoint(checkpoint)
    trainer.expect_decoded(3)


def test_another_publishers_stream_has_no_record_and_is_gone_on_with(tmp_path: Path) -> None:
    """Version 1 is the trainer's own; `publish` goes on from there."""
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8))
    host.publish()
    host.publish(encoding="overwrite")
    trainer = Trainer(tmp_path, host.models)
    assert trainer.published()["version"] == 3
    trainer.expect_pulled(3)


def test_a_restarted_trainers_stream_is_another_one(trainer: Trainer) -> None:
    """The share was emptied and begun again by the trainer itself: the cache is seeded anew, and that is told."""
    shutil.rmtree(trainer.path(1))
    shutil.rmtree(trainer.path(2))
    first = toolkit.step(trainer.models[0], 77)
    second = toolkit.step(first, 78)
    toolkit.publish_delta(trainer.shared, 1, trainer.models[0], first)
    toolkit.publish_delta(trainer.shared, 2, first, second)
    trainer.models = {0: trainer.models[0], 1: first, 2: second}
    document = trainer.published()
    assert document["version"] == 3
    assert any("another stream" in warning for warning in document["warnings"])
    trainer.expect_pulled(3)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_s16_a_share_that_shows_less_than_the_cache_holds(trainer: Trainer, left: int) -> None:
    """Unmounted, or mounted with less: no second version 1 or 2 is ever published beside the hosts' backs."""
    trainer.published()
    for version in range(left + 1, 4):
        trainer.path(version).rename(trainer.root / f"away-{version}")
    assert "knows of version 3" in refused(trainer, 10, "share_unreachable")
    (trainer.root / "also").symlink_to(trainer.shared)
    assert "knows of version 3" in refused(trainer, 10, "share_unreachable", "--shared", trainer.root / "also")


def test_s16_a_share_that_is_empty_again_right_after_version_1(tmp_path: Path) -> None:
    """The cache still stands at 0, and no version is on the share: only the cache's own record tells."""
    trainer = Trainer.create(tmp_path)
    trainer.published()
    shutil.rmtree(trainer.shared)
    trainer.shared.mkdir()
    assert "shows nothing" in refused(trainer, 10, "share_unreachable")
    shutil.rmtree(trainer.cache)  # the way to a new stream that the hint names
    trainer.models.pop(1)
    assert trainer.published()["version"] == 1


def test_a_bad_newest_version_is_named(trainer: Trainer) -> None:
    toolkit.rewrite_index(trainer.path(2), lambda document: document["metadata"].update(delta_encoding="zip"))
    assert "version 2" in refused(trainer, 11, "malformed")
    (trainer.path(2) / toolkit.INDEX_NAME).unlink()
    assert "version 2" in refused(trainer, 10, "not_ready")
    result = trainer.publish(trainer.base, "--encoding", "full")  # the way out that the hint names
    assert (result.code, result.document["version"]) == (0, 3)
    assert "version 2" in result.document["warnings"][0]


def test_a_delta_that_proves_bad_stops_the_next_one(trainer: Trainer) -> None:
    old, wrong = toolkit.step(trainer.models[2], 50), toolkit.step(trainer.models[2], 51)
    toolkit.publish_delta(trainer.shared, 3, old, wrong)  # against bytes that nobody has
    before = trainer.versions()
    result = trainer.publish(trainer.save(wrong))
    assert result.code in (12, 13), result.stderr
    assert trainer.versions() == before


def test_a_cache_that_cannot_be_written_to_after_all_is_a_warning(trainer: Trainer) -> None:
    """The version is out: that is not taken back by a record."""

    def full(operation: str, path: Path) -> None:
        if path.name == "published.json.new":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with observing(full):
        document = trainer.published()
    assert "No space left" in document["warnings"][0]
    trainer.expect_pulled(3)


# ---- the new bytes


@pytest.mark.parametrize("encoding", ["xor", "overwrite", "full"])
def test_a_checkpoint_that_changes_while_it_is_read(trainer: Trainer, encoding: str) -> None:
    checkpoint = trainer.save(toolkit.step(trainer.models[2], 2))
    shard = sorted(checkpoint.glob("*.safetensors"))[0]

    def touch(operation: str, path: Path) -> None:
        if operations("write", "")(operation, path) and path.is_relative_to(trainer.shared) and "build" in str(path):
            stat = shard.stat()
            os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))

    with observing(touch):
        message = refused(trainer, 10, "source_not_ready", "--encoding", encoding, checkpoint=checkpoint)
    assert shard.name in message and "changed" in message


@pytest.mark.parametrize("where", ["--from", "--base"])
def test_bytes_that_differ_when_read_again(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stat shows it: a long overwrite is read three times, and its digests must agree."""
    trainer = Trainer.create(tmp_path)
    checkpoint = trainer.save(toolkit.step(trainer.models[0], 2))
    monkeypatch.setattr(compare, "_KEEP_BYTES", 0)
    read_into = fsio.File.read_into
    watched = checkpoint if where == "--from" else trainer.base
    seen: set[tuple[Path, int]] = set()

    def moving(file: fsio.File, view: memoryview, offset: int) -> None:
        read_into(file, view, offset)
        if file.path.parent == watched and file.path.suffix == ".safetensors":
            if (file.path, offset) in seen:
                view[0] ^= 0x01
            seen.add((file.path, offset))

    monkeypatch.setattr(fsio.File, "read_into", moving)
    result = trainer.publish(checkpoint, "--encoding", "overwrite", "--threads", "1", cache=False)
    assert "changed while it was read" in expect_error(result, 10, "source_not_ready")["message"]
    assert (trainer.versions(), trainer.leftovers()) == ([], [])


@pytest.mark.parametrize("fault", ["shard missing", "shard short", "no shard", "index short"])
def test_a_checkpoint_that_is_still_being_saved(trainer: Trainer, fault: str) -> None:
    checkpoint = trainer.save(trainer.models[0])
    shards = sorted(checkpoint.glob("*.safetensors"))
    if fault == "shard missing":
        shards[0].unlink()
    elif fault == "shard short":
        os.truncate(shards[1], shards[1].stat().st_size - 1)
    elif fault == "no shard":
        for path in (*shards, checkpoint / toolkit.INDEX_NAME):
            path.unlink()
    else:
        os.truncate(checkpoint / toolkit.INDEX_NAME, 20)
    assert "not a whole checkpoint" in refused(trainer, 10, "source_not_ready", checkpoint=checkpoint)


def test_what_is_no_checkpoint(trainer: Trainer) -> None:
    assert "not a directory" in refused(trainer, 2, "usage", checkpoint=trainer.root / "nowhere")
    assert "index of a delta" in refused(trainer, 2, "usage", checkpoint=trainer.path(1))


def test_h15_no_overwrite_of_a_tensor_that_reaches_4_gib(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(len(tensor.data) for tensor in trainer.models[0].values())
    monkeypatch.setattr(choice, "MAX_OVERWRITE_TENSOR_BYTES", longest)  # sparing the test a tensor of 4 GiB
    document = trainer.published(None, "--encoding", "overwrite")
    assert document["encoding"] == "xor"
    assert index_of(trainer.path(3))["metadata"]["delta_encoding"] == "xor"
    assert "4 GiB" in document["warnings"][0] and "model.embed_tokens.weight" in document["warnings"][0]
    trainer.expect_pulled(3)


# ---- places


def test_places_that_lie_in_one_another(trainer: Trainer) -> None:
    assert "--cache" in refused(trainer, 2, "usage", checkpoint=trainer.cache)
    assert "--shared" in refused(trainer, 2, "usage", checkpoint=trainer.root)
    options = ("--shared", trainer.shared, "--base", trainer.base, "--from", trainer.base)
    for cache in (trainer.shared / "cache", trainer.base):
        expect_error(toolkit.vime("publish", *options, "--cache", cache), 2, "usage")
    assert trainer.versions() == ["weight_v000001", "weight_v000002"]


def test_a_cache_that_holds_somebodys_files(trainer: Trainer) -> None:
    shutil.rmtree(trainer.cache)
    trainer.cache.mkdir()
    (trainer.cache / "thesis.txt").write_text("years of work")
    refused(trainer, 23, "not_ours")
    assert (trainer.cache / "thesis.txt").read_text() == "years of work"


def test_s16_a_share_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    trainer = Trainer.create(tmp_path)
    trainer.shared.rmdir()
    expect_error(trainer.publish(trainer.base), 10, "share_unreachable")
    assert not trainer.shared.exists()
