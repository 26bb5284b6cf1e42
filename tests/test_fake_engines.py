"""The fake engines behave as the real ones were seen to: loads, answers, accidents, ranks, story by story."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import toolkit
from tests.fake_model_server import NAN_TEXT, CompletionFailed
from tests.fake_stories import LONG, NEW, OLD, SHORT, aside, ask, nothing_left, reload
from tests.fake_vllm import FakeVllm
from tests.fake_weights import fresh_answer
from tests.toolkit import Model, Tensor


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No thread and no socket of a fake outlives its block."""
    with nothing_left():
        yield


@pytest.fixture
def base(tmp_path: Path) -> Path:
    toolkit.write_checkpoint(tmp_path / "base", OLD)
    return tmp_path / "base"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    toolkit.write_checkpoint(tmp_path / "new", NEW)
    return tmp_path / "new"


# ---- weights and answers


def test_a_reload_is_served_and_the_path_stays(base: Path, new: Path) -> None:
    with FakeVllm(base) as fake:
        assert fake.holds(OLD) and fake.complete(SHORT) == fresh_answer(OLD, SHORT)
        assert reload(fake, new).json() == {"results": [None]}
        assert fake.holds(NEW) and fake.loaded[0].path == str(new)
        assert fake.complete(SHORT) == fresh_answer(NEW, SHORT) != fresh_answer(OLD, SHORT)
        toolkit.write_checkpoint(new, OLD)
        ask(fake, "/collective_rpc", {"method": "reload_weights"})
        assert fake.holds(OLD)  # the last path again, as it now is
        assert ask(fake, "/server_info?config_format=json").json()["vllm_config"]["model_config"]["model"] == str(base)


def test_without_a_cache_reset_a_long_prompt_gets_a_mix(base: Path, new: Path) -> None:
    with FakeVllm(base) as fake:
        assert fake.complete(LONG) == fresh_answer(OLD, LONG)
        reload(fake, new)
        assert fake.complete(SHORT) == fresh_answer(NEW, SHORT)  # a short one does not show it
        assert fake.complete(LONG) not in {fresh_answer(OLD, LONG), fresh_answer(NEW, LONG)}
        assert ask(fake, "/reset_prefix_cache", {}).json() == {"success": True}
        assert fake.complete(LONG) == fresh_answer(NEW, LONG)


@pytest.mark.parametrize("clear_cache", [True, False])
def test_a_pause_clears_the_cache_unless_asked_not_to(base: Path, new: Path, clear_cache: bool) -> None:
    with FakeVllm(base) as fake:
        fake.complete(LONG)
        ask(fake, f"/pause?clear_cache={str(clear_cache).lower()}", {})
        reload(fake, new)
        ask(fake, "/resume", {})
        assert (fake.complete(LONG) == fresh_answer(NEW, LONG)) == clear_cache


def test_the_index_decides_what_is_loaded(tmp_path: Path, base: Path) -> None:
    toolkit.write_checkpoint(tmp_path / "indexed", NEW)
    toolkit.write_safetensors(tmp_path / "indexed" / "zz.safetensors", {"scalar": OLD["scalar"]})
    with FakeVllm(base) as fake:
        reload(fake, tmp_path / "indexed")
        assert fake.holds(NEW)
        (tmp_path / "indexed" / toolkit.INDEX_NAME).unlink()
        reload(fake, tmp_path / "indexed")
        assert fake.holds({**NEW, "scalar": OLD["scalar"]})  # every file of the directory now


def test_a_tensor_that_is_missing_stays_old_and_nobody_says_so(tmp_path: Path, base: Path) -> None:
    toolkit.write_checkpoint(tmp_path / "part", {name: NEW[name] for name in NEW if name != "lm_head.weight"})
    with FakeVllm(base) as fake:
        assert reload(fake, tmp_path / "part").status_code == 200
        assert fake.holds({**NEW, "lm_head.weight": OLD["lm_head.weight"]})


