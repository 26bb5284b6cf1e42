"""`vime_sync.publish` from Python: checkpoints, and tensors that a trainer has in memory."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import toolkit
from tests.publish_world import Trainer, index_of
from tests.toolkit import Model
from vime_sync import errors
from vime_sync.model import VersionKind
from vime_sync.publish import Publication, Tensor, publish_checkpoint, publish_tensors

Given = list[tuple[str, Any] | Tensor]


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer.create(tmp_path)


def given(model: Model) -> Given:
    return [Tensor(name, tensor.dtype, tensor.shape, tensor.data) for name, tensor in model.items()]


def publish(trainer: Trainer, tensors: Any, **options: Any) -> Publication:
    return publish_tensors(tensors, shared=trainer.shared, base=trainer.base, cache=trainer.cache, **options)


def test_a_checkpoint_by_names_and_paths(trainer: Trainer) -> None:
    model = toolkit.step(trainer.models[0], 1)
    published = publish_checkpoint(
        str(trainer.save(model)), shared=str(trainer.shared), base=trainer.base, encoding="overwrite", checksum="blake3"
    )
    assert (published.version, published.kind, published.encoding) == (1, VersionKind.DELTA, "overwrite")
    assert published.path == trainer.path(1)
    trainer.models[1] = model
    trainer.expect_decoded(1)
    trainer.expect_pulled(1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("encoding", ["xor", "overwrite", "full"])
def test_tensors_from_memory(trainer: Trainer, encoding: str, threads: int) -> None:
    for version in (1, 2):
        trainer.models[version] = toolkit.step(trainer.models[version - 1], version)
        published = publish(trainer, iter(given(trainer.models[version])), encoding=encoding, threads=threads)
        assert published.version == version
        trainer.expect_decoded(version)
    trainer.expect_pulled(2)
    if encoding == "full":
        assert {path.name for path in trainer.path(2).iterdir()} >= {"config.json", "tokenizer.json"}
        assert index_of(trainer.path(2))["metadata"]["total_size"] == published.total_bytes


def _arrays() -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(3)
    floats = generator.standard_normal((5, 7))
    return {
        "f64": floats,
        "f32": floats.astype(np.float32),
        "f16": floats.astype(np.float16),
        "big endian": floats.astype(">f4"),
        "transposed": floats.astype(np.float32).T,
        "strided": np.arange(40, dtype=np.int64)[::3],
        "bool": np.array([True, False]),
        "scalar": np.float32(1.5),
        "empty": np.zeros((0, 4), np.int8),
        "u16": np.arange(9, dtype=np.uint16).reshape(3, 3),
    }


def test_arrays_as_they_come(trainer: Trainer) -> None:
    """Whatever their order in memory: the values, little-endian, row by row."""
    arrays = _arrays()
    publish(trainer, list(arrays.items()), encoding="full")
    for name, tensor in toolkit.read_checkpoint(trainer.path(1)).items():
        value = np.asarray(arrays[name])
        assert tensor.shape == value.shape
        assert tensor.data == value.astype(value.dtype.newbyteorder("<")).tobytes(order="C"), name
    dtypes = {name: tensor.dtype for name, tensor in toolkit.read_checkpoint(trainer.path(1)).items()}
    assert (dtypes["f64"], dtypes["big endian"], dtypes["bool"], dtypes["u16"]) == ("F64", "F32", "BOOL", "U16")


def test_another_shape_takes_a_second_walk(trainer: Trainer) -> None:
    model = toolkit.step(trainer.models[0], 1)
    model["new"] = toolkit.Tensor("U8", (2,), b"hi")
    published = publish(trainer, given(model))
    assert published.kind is VersionKind.FULL
    assert "'new'" in published.warnings[0]
    trainer.models[1] = model
    trainer.expect_pulled(1)


@pytest.mark.parametrize("change", ["new", "gone", "other"])
def test_what_can_be_walked_only_once_cannot_change_half_way(trainer: Trainer, change: str) -> None:
    model = dict(trainer.models[0])
    if change == "gone":
        model.pop("one")
    else:
        model["new" if change == "new" else "one"] = toolkit.Tensor("U8", (2,), b"hi")
    with pytest.raises(errors.UsageError, match="only once"):
        publish(trainer, iter(given(model)))
    assert trainer.versions() == []
    assert trainer.leftovers() == []


def test_what_is_no_tensor(trainer: Trainer) -> None:
    whole = given(trainer.models[0])
    for bad, said in (
        ([*whole, whole[0]], "given twice"),
        ([("text", np.array(["a"]))], "names no dtype"),
        ([Tensor("short", "BF16", (3,), b"12345")], "spans 5 bytes"),
        ([Tensor("odd", "BF17", (1,), b"12")], "BF17"),
        ([], "no tensors"),
    ):
        with pytest.raises(errors.UsageError, match=said):
            publish(trainer, bad, encoding="full")
    for options in ({"encoding": "zip"}, {"checksum": "md5"}, {"level": 20}, {"threads": -1}, {"full_every": -1}):
        with pytest.raises(errors.UsageError):
            publish(trainer, whole, **options)
    assert trainer.versions() == []


def test_a_full_version_from_memory_needs_config_files(trainer: Trainer) -> None:
    with pytest.raises(errors.UsageError, match="config") as refused:
        publish_tensors(given(trainer.models[0]), shared=trainer.shared, encoding="full")
    assert "files=" in refused.value.hint
    publish_tensors(given(trainer.models[0]), shared=trainer.shared, encoding="full", files=trainer.base)
    assert (trainer.path(1) / "config.json").exists()


def test_tensors_are_taken_one_by_one_in_the_callers_thread(trainer: Trainer) -> None:
    """A trainer's generator may talk to devices, and hold one tensor at a time."""
    model = toolkit.step(toolkit.make_model(tensors=40, kib=40), 1)
    toolkit.write_checkpoint(trainer.base, model)
    taken = 0
    threads = set()

    def tensors() -> Iterator[Tensor]:
        nonlocal taken
        for tensor in given(model):
            taken += 1
            threads.add(threading.get_ident())
            assert isinstance(tensor, Tensor)
            yield tensor

    publish(trainer, tensors(), threads=2)
    assert threads == {threading.get_ident()}
    assert taken == len(model)


def test_one_buffer_for_all_tensors_with_one_thread(trainer: Trainer) -> None:
    model = toolkit.step(trainer.models[0], 1)
    longest = max(len(tensor.data) for tensor in model.values())
    buffer = bytearray(longest)

    def tensors() -> Iterator[Tensor]:
        for name, tensor in model.items():
            buffer[: len(tensor.data)] = tensor.data
            yield Tensor(name, tensor.dtype, tensor.shape, memoryview(buffer)[: len(tensor.data)])

    publish(trainer, tensors(), threads=1)
    trainer.models[1] = model
    trainer.expect_decoded(1)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_generator_that_fails_publishes_nothing(trainer: Trainer, threads: int) -> None:
    def tensors() -> Iterator[tuple[str, Any] | Tensor]:
        yield from given(trainer.models[0])[:3]
        raise RuntimeError("a rank died")

    with pytest.raises(RuntimeError, match="a rank died"):
        publish(trainer, tensors(), threads=threads)
    assert trainer.versions() == []
    assert trainer.leftovers() == []
    assert not [thread for thread in threading.enumerate() if thread.name == "vime-sync-publish"]
