"""The tests' own tools, against streams whose right result is known: every other test stands on them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.toolkit import Model, Tensor

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("name", ["xor", "overwrite", "mixed", "single_file"])
def test_plain_numpy_gives_the_known_right_bytes(name: str) -> None:
    expected = json.loads((FIXTURES / name / "expected.json").read_text())["versions"]
    model = toolkit.read_checkpoint(FIXTURES / name / "base")
    assert toolkit.digests(model) == expected["0"]["tensors"]
    for version in range(1, len(expected)):
        model = toolkit.apply_version(model, toolkit.version_path(FIXTURES / name / "pub", version))
        assert toolkit.digests(model) == expected[str(version)]["tensors"]


@pytest.mark.parametrize("name", ["xor", "overwrite", "mixed", "single_file"])
def test_publishing_the_known_models_again_gives_the_known_files(name: str, tmp_path: Path) -> None:
    old = toolkit.read_checkpoint(FIXTURES / name / "base")
    for directory in sorted((FIXTURES / name / "pub").iterdir()):
        version = int(directory.name.removeprefix("weight_v"))
        new = toolkit.apply_version(old, directory)
        index = directory / toolkit.INDEX_NAME
        known: dict[str, Any] = json.loads(index.read_text()) if index.exists() else {"metadata": {}}
        if "delta_encoding" in known["metadata"]:
            metadata = known["metadata"]
            ours = toolkit.publish_delta(
                tmp_path,
                version,
                old,
                new,
                encoding=metadata["delta_encoding"],
                checksum=metadata["checksum_format"],
                ranks=len(set(known["weight_map"].values())),
            )
            made = json.loads((ours / toolkit.INDEX_NAME).read_text())
            assert made["metadata"] == metadata
            assert set(made["weight_map"]) == set(known["weight_map"])
            assert sorted(path.name for path in ours.iterdir()) == sorted(path.name for path in directory.iterdir())
            assert _published(ours) == _published(directory)
        old = new


def _published(directory: Path) -> dict[str, tuple[bytes, str]]:
    """Each tensor's frame and digest, over all shards."""
    tensors: dict[str, tuple[bytes, str]] = {}
    for path in directory.glob("*.safetensors"):
        header, data = toolkit.split_shard(path)
        checksums = header.pop("__metadata__")
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            assert (entry["dtype"], entry["shape"]) == ("U8", [end - start])
            tensors[name] = (data[start:end], checksums[name])
    return tensors


@pytest.mark.parametrize(
    ("shards", "index", "files"),
    [
        (1, False, ["model.safetensors"]),
        (3, True, [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]),
    ],
)
def test_checkpoints_are_read_back_as_written(shards: int, index: bool, files: list[str], tmp_path: Path) -> None:
    model = toolkit.make_model(seed=3)
    toolkit.write_checkpoint(tmp_path, model, shards=shards, index=index, extra_files={"sub/notes.txt": b"x"})
    assert toolkit.read_checkpoint(tmp_path) == model
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == files
    assert toolkit.snapshot(tmp_path)["sub"] == ("dir", "")
    assert toolkit.snapshot(tmp_path)["sub/notes.txt"] == ("file", b"x")


def test_models_hold_the_awkward_tensors_and_steps_change_what_is_asked() -> None:
    model = toolkit.make_model(seed=1, tensors=6, kib=64)
    assert model == toolkit.make_model(seed=1, tensors=6, kib=64)
    assert model["scalar"].shape == () and len(model["one"].data) == 1 and model["empty"].data == b""
    assert 32 * 1024 < sum(len(tensor.data) for tensor in model.values()) < 128 * 1024
    assert len(toolkit.make_model(tensors=40)) == 43
    everything = toolkit.step(model, 1)
    assert _changed(model, everything) == set(model) - {"empty"}
    assert _changed(model, toolkit.step(model, 1, only=["one"])) == {"one"}
    assert toolkit.step(model, 2) != everything


def _changed(old: Model, new: Model) -> set[str]:
    assert {name: (t.dtype, t.shape, len(t.data)) for name, t in old.items()} == {
        name: (t.dtype, t.shape, len(t.data)) for name, t in new.items()
    }
    return {name for name in old if old[name] != new[name]}


def test_shards_can_be_rewritten_without_any_check(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    toolkit.write_safetensors(path, {"t": Tensor("U8", (3,), b"abc")}, {"t": "digest"})

    def spoil(header: dict[str, Any], data: bytearray) -> None:
        header["t"]["shape"] = [7]
        data[0] = 0x7A

    toolkit.rewrite_shard(path, spoil)
    header, data = toolkit.split_shard(path)
    assert header == {
        "__metadata__": {"t": "digest"},
        "t": {"dtype": "U8", "shape": [7], "data_offsets": [0, 3]},
    }
    assert data == b"zbc"


def test_snapshots_see_links_and_leave_our_state_out(tmp_path: Path) -> None:
    (tmp_path / ".weight_sync").mkdir()
    (tmp_path / ".weight_sync" / "state.json").write_text("{}")
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").symlink_to("a")
    assert toolkit.snapshot(tmp_path) == {"a": ("file", b"1"), "b": ("link", "a")}


def test_outputs_are_parsed_as_the_contract_says() -> None:
    error = b'warning\n{"schema": "vime-sync/error/1", "code": 12}\n'
    result = toolkit.parse_result(12, b"", error)
    assert (result.document, result.error["code"]) == ({}, 12)
    assert toolkit.parse_result(0, b'{"a": 1}\n', b'{"level": "info"}\n').error == {}