@pytest.mark.parametrize("renamed", [False, True], ids=["patched in place", "renamed over"])
def test_a_file_patched_in_place_during_a_load_tears(tmp_path: Path, base: Path, renamed: bool) -> None:
    local = tmp_path / "local"
    toolkit.write_checkpoint(local, OLD, shards=1)
    file = local / "model-00001-of-00001.safetensors"
    toolkit.write_safetensors(tmp_path / "after", NEW, {"format": "pt"})
    with FakeVllm(base) as fake, fake.stopped_load(after_tensors=5) as gate:
        with aside(reload, fake, local) as reloading:
            gate.wait()
            if renamed:
                (tmp_path / "after").replace(file)
            else:
                with file.open("r+b") as opened:
                    opened.write((tmp_path / "after").read_bytes())
            gate.go_on.set()
        assert reloading.result().status_code == 200
        assert fake.holds(OLD) == renamed
        torn = fake.complete(SHORT)
        assert renamed or torn not in {fresh_answer(OLD, SHORT), fresh_answer(NEW, SHORT)}


def test_weights_of_nan_answer_all_the_same(tmp_path: Path, base: Path) -> None:
    shape = NEW["model.norm.weight"].shape
    rotten: Model = {**NEW, "model.norm.weight": Tensor("BF16", shape, b"\xc0\x7f" * (shape[0] * shape[1]))}
    toolkit.write_checkpoint(tmp_path / "nan", rotten)
    with FakeVllm(base) as fake:
        assert reload(fake, tmp_path / "nan").status_code == 200
        assert fake.complete(SHORT) == NAN_TEXT
        asked = ask(fake, "/v1/completions", {"model": "m", "prompt": SHORT, "logprobs": 1})
        assert asked.status_code == 400 and "not JSON compliant" in asked.json()["error"]["message"]


# ---- failed reloads


def test_after_a_failed_reload_it_says_healthy_and_dies_at_the_next_prompt(base: Path, tmp_path: Path) -> None:
    with FakeVllm(base) as fake:
        failed = reload(fake, tmp_path / "nowhere")
        assert failed.status_code == 500
        assert failed.json()["error"]["message"].startswith("Call to collective_rpc method failed: Worker failed with")
        assert str(tmp_path) not in failed.text  # it blots out paths
        assert ask(fake, "/health").status_code == 200
        with pytest.raises(CompletionFailed, match="EngineCore encountered an issue"):
            fake.complete(SHORT)
        with pytest.raises(requests.ConnectionError):
            ask(fake, "/health")
        fake.restart()
        assert fake.complete(SHORT) == fresh_answer(OLD, SHORT)


def _truncated(directory: Path) -> None:
    file = directory / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _unknown(directory: Path) -> None:
    toolkit.write_checkpoint(directory, {**NEW, "surprise": NEW["scalar"]})


def _no_shard(directory: Path) -> None:
    (directory / "model-00002-of-00002.safetensors").unlink()


@pytest.mark.parametrize("spoil", [_truncated, _unknown, _no_shard])
def test_a_good_reload_mends_a_failed_one(tmp_path: Path, base: Path, new: Path, spoil: Callable[[Path], None]) -> None:
    toolkit.write_checkpoint(tmp_path / "bad", NEW)
    spoil(tmp_path / "bad")
    with FakeVllm(base) as fake:
        assert reload(fake, tmp_path / "bad").status_code == 500
        assert reload(fake, new).status_code == 200
        assert fake.complete(SHORT) == fresh_answer(NEW, SHORT)


def test_no_reload_mends_a_wrong_shape_though_one_says_so(tmp_path: Path, base: Path, new: Path) -> None:
    toolkit.write_checkpoint(tmp_path / "bad", {**NEW, "scalar": Tensor("F32", (1,), NEW["scalar"].data)})
    with FakeVllm(base) as fake:
        assert reload(fake, tmp_path / "bad").status_code == 500
        assert [reload(fake, new).status_code for _ in range(4)] == [500, 200, 500, 500]
        with pytest.raises(CompletionFailed):
            fake.complete(SHORT)


def test_a_500_closes_the_connection_without_saying_so(base: Path) -> None:
    with FakeVllm(base) as fake, closing(http.client.HTTPConnection("127.0.0.1", fake.port, timeout=60)) as client:
        client.request("POST", "/collective_rpc", json.dumps({"method": "no_such_method"}))
        answer = client.getresponse()
        assert answer.status == 500 and answer.getheader("Connection") is None
        assert b"'CPUWorker' object has no attribute 'no_such_method'" in answer.read()
        with pytest.raises(ConnectionError):
            client.request("GET", "/health")
            client.getresponse()
        assert fake.complete(SHORT) == fresh_answer(OLD, SHORT)  # a method that is not there breaks nothing


