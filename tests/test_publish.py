"""`publish`: a trainer only saves checkpoints; what comes onto the share is what FORMAT describes, and pulls back."""

import re
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import expect_error
from tests.publish_world import Trainer, digests_of, expect_frame_as_readers_want_it, frames_of, index_of
from tests.toolkit import Model, Tensor


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer.create(tmp_path)


# ---- what a delta looks like


@pytest.mark.parametrize("checksum", ["xxh3-128", "blake3", "adler32"])
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_delta_is_laid_out_as_the_format_says(trainer: Trainer, encoding: str, checksum: str) -> None:
    document = trainer.published(None, "--encoding", encoding, "--checksum", checksum)
    directory, old, new = trainer.path(1), trainer.models[0], trainer.models[1]

    assert {path.name for path in directory.iterdir()} == {toolkit.INDEX_NAME, "model-00000-of-00001.safetensors"}
    changed = {name for name in new if new[name] != old[name]}
    assert index_of(directory) == {
        "metadata": {
            "version": "000001",
            "base_version": "000000",
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": checksum,
        },
        "weight_map": dict.fromkeys(changed, "model-00000-of-00001.safetensors"),
    }
    assert digests_of(directory) == {name: toolkit.digest(new[name].data, checksum) for name in changed}
    for name, frame in frames_of(directory).items():
        payload = toolkit.encode_delta(old[name].data, new[name].data, encoding)
        expect_frame_as_readers_want_it(frame, len(payload))
    trainer.expect_decoded(1)
    trainer.expect_pulled(1)
    differing = sum(
        sum(one != other for one, other in zip(old[name].data, new[name].data, strict=True)) for name in new
    )
    assert (document["tensors_changed"], document["changed_bytes"]) == (len(changed), differing)
    assert document["total_bytes"] == sum(len(tensor.data) for tensor in new.values())
    assert document["wire_bytes"] == sum(path.stat().st_size for path in directory.iterdir())


def test_headers_are_padded_to_a_multiple_of_eight(trainer: Trainer) -> None:
    trainer.published()
    for path in trainer.path(1).glob("*.safetensors"):
        assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_tensors_that_did_not_change_are_absent(trainer: Trainer) -> None:
    first = toolkit.step(trainer.models[0], 5, only=["one", "lm_head.weight"])
    trainer.published(first)
    assert set(index_of(trainer.path(1))["weight_map"]) == {"one", "lm_head.weight"}
    trainer.published(toolkit.step(first, 6, only=["scalar"]))  # now from the cache, whose digests are known
    assert set(index_of(trainer.path(2))["weight_map"]) == {"scalar"}
    trainer.expect_pulled(2)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_s10_nothing_changed_is_a_version_without_a_shard(trainer: Trainer, encoding: str) -> None:
    for cache in (False, True):
        document = trainer.published(trainer.models[0], "--encoding", encoding, cache=cache)
        assert [path.name for path in Path(document["path"]).iterdir()] == [toolkit.INDEX_NAME]
        assert index_of(Path(document["path"]))["weight_map"] == {}
        assert (document["tensors_changed"], document["changed_bytes"], document["density"]) == (0, 0, 0.0)
    trainer.expect_pulled(2)


def test_everything_changed_and_both_encodings_in_turn(trainer: Trainer) -> None:
    for version, encoding in enumerate(("overwrite", "xor", "overwrite"), start=1):
        model = toolkit.step(trainer.models[version - 1], version, density=1.0)
        assert trainer.published(model, "--encoding", encoding)["density"] == 1.0
        trainer.expect_decoded(version)
    trainer.expect_pulled(3)


def test_another_cut_into_shards_changes_nothing(trainer: Trainer) -> None:
    """Tensors are found by name, whichever file they lie in."""
    trainer.published(trainer.models[0], shards=3)
    assert index_of(trainer.path(1))["weight_map"] == {}


