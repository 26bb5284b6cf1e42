"""The fake vLLM of the other tests says what the real one says: the same calls to both, answer by answer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import toolkit
from tests.fake_vllm import FakeVllm
from tests.real_vllm.conftest import API_KEY
from tests.real_vllm.server import MODEL_NAME, Server
from tests.real_vllm.tiny_model import tiny_qwen3, train, with_nan, write_tiny

NAMES = {"model": MODEL_NAME, "max_tokens": 4, "temperature": 0}


@pytest.fixture
def fake(engine: Server) -> Iterator[FakeVllm]:
    with FakeVllm(engine.model_dir, api_key=API_KEY, served_model_name=MODEL_NAME) as server:
        yield server


def asked(url: str, method: str, path: str, body: Any = None, key: str | None = API_KEY) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        headers = {"Connection": "close"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        return session.request(method, url + path, json=body, headers=headers, timeout=60)


def answer(url: str, method: str, path: str, body: Any = None, key: str | None = API_KEY) -> tuple[int, Any]:
    """Status and what a client reads in the body; of a completion whether there is one at all."""
    response = asked(url, method, path, body, key)
    try:
        document = response.json()
    except ValueError:
        return response.status_code, response.text
    if isinstance(document, dict) and "choices" in document:
        return response.status_code, sorted({"finish_reason", "index", "text"} & document["choices"][0].keys())
    if isinstance(document, dict) and "data" in document:
        return response.status_code, [entry["id"] for entry in document["data"]]
    if isinstance(document, dict) and isinstance(document.get("error"), dict):
        error = document["error"]
        # How a validation words the rest is its library's business.
        return response.status_code, {**error, "message": error["message"].splitlines()[0]}
    return response.status_code, document


def expect_the_same(engine: Server, fake: FakeVllm, calls: list[tuple[Any, ...]]) -> None:
    for call in calls:
        real, pretended = answer(engine.url, *call), answer(fake.url, *call)
        assert pretended == real, f"{call}: the fake one answers {pretended}, the real one {real}"


def reload(path: Path) -> tuple[str, str, Any]:
    return "POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}


def test_questions_and_small_steps_are_answered_alike(engine: Server, fake: FakeVllm) -> None:
    expect_the_same(
        engine,
        fake,
        [
            ("POST", "/update_weight_version", {"new_version": "7"}),
            *(("GET", path) for path in ("/health", "/version", "/weight_info", "/is_paused", "/is_sleeping")),
            *(("GET", path) for path in ("/get_world_size", "/v1/models", "/no/such/path")),
            ("POST", "/update_weight_version", {"new_version": 7}),
            ("POST", "/update_weight_version", {}),
            ("GET", "/pause"),
            ("POST", "/pause"),
            ("GET", "/is_paused"),
            ("POST", "/pause?mode=keep&clear_cache=true"),
            ("POST", "/pause?mode=bogus"),
            ("GET", "/health"),
            ("POST", "/resume"),
            ("POST", "/resume"),
            ("GET", "/is_paused"),
            ("POST", "/reset_prefix_cache"),
            ("POST", "/reset_prefix_cache?reset_running_requests=true"),
            ("POST", "/collective_rpc", {}),
            ("POST", "/v1/completions", {**NAMES, "prompt": "hello"}),
            ("POST", "/v1/completions", {**NAMES, "prompt": [1, 2, 3], "logprobs": 0}),
            ("POST", "/v1/completions", {**NAMES, "prompt": "hello", "model": "other"}),
            ("POST", "/v1/completions", {**NAMES, "prompt": "hello"}, None),
            ("POST", "/v1/completions", {**NAMES, "prompt": "hello"}, "wrong"),
            ("GET", "/v1/models", None, None),
            ("GET", "/weight_info", None, None),
        ],
    )


def test_loads_that_go_well_or_wrong_are_answered_alike(engine: Server, fake: FakeVllm, tmp_path: Path) -> None:
    model = train(tiny_qwen3(), seed=1)
    good = write_tiny(tmp_path / "good", model)
    cut = write_tiny(tmp_path / "cut", model)
    shard = sorted(cut.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-5000])
    garbled = write_tiny(tmp_path / "garbled", model)
    shard = sorted(garbled.glob("*.safetensors"))[1]
    header, data = toolkit.split_shard(shard)
    toolkit.join_shard(shard, json.dumps(header).encode().replace(b":", b"?", 1), data)
    lacking_shard = write_tiny(tmp_path / "lacking_shard", model)
    sorted(lacking_shard.glob("*.safetensors"))[2].unlink()
    part = dict(model)
    del part["model.layers.1.mlp.up_proj.weight"]
    lacking_tensor = write_tiny(tmp_path / "lacking_tensor", part)
    nan = write_tiny(tmp_path / "nan", with_nan(model))
    completion = ("POST", "/v1/completions", {**NAMES, "prompt": "hello"})

    expect_the_same(
        engine,
        fake,
        [
            ("POST", "/update_weight_version", {"new_version": "7"}),
            reload(good),
            completion,
            # What went wrong before any tensor was read, a good load mends.
            *(
                call
                for bad in (tmp_path / "absent", cut, garbled, lacking_shard)
                for call in (reload(bad), ("GET", "/health"), ("GET", "/weight_info"), reload(good), completion)
            ),
            reload(lacking_tensor),
            ("POST", "/collective_rpc", {"method": "no_such_method", "kwargs": {}}),
            completion,
            reload(nan),
            completion,
            ("POST", "/v1/completions", {**NAMES, "prompt": "hello", "logprobs": 0}),
            ("GET", "/health"),
            reload(good),
            completion,
        ],
    )


def test_after_a_failed_load_a_question_ends_both(engine: Server, fake: FakeVllm, tmp_path: Path) -> None:
    """The last story of all: it costs the engine its life."""
    cut = write_tiny(tmp_path / "cut", tiny_qwen3())
    shard = sorted(cut.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-5000])
    expect_the_same(
        engine,
        fake,
        [reload(cut), ("GET", "/health"), ("POST", "/v1/completions", {**NAMES, "prompt": "hello"})],
    )
    engine.wait_until_dead()
    with pytest.raises(requests.ConnectionError):
        asked(engine.url, "GET", "/health")
