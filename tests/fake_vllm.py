"""A fake vLLM 0.32 for tests: the endpoints that count, with the real one's answers, order and accidents.

It really loads the files it is told to (`tests.fake_weights`), answers prompts with digests of what it holds
(`tests.fake_generation`), runs collective calls on ranks whose answers can go stale (`tests.fake_ranks`), and dies
at the next prompt after a failed reload. `FakeVllm` lives in the test's process;
`python -m tests.fake_vllm --port P --model DIR` is a process of its own, to be killed and started again.
"""

import argparse
import importlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fake_generation import EngineDied
from tests.fake_http import Answer, Exchange, Hangup
from tests.fake_model_server import NAN_TEXT, ModelServer, completion
from tests.fake_ranks import Ranks, RpcFailed, worker_class
from tests.fake_vllm_words import NOT_FINITE, error, flag, invalid, server_info, sleep_metrics
from tests.fake_weights import Weights

DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
PAUSE_MODES = ("abort", "wait", "keep")

Endpoint = Callable[["FakeVllm", Exchange], Answer]


class FakeVllm(ModelServer):
    """One vLLM server with its engine; as a context manager it is up inside the block.

    `extension_class` is mixed into every rank's worker, as `--worker-extension-cls` does. Without `dev_mode` only
    the public endpoints exist; without `weight_info` the server is one of before 0.21.
    """

    def __init__(
        self,
        model_dir: Path | str,
        *,
        ranks: int = 1,
        extension_class: type[Any] | None = None,
        dev_mode: bool = True,
        api_key: str | None = None,
        weight_info: bool = True,
        served_model_name: str = "m",
        port: int = 0,
    ) -> None:
        super().__init__(model_dir, api_key=api_key, served_model_name=served_model_name, port=port)
        self._rank_count = ranks
        self._worker_class = worker_class(extension_class)
        self._extension_name = None if extension_class is None else _qualified(extension_class)
        self._dev_mode = dev_mode
        self._weight_info = weight_info
        self._ranks: Ranks | None = None
        self.sleeping = False

    # ---- its lives

    @property
    def ranks(self) -> Ranks:
        assert self._ranks is not None, "never started"
        return self._ranks

    def all_weights(self) -> list[Weights]:
        return self.ranks.weights()

    def fit(self) -> bool:
        """An old answer left behind by rank 0 would be taken for the next token."""
        return super().fit() and not self.ranks.stale_answers[0]

    def boot(self) -> None:
        super().boot()
        self.sleeping = False
        count = self._rank_count
        workers = [self._worker_class(rank, count, self.model_dir, self.before_tensor) for rank in range(count)]
        self._ranks = Ranks(workers)

    def halt(self) -> None:
        super().halt()
        if self._ranks is not None:
            self._ranks.end()

    def stop(self) -> None:
        super().stop()
        if self._ranks is not None:
            self._ranks.end()
            self._ranks.join()

    # ---- HTTP

    def answer(self, exchange: Exchange) -> Answer:
        call = exchange.call
        if call.path.startswith("/v1") and not self.authorized(exchange):
            return Answer(401, {"error": "Unauthorized"})
        endpoints = self.endpoints()
        endpoint = endpoints.get((call.method, call.path))
        if endpoint is None:
            known = any(path == call.path for _, path in endpoints)
            return Answer(405, {"detail": "Method Not Allowed"}) if known else Answer(404, {"detail": "Not Found"})
        try:
            return endpoint(self, exchange)
        except EngineDied:
            self.die()
            return error(500, "InternalServerError", DEAD)

    def endpoints(self) -> dict[tuple[str, str], Endpoint]:
        """What this server was started with, by method and path."""
        endpoints = {**PUBLIC, **(DEVELOPMENT if self._dev_mode else {})}
        if not self._weight_info:
            endpoints.pop(("GET", "/weight_info"), None)
            endpoints.pop(("POST", "/update_weight_version"), None)
        return endpoints

    def health(self, exchange: Exchange) -> Answer:
        return Answer(503 if self.generation.died else 200)

    def version(self, exchange: Exchange) -> Answer:
        return Answer(200, {"version": "0.32.0"})

    def list_models(self, exchange: Exchange) -> Answer:
        return self.models()

    def world_size(self, exchange: Exchange) -> Answer:
        return Answer(200, {"world_size": self._rank_count})

    def server_info(self, exchange: Exchange) -> Answer:
        """The configuration of the start: a reload does not change what it says."""
        text = exchange.call.query.get("config_format", "text") == "text"
        return Answer(200, server_info(self.model_dir, self._rank_count, self._extension_name, text=text))

    def complete_prompt(self, exchange: Exchange) -> Answer:
        body = exchange.call.body
        if not isinstance(body, dict) or not isinstance(body.get("prompt"), str | list):
            return invalid("missing", "body.prompt", "Field required")
        prompt = body["prompt"] if isinstance(body["prompt"], str) else json.dumps(body["prompt"])
        if body.get("model", self.served_model_name) != self.served_model_name:
            told = f"The model `{body['model']}` does not exist. Valid aliases: {self.served_model_name}."
            return error(404, "NotFoundError", told, "model")
        text, reason = self.answer_prompt(prompt, exchange)
        logprobs = None
        if body.get("logprobs") is not None:
            if text == NAN_TEXT:
                return error(400, "BadRequestError", NOT_FINITE)
            logprobs = {"tokens": [text], "token_logprobs": [-0.5], "top_logprobs": [{text: -0.5}], "text_offset": [0]}
        return Answer(200, completion(self.served_model_name, prompt, text, reason, logprobs))

    def collective_rpc(self, exchange: Exchange) -> Answer:
        body = exchange.call.body
        if body is None or isinstance(body, bytes):
            return error(400, "Bad Request", "JSON decode error: Expecting value: line 1 column 1 (char 0)")
        if not isinstance(body, dict):
            return error(400, "Bad Request", "Request body must be a JSON object")
        if body.get("method") is None:
            return error(400, "Bad Request", "Missing 'method' in request body")
        with self.generation.turn():
            if self.sleeping and body["method"] == "reload_weights":
                self.generation.end(died=True)
                raise EngineDied
            try:
                arguments, named, timeout_s = body.get("args", []), body.get("kwargs", {}), body.get("timeout")
                results = self.ranks.call(body["method"], arguments, named, timeout_s)
                told = [item if item is None or isinstance(item, dict | list) else str(item) for item in results]
                content = json.dumps({"results": told}, allow_nan=False).encode()
            except RpcFailed as failure:
                return error(
                    500, "InternalServerError", f"Call to collective_rpc method failed: {failure}", closes=True
                )
            except ValueError:
                return error(400, "BadRequestError", NOT_FINITE)
            except TypeError:  # what cannot be sent on: the engine never answers anything again
                exchange.life.stopping.wait()
                raise Hangup from None
        return Answer(200, json.loads(content))

    def pause(self, exchange: Exchange) -> Answer:
        mode = exchange.call.query.get("mode", "abort")
        if mode not in PAUSE_MODES:
            return invalid("literal_error", "query.mode", "Input should be 'abort', 'wait' or 'keep'")
        self.generation.pause(mode, clear_cache=flag(exchange, "clear_cache", default=True))
        return Answer(200, {"status": "paused"})

    def resume(self, exchange: Exchange) -> Answer:
        self.generation.resume()
        return Answer(200, {"status": "resumed"})

    def is_paused(self, exchange: Exchange) -> Answer:
        return Answer(200, {"is_paused": self.generation.paused()})

    def abort_requests(self, exchange: Exchange) -> Answer:
        return Answer(200, {"status": "aborted", "aborted": self.generation.abort_all()})

    def reset_prefix_cache(self, exchange: Exchange) -> Answer:
        force = flag(exchange, "reset_running_requests", default=False)
        return Answer(200, {"success": self.generation.reset_prefix_cache(force=force)})

    def update_weight_version(self, exchange: Exchange) -> Answer:
        body = exchange.call.body
        if not isinstance(body, dict) or "new_version" not in body:
            return invalid("missing", "body.new_version", "Field required")
        if not isinstance(body["new_version"], str):
            return invalid("string_type", "body.new_version", "Input should be a valid string")
        with self.generation.turn():
            self.weight_version = body["new_version"]
        return Answer(200, {"success": True, "new_version": body["new_version"]})

    def weight_version_info(self, exchange: Exchange) -> Answer:
        with self.generation.turn():
            return Answer(200, {"weight_version": self.weight_version})

    def sleep(self, exchange: Exchange) -> Answer:
        level = int(exchange.call.query.get("level", "1"))
        self.generation.pause(exchange.call.query.get("mode", "abort"), clear_cache=level >= 1)
        self.sleeping = level >= 1
        return Answer(200, {"status": "sleeping", "level": level})

    def wake_up(self, exchange: Exchange) -> Answer:
        self.sleeping = False
        self.generation.resume()
        return Answer(200, {"status": "awake", "tags": None})

    def is_sleeping(self, exchange: Exchange) -> Answer:
        """A paused engine counts as sleeping too."""
        return Answer(200, {"is_sleeping": self.generation.paused() or self.sleeping})

    def metrics(self, exchange: Exchange) -> Answer:
        return Answer(200, sleep_metrics(sleeping=self.sleeping))

    def openapi(self, exchange: Exchange) -> Answer:
        paths: dict[str, Any] = {path: {method.lower(): {}} for method, path in self.endpoints()}
        return Answer(200, {"openapi": "3.1.0", "paths": paths})

    def fake_loaded(self, exchange: Exchange) -> Answer:
        """Not vLLM's: what the ranks hold, for a test in another process."""
        return Answer(200, {"ranks": [{"path": loaded.path, "tensors": loaded.tensors} for loaded in self.loaded]})


