"""The README's "Your trainer": what it has hosts and trainers run does what it says, with vLLM, SGLang and neither."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import toolkit
from tests.fake_model_server import ModelServer
from tests.fake_sglang import FakeSglang
from tests.fake_vllm import FakeVllm
from tests.host import Host
from tests.readme_examples import README
from tests.readme_tables import section
from tests.watch_story import any_watch, wait_ready

SECTION = section(README, "## Your trainer").replace("\\\n", " ")
PORTS = {"vllm": 8000, "sglang": 30000}
FAKES: dict[str, Callable[[Path], ModelServer]] = {"vllm": FakeVllm, "sglang": FakeSglang}


def _command(beginning: str) -> list[str]:
    """The words of the one line of a block that begins so."""
    (line,) = re.findall(rf"^({re.escape(beginning)}.*)$", SECTION, re.MULTILINE)
    return shlex.split(line)


def _watch(kind: str) -> list[str]:
    lines = [line for line in re.findall(r"^vime-sync (watch .*)$", SECTION, re.MULTILINE) if f" {kind}=" in line]
    (line,) = lines
    return shlex.split(line)


def _here(words: list[str], host: Host) -> list[str]:
    places = {
        "/mnt/share": host.shared, "/nvme/ckpt": host.local, "/models/qwen3-tiny": host.base,
        "/nvme/published": host.root / "published", "/ckpt": host.root / "ckpt",
    }  # fmt: skip
    for told, path in places.items():
        words = [re.sub(rf"^{told}(?=/|$)", str(path), word) for word in words]
    return words


@pytest.mark.parametrize("kind", FAKES)
def test_a_stock_engine_follows_the_stream(kind: str, tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))
    host.publish()
    with FAKES[kind](host.base) as engine:
        words = _here(_watch(kind), host)
        told = f"{kind}=http://127.0.0.1:{PORTS[kind]}"
        assert words[-2:] == ["--engine", told]
        words[-1] = f"{kind}={engine.url}"
        with any_watch(host, *words, "--http", "127.0.0.1:0") as watch:
            watch.wait_for_line("loaded version 1")
            host.publish(encoding="overwrite")
            watch.wait_for_line("loaded version 2")
            wait_ready(watch, 2)
            assert watch.end() == 0
        assert engine.weight_version == "2"
    host.expect_local(2)


def test_the_engine_is_started_from_the_base_at_the_port_that_the_daemon_is_given() -> None:
    base = _watch("vllm")[_watch("vllm").index("--base") + 1]
    vllm = _command("VLLM_SERVER_DEV_MODE=1 vllm serve")
    assert vllm[3:] == [base, "--host", "127.0.0.1", "--port", str(PORTS["vllm"])]
    sglang = _command("python3 -m sglang.launch_server")
    assert sglang[3:] == ["--model-path", base, "--host", "127.0.0.1", "--port", str(PORTS["sglang"])]


def test_one_line_after_each_save_feeds_the_hosts(tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))
    words = _command("vime-sync publish")[1:]
    for version in (1, 2, 3):
        host.models[version] = toolkit.step(host.models[version - 1], version)
        saved = f"/ckpt/step_{100 * version}"
        toolkit.write_checkpoint(Path(*_here([saved], host)), host.models[version])
        line = [saved if word == "/ckpt/step_100" else word for word in words]
        published = toolkit.vime(*_here(line, host))
        assert published.code == 0, published.stderr
        assert published.document["version"] == version
        pulled = host.pulled()
        assert (pulled["result"], pulled["version"]) == ("updated", version)
        host.expect_local(version)
    inspected = toolkit.vime("inspect", host.shared)
    assert inspected.code == 0
    assert all((host.shared / f"weight_v{version:06d}").is_dir() for version in (1, 2, 3))


def test_the_snippet_publishes_a_checkpoint_and_tensors_from_memory(tmp_path: Path) -> None:
    """Run as it stands, but for the names of directories."""
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    generator = np.random.default_rng(7)
    shapes = {"model.embed_tokens.weight": (64, 33), "model.norm.weight": (33,)}
    weights = {name: generator.bytes(4 * int(np.prod(shape))) for name, shape in shapes.items()}
    host = Host.create(tmp_path, model={name: toolkit.Tensor("F32", shapes[name], weights[name]) for name in shapes})
    host.shared.mkdir(exist_ok=True)
    host.models[1] = toolkit.step(host.models[0], 1)
    host.models[2] = toolkit.step(host.models[1], 2)
    toolkit.write_checkpoint(host.root / "ckpt" / "step_400", host.models[1])
    for told, path in (("/mnt/saved", host.shared), ("/models/qwen3-tiny", host.base)):
        snippet = snippet.replace(f'"{told}"', f'"{path}"')
    snippet = snippet.replace('"/nvme/published"', f'"{host.root / "published"}"')
    snippet = snippet.replace('"/ckpt/', f'"{host.root / "ckpt"}/')

    def gather() -> list[tuple[str, object]]:
        return [
            (name, np.frombuffer(tensor.data, np.float32).reshape(tensor.shape))
            for name, tensor in host.models[2].items()
        ]

    exec(compile(snippet, "README.md", "exec"), {"gather": gather})

    for version in (1, 2):
        host.pulled(version=version)
        host.expect_local(version)