# ---- tensor parallel


def test_stale_answers_of_the_other_ranks_are_taken_for_new_ones(base: Path, new: Path) -> None:
    with FakeVllm(base, ranks=2) as fake:
        fake.rank_failures[0] = "no memory"
        assert "no memory" in reload(fake, new).text
        del fake.rank_failures[0]
        fake.ranks.settle()
        assert fake.ranks.stale_answers == [0, 1]
        assert reload(fake, new).json() == {"results": [None, None]}  # rank 1's null is the one of before
        fake.ranks.settle()
        assert fake.holds(NEW)
        fake.rank_failures[1] = "this one fails"
        assert reload(fake, base).status_code == 200  # the failure of rank 1 reads as its old success
        fake.ranks.settle()
        assert not fake.holds(OLD)
        del fake.rank_failures[1]
        assert "this one fails" in reload(fake, new).text  # and now a success reads as a failure


def test_a_timeout_in_the_body_leaves_answers_behind(base: Path, new: Path) -> None:
    with FakeVllm(base, ranks=2) as fake:
        with fake.stopped_load(after_tensors=1, rank=1):
            assert "timed out" in reload(fake, new, timeout=0.05).text
        assert reload(fake, base).status_code == 200
        fake.ranks.settle()
        assert fake.ranks.stale_answers == [0, 1]


class Extension:
    """What a test might mix into the workers."""

    rank: int
    local_rank: int
    model_config: Any
    reload_weights: Callable[..., None]

    def ping(self, nonce: str) -> dict[str, Any]:
        return {"rank": self.rank, "local_rank": self.local_rank, "nonce": nonce, "model": self.model_config.model}

    def load(self, path: str) -> dict[str, Any]:
        try:
            self.reload_weights(weights_path=path)
        except Exception as error:
            return {"error": str(error)}
        return {"success": True}

    def number(self) -> int:
        return self.rank

    def boom(self) -> None:
        raise ValueError(f"boom from rank {self.rank}")

    def not_finite(self) -> dict[str, float]:
        return {"loss": float("nan")}

    def cannot_be_sent(self) -> dict[str, object]:
        return {"object": object()}


def test_an_extension_answers_in_rank_order(base: Path, new: Path) -> None:
    with FakeVllm(base, ranks=2, extension_class=Extension) as fake:
        answer = ask(fake, "/collective_rpc", {"method": "ping", "args": ["n1"]}).json()["results"]
        expected = {"nonce": "n1", "model": str(base)}
        assert answer == [{"rank": rank, "local_rank": rank, **expected} for rank in (0, 1)]
        loaded = ask(fake, "/collective_rpc", {"method": "load", "kwargs": {"path": str(new)}}).json()
        assert loaded == {"results": [{"success": True}] * 2} and fake.holds(NEW)
        again = ask(fake, "/collective_rpc", {"method": "ping", "args": ["n2"]}).json()["results"]
        assert again[0]["model"] == str(new)  # the worker's configuration now names the other path
        assert ask(fake, "/collective_rpc", {"method": "number"}).json() == {"results": ["0", "1"]}
        failed = ask(fake, "/collective_rpc", {"method": "boom"})
        assert failed.status_code == 500 and "boom from rank 0" in failed.text


def test_answers_that_cannot_be_sent(base: Path) -> None:
    with FakeVllm(base, extension_class=Extension) as fake:
        assert ask(fake, "/collective_rpc", {"method": "not_finite"}).status_code == 400
        with pytest.raises(requests.ReadTimeout):
            ask(fake, "/collective_rpc", {"method": "cannot_be_sent"}, timeout=0.1)
        with pytest.raises(requests.ReadTimeout):
            ask(fake, "/is_paused", timeout=0.1)  # nothing comes out of this engine any more
        assert ask(fake, "/health").status_code == 200
        fake.restart()
        assert fake.complete(SHORT) == fresh_answer(OLD, SHORT)