PUBLIC: dict[tuple[str, str], Endpoint] = {
    ("GET", "/health"): FakeVllm.health,
    ("GET", "/version"): FakeVllm.version,
    ("GET", "/v1/models"): FakeVllm.list_models,
    ("POST", "/v1/completions"): FakeVllm.complete_prompt,
    ("GET", "/openapi.json"): FakeVllm.openapi,
    ("GET", "/metrics"): FakeVllm.metrics,
    ("GET", "/fake/loaded"): FakeVllm.fake_loaded,
}
DEVELOPMENT: dict[tuple[str, str], Endpoint] = {
    ("POST", "/collective_rpc"): FakeVllm.collective_rpc,
    ("POST", "/pause"): FakeVllm.pause,
    ("POST", "/resume"): FakeVllm.resume,
    ("GET", "/is_paused"): FakeVllm.is_paused,
    ("POST", "/abort_requests"): FakeVllm.abort_requests,
    ("POST", "/reset_prefix_cache"): FakeVllm.reset_prefix_cache,
    ("POST", "/update_weight_version"): FakeVllm.update_weight_version,
    ("GET", "/weight_info"): FakeVllm.weight_version_info,
    ("GET", "/get_world_size"): FakeVllm.world_size,
    ("GET", "/server_info"): FakeVllm.server_info,
    ("POST", "/sleep"): FakeVllm.sleep,
    ("POST", "/wake_up"): FakeVllm.wake_up,
    ("GET", "/is_sleeping"): FakeVllm.is_sleeping,
}


def _qualified(extension: type[Any]) -> str:
    return f"{extension.__module__}.{extension.__qualname__}"


def main() -> None:
    """Serve until TERM, INT, or until the parent is gone; says its URL on standard output once it listens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--api-key")
    parser.add_argument("--extension", help="module.Class")
    options = parser.parse_args()
    extension: type[Any] | None = None
    if options.extension:
        module, _, name = options.extension.rpartition(".")
        extension = getattr(importlib.import_module(module), name)
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before any thread is there to take them
    parent = os.getppid()
    with FakeVllm(
        options.model,
        ranks=options.ranks,
        extension_class=extension,
        api_key=options.api_key,
        port=options.port,
    ) as fake:
        print(fake.url, flush=True)
        while signal.sigtimedwait(ends, 1.0) is None and os.getppid() == parent:
            continue


if __name__ == "__main__":
    main()