def test_many_threads_and_small_files(trainer: Trainer) -> None:
    """Several files, as several ranks would write; each tensor is in one of them."""
    document = trainer.published(None, "--threads", "5", "--shard-size", "1")
    names = sorted(path.name for path in trainer.path(1).glob("*.safetensors"))
    count = len(names)
    assert count > 1
    assert names == [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(count)]
    assert document["tensors_changed"] == len(index_of(trainer.path(1))["weight_map"])
    trainer.expect_decoded(1)
    trainer.expect_pulled(1)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_large_tensors_go_straight_into_their_files(tmp_path: Path, encoding: str) -> None:
    """Several blocks, the first and the last of them equal; frames larger than what is kept in memory."""
    old: Model = {name: Tensor("U8", (size,), bytes(size)) for name, size in (("a", 24 << 20), ("b", (3 << 20) + 5))}
    noise = toolkit.make_model(seed=4, tensors=1, kib=21 << 10)["model.embed_tokens.weight"].data
    new = {
        "a": Tensor("U8", (24 << 20,), (bytes(2 << 20) + noise).ljust(24 << 20, b"\0")[: 24 << 20]),
        "b": Tensor("U8", ((3 << 20) + 5,), bytes((3 << 20) + 4) + b"\x07"),
    }
    trainer = Trainer.create(tmp_path, old, shards=1)
    trainer.published(new, "--encoding", encoding, "--threads", "2")
    trainer.expect_decoded(1)
    trainer.expect_pulled(1)


# ---- full versions


def test_a_full_version_is_the_checkpoint_as_it_is(trainer: Trainer) -> None:
    model = toolkit.step(trainer.models[0], 1)
    checkpoint = trainer.save(model, extra_files={"config.json": b"{}", "extra/vocab.txt": b"a b c"})
    result = trainer.publish(checkpoint, "--encoding", "full")
    assert result.code == 0, result.stderr
    assert toolkit.snapshot(trainer.path(1)) == toolkit.snapshot(checkpoint)
    document = result.document
    assert (document["kind"], document["encoding"], document["checksum"]) == ("full", None, None)
    assert (document["tensors_changed"], document["changed_bytes"], document["density"]) == (None, None, None)
    assert [path.name for path in trainer.cache.iterdir()] == [toolkit.STATE_DIRECTORY]  # no weights: only its number
    trainer.models[1] = model
    trainer.expect_pulled(1)


def test_a_full_version_of_a_single_file_gets_an_index(trainer: Trainer) -> None:
    """Without one, receivers have to guess."""
    model = toolkit.step(trainer.models[0], 1)
    checkpoint = trainer.save(model, shards=1, index=False)
    assert trainer.publish(checkpoint, "--encoding", "full").code == 0
    assert index_of(trainer.path(1))["weight_map"] == dict.fromkeys(model, "model.safetensors")
    trainer.models[1] = model
    trainer.expect_pulled(1)


def test_what_trainers_keep_to_go_on_from_is_not_published(trainer: Trainer) -> None:
    extra = {"config.json": b"{}", "optimizer.pt": b"x" * 99, "global_step7/mp_rank_00.distcp": b"y"}
    checkpoint = trainer.save(trainer.models[0], extra_files=extra)
    (checkpoint / "consolidated.safetensors").write_bytes(b"z")
    result = trainer.publish(checkpoint, "--encoding", "full")
    assert result.code == 0, result.stderr
    (warning,) = result.document["warnings"]
    for name in ("optimizer.pt", "global_step7/mp_rank_00.distcp", "consolidated.safetensors"):
        assert repr(name) in warning
        assert not (trainer.path(1) / name).exists()
    assert (trainer.path(1) / "config.json").exists()


def test_full_every_makes_anchors(trainer: Trainer) -> None:
    kinds = [trainer.published(None, "--full-every", "3")["kind"] for _ in range(7)]
    assert kinds == ["delta", "delta", "full", "delta", "delta", "full", "delta"]
    for version in (2, 3, 7, 4):
        trainer.expect_pulled(version)


