"""Publish then pull is the identity, over checkpoints that hypothesis makes up."""

import os
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import toolkit
from tests.publish_world import Trainer
from tests.toolkit import Model, Tensor
from vime_sync.publish import compare, shards

_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1, "I64": 8, "BOOL": 1}
# Names as they come, and odd ones: JSON has to carry them.
_NAMES = ("model.embed.weight", "lm_head.weight", "a", "größe", 'quo"te\\', "sp ace", "format", "x" * 300)
# Around a block of 1 MiB, where most mistakes would lie; few, as they cost time.
_LONG = st.sampled_from([(1 << 20) - 1, 1 << 20, (1 << 20) + 1, (2 << 20) + 3])


def _bytes(generator: np.random.Generator, size: int) -> bytes:
    return generator.bytes(size)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.integers(0, 9)) == 0:
        size = draw(_LONG)
        return Tensor("U8", (size,), _bytes(generator, size) if draw(st.booleans()) else bytes(size))
    dtype = draw(st.sampled_from(sorted(_ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 40), max_size=3)))
    size = int(np.prod(shape, dtype=np.int64)) * _ITEM_BYTES[dtype]
    return Tensor(dtype, shape, _bytes(generator, size))


models = st.dictionaries(st.sampled_from(_NAMES), tensors(), min_size=1, max_size=6)


def _stepped(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    """The same tensor after a step: nothing, one byte at an edge, some or all of it changed."""
    size = len(tensor.data)
    if not size:
        return tensor
    data = np.frombuffer(tensor.data, np.uint8).copy()
    kind = draw(st.sampled_from(["none", "first", "last", "some", "all", "zero"]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "first":
        data[0] ^= 0x80
    elif kind == "last":
        data[-1] ^= 0x01
    elif kind == "some":
        data[generator.random(size) < 0.02] ^= 0x10
    elif kind == "all":
        data = ~data
    elif kind == "zero":
        data[:] = 0
    return Tensor(tensor.dtype, tensor.shape, data.tobytes())


@st.composite
def following(draw: st.DrawFn, model: Model) -> Model:
    """A model to publish after `model`; now and then with other names or shapes."""
    after = {name: _stepped(draw, tensor) for name, tensor in model.items()}
    kind = draw(st.integers(0, 9))
    if kind == 0 and len(after) > 1:
        after.pop(draw(st.sampled_from(sorted(after))))
    elif kind == 1:
        after[draw(st.sampled_from(_NAMES))] = draw(tensors())
    elif kind == 2:
        old = draw(st.sampled_from(sorted(after)))
        after[f"{old}.renamed"] = after.pop(old)
    return after


_options = st.tuples(
    st.sampled_from(["xor", "overwrite", "full"]),
    st.sampled_from(["xxh3-128", "blake3", "adler32"]),
    st.sampled_from(["1", "3"]),
    st.sampled_from(["1", "4294967296"]),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_publish_then_pull_is_the_identity(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("publish")
    small = data.draw(st.booleans(), "what is only done with gigabytes is done with little")
    with (
        mock.patch.object(os, "fsync", lambda descriptor: None),  # no disk loses its power here
        mock.patch.object(compare, "_KEEP_BYTES", 100 if small else compare._KEEP_BYTES),
        mock.patch.object(shards, "RESERVE_BYTES", 2048 if small else shards.RESERVE_BYTES),
        mock.patch.object(shards, "_SLACK_DIVISOR", 1),
    ):
        trainer = Trainer.create(root, data.draw(models), shards=1)
        follows = data.draw(st.booleans(), "a host that follows each version")
        for version in (1, 2, 3):
            model = data.draw(following(trainer.models[version - 1]), f"version {version}")
            encoding, checksum, threads, shard_size = data.draw(_options)
            options = ("--encoding", encoding, "--checksum", checksum)
            trainer.published(model, *options, "--threads", threads, "--shard-size", shard_size, shards=1)
            assert trainer.leftovers() == []
            trainer.expect_decoded(version)
            if follows:
                trainer.expect_pulled(version)
        trainer.expect_pulled(3)
    shutil.rmtree(root)


def test_a_wrong_byte_would_be_seen(tmp_path: Path) -> None:
    trainer = Trainer.create(tmp_path)
    trainer.published()
    trainer.models[1] = toolkit.step(trainer.models[1], 9, only=["one"])
    for look in (trainer.expect_decoded, trainer.expect_pulled):
        with pytest.raises(AssertionError):
            look(1)
