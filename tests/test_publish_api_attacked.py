"""`vime_sync.publish` given what no trainer should give: SyncError and nothing else; what makes sense is taken."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import toolkit
from tests.publish_world import Trainer
from vime_sync import errors
from vime_sync.model import ChecksumFormat
from vime_sync.publish import Options, PublishEncoding, Tensor, publish_checkpoint, publish_tensors


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer.create(tmp_path)


def _publish(trainer: Trainer, tensors: Any, **options: Any) -> None:
    publish_tensors(tensors, **{"shared": trainer.shared, "base": trainer.base, "encoding": "full", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"version": 1.0},
        {"version": "1"},
        {"version": True},
        {"threads": 1.5},
        {"threads": None},
        {"level": 1.5},
        {"level": "1"},
        {"full_every": 0.5},
        {"shard_size_bytes": 1e6},
        {"encoding": ["xor"]},
        {"checksum": None},
        {"shared": 5},
        {"shared": b"bytes"},
        {"shared": "zero\0byte"},
        {"base": 1.5},
        {"cache": object()},
        {"files": 7},
        {"files": "absent"},
    ],
)
def test_options_of_another_type(trainer: Trainer, options: dict[str, Any]) -> None:
    with pytest.raises(errors.UsageError):
        _publish(trainer, [("a", np.ones(9, np.float32))], **options)
    assert list(trainer.shared.iterdir()) == []


def test_a_checkpoint_that_is_no_path(trainer: Trainer) -> None:
    with pytest.raises(errors.UsageError):
        publish_checkpoint(5, shared=trainer.shared)  # type: ignore[arg-type]


class _Odd:
    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("it lies on a device")


@pytest.mark.parametrize(
    "tensors",
    [
        None,
        5,
        [5],
        [None],
        {"name": np.ones(3)},
        [(1, 2, 3)],
        [("alone",)],
        [(5, np.ones(3))],
        [("ragged", [[1, 2], [3]])],
        [("device", _Odd())],
        [("object", object())],
        [Tensor("number", "U8", (1,), 5)],
        [Tensor("text", "U8", (1,), "a")],
        [Tensor("nothing", "U8", (1,), None)],
        [Tensor("objects", "U8", (1,), np.array([object()]))],
        [Tensor("shape", "U8", (1.0,), b"a")],  # type: ignore[arg-type]
        [Tensor("shape", "U8", 1, b"a")],  # type: ignore[arg-type]
        [Tensor("shape", "U8", (True,), b"a")],
        [Tensor("dtype", ["U8"], (1,), b"a")],  # type: ignore[arg-type]
        [Tensor(["name"], "U8", (1,), b"a")],  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_no_tensor_at_all(trainer: Trainer, tensors: Any, threads: int) -> None:
    with pytest.raises(errors.UsageError):
        _publish(trainer, tensors, threads=threads)
    assert trainer.versions() == []
    assert trainer.leftovers() == []


def test_data_in_any_order_of_memory(trainer: Trainer) -> None:
    """Each gives the bytes that numpy gives of it, row by row."""
    square = np.arange(12, dtype=np.uint16).reshape(3, 4)
    given: dict[str, Any] = {
        "whole": square,
        "transposed": square.T,
        "strided": square[:, ::2],
        "view": memoryview(square.T),
        "steps": memoryview(b"abcdefgh")[::2],
        "one": np.array(7, np.uint32),
        "one more": np.uint32(7),
        "empty": np.zeros((4, 0), np.uint8),
        "bytes": bytearray(b"abc"),
    }
    expected = {name: np.asarray(data).tobytes() for name, data in given.items()}
    _publish(trainer, [Tensor(name, "U8", (np.int64(len(expected[name])),), data) for name, data in given.items()])
    found = toolkit.read_checkpoint(trainer.path(1))
    assert {name: tensor.data for name, tensor in found.items()} == expected


def test_whole_numbers_of_numpy_are_whole_numbers(trainer: Trainer) -> None:
    _publish(trainer, [("a", np.ones(3))], version=np.int64(7), threads=np.int32(2), level=np.uint8(1))
    assert trainer.versions() == ["weight_v000007"]


def test_a_base_that_is_gone_has_no_files_to_carry(trainer: Trainer) -> None:
    with pytest.raises(errors.UsageError, match="config"):
        _publish(trainer, [("a", np.ones(3))], base=trainer.root / "gone")


def test_options_made_by_hand_are_looked_at_too(trainer: Trainer) -> None:
    options = Options(trainer.shared, encoding=PublishEncoding.FULL, checksum=ChecksumFormat.BLAKE3)
    for field in ({"level": 0}, {"threads": -1}, {"full_every": -1}, {"shard_size_bytes": 0}):
        with pytest.raises(errors.UsageError):
            replace(options, **field)  # type: ignore[arg-type]