@pytest.mark.parametrize("change", ["renamed", "gone", "new", "reshaped", "retyped", "resized"])
def test_other_tensors_make_a_full_version_and_say_so(trainer: Trainer, change: str) -> None:
    trainer.published()
    model = dict(trainer.models[1])
    head = model.pop("lm_head.weight")
    if change == "renamed":
        model["head.weight"] = head
    elif change == "new":
        model.update({"lm_head.weight": head, "extra": Tensor("I8", (3,), b"abc")})
    elif change == "reshaped":
        model["lm_head.weight"] = Tensor(head.dtype, head.shape[::-1], head.data)
    elif change == "retyped":
        model["lm_head.weight"] = Tensor("I8", head.shape, head.data)
    elif change == "resized":
        model["lm_head.weight"] = Tensor("U8", (len(head.data) + 1,), head.data + b"!")
    document = trainer.published(model)
    assert (document["version"], document["kind"]) == (2, "full")
    (warning,) = document["warnings"]
    assert re.match(r"published as a full version: .*(lm_head|extra)", warning)
    assert trainer.leftovers() == []
    trainer.expect_pulled(2)
    assert trainer.published()["kind"] == "delta"  # and on from there
    trainer.expect_pulled(3)


def test_a_delta_follows_a_full_version_without_a_cache(trainer: Trainer) -> None:
    trainer.published(None, "--encoding", "full", cache=False)
    trainer.published(cache=False)
    trainer.expect_decoded(2)
    error = expect_error(trainer.publish(trainer.base, cache=False), 2, "usage")
    assert "version 2" in error["message"] and "--cache" in error["hint"]


def test_changed_config_is_named_as_it_does_not_travel_with_a_delta(trainer: Trainer) -> None:
    checkpoint = trainer.save(trainer.models[0], extra_files={"config.json": b'{"other": 1}', "chat.jinja": b"hi"})
    for _ in range(2):
        result = trainer.publish(checkpoint)
        assert result.code == 0, result.stderr
        (warning,) = result.document["warnings"]
        assert "'chat.jinja', 'config.json'" in warning and "full version" in warning


# ---- numbers


def test_numbers_go_on_from_the_newest(trainer: Trainer) -> None:
    assert [trainer.published()["version"] for _ in range(2)] == [1, 2]
    assert trainer.published(None, "--version", "3")["version"] == 3
    assert trainer.published(None, "--version", "next")["version"] == 4
    trainer.expect_pulled(4)


def test_a_full_version_may_skip_numbers_and_deltas_go_on_from_it(trainer: Trainer) -> None:
    trainer.published()
    assert trainer.published(None, "--encoding", "full", "--version", "1000000")["version"] == 1_000_000
    assert trainer.published()["version"] == 1_000_001
    assert trainer.versions() == ["weight_v000001", "weight_v1000000", "weight_v1000001"]
    trainer.expect_pulled(1_000_001)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--version", "2"), "version 2 is in"),
        (("--version", "1", "--encoding", "full"), "version 1 is in"),
        (("--version", "4"), "needs version 3"),
        (("--version", "0"), "version 0 is the base"),
        (("--version", "latest"), "'latest'"),
        (("--version", "-1"), "'-1'"),
    ],
)
def test_numbers_that_cannot_be(trainer: Trainer, options: tuple[str, ...], said: str) -> None:
    trainer.published()
    trainer.published()
    before = toolkit.snapshot(trainer.path(2))
    assert said in expect_error(trainer.publish(trainer.base, *options), 2, "usage")["message"]
    assert toolkit.snapshot(trainer.path(2)) == before
    assert trainer.versions() == ["weight_v000001", "weight_v000002"]


def test_a_number_below_the_newest_is_refused_even_where_it_is_free(trainer: Trainer) -> None:
    trainer.published(None, "--encoding", "full", "--version", "5")
    error = expect_error(trainer.publish(trainer.base, "--version", "3", "--encoding", "full"), 2, "usage")
    assert "below version 5" in error["message"]
    assert trainer.versions() == ["weight_v000005"]


def test_the_first_version_needs_something_to_stand_on(trainer: Trainer) -> None:
    given = ("publish", "--shared", trainer.shared, "--from", trainer.base)
    error = expect_error(toolkit.vime(*given), 2, "usage")
    assert "--base" in error["message"] and "--encoding full" in error["hint"]
    assert toolkit.vime(*given, "--encoding", "full").code == 0
