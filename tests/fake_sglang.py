"""A fake SGLang for tests: the endpoints by which trainers update it from disk, over weights that it really loads.

A failed update goes back to the checkpoint that was loaded before, read again from where it lies. An update that
succeeds clears the prefix cache, unless asked not to.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fake_generation import EngineDied
from tests.fake_http import Answer, Exchange
from tests.fake_model_server import ModelServer, completion
from tests.fake_weights import Weights

FLUSHED = b"Cache flushed.\nPlease check backend logs for more details.\n"

Endpoint = Callable[["FakeSglang", Exchange], Answer]


class FakeSglang(ModelServer):
    """One SGLang server; without `weight_version_endpoint` it is one that tells its version with the model only."""

    def __init__(
        self,
        model_dir: Path | str,
        *,
        api_key: str | None = None,
        weight_version_endpoint: bool = True,
        served_model_name: str = "m",
        port: int = 0,
    ) -> None:
        super().__init__(model_dir, api_key=api_key, served_model_name=served_model_name, port=port)
        self._weight_version_endpoint = weight_version_endpoint
        self._weights = Weights()

    def all_weights(self) -> list[Weights]:
        return [self._weights]

    def boot(self) -> None:
        super().boot()
        self._weights = Weights()
        self._weights.first_load(self.model_dir)

    def answer(self, exchange: Exchange) -> Answer:
        """The key guards everything but the health checks."""
        call = exchange.call
        if not call.path.startswith("/health") and not self.authorized(exchange):
            return Answer(401, {"error": "Unauthorized"})
        endpoint = ENDPOINTS.get((call.method, call.path))
        if endpoint is None:
            known = any(path == call.path for _, path in ENDPOINTS)
            return Answer(405, {"detail": "Method Not Allowed"}) if known else Answer(404, {"detail": "Not Found"})
        try:
            return endpoint(self, exchange)
        except EngineDied:
            self.die()
            return Answer(500, {"error": "the scheduler died"})

    def health(self, exchange: Exchange) -> Answer:
        return Answer(200)

    def list_models(self, exchange: Exchange) -> Answer:
        return self.models()

    def told_version(self, exchange: Exchange) -> Answer:
        if not self._weight_version_endpoint:
            return Answer(404, {"detail": "Endpoint '/get_weight_version' is deprecated. Please use '/model_info'."})
        return Answer(200, {"weight_version": self.weight_version})

    def model_info(self, exchange: Exchange) -> Answer:
        model = {"model_path": self._weights.path, "tokenizer_path": self.model_dir, "is_generation": True}
        return Answer(200, {**model, "preferred_sampling_params": None, "weight_version": self.weight_version})

    def update_weights(self, exchange: Exchange) -> Answer:
        body = exchange.call.body
        if not isinstance(body, dict) or not isinstance(body.get("model_path"), str):
            return Answer(400, {"detail": "model_path: Field required"})
        before = self._weights.path
        with self.generation.turn():
            try:
                self._load(body["model_path"])
            except Exception as error:
                message = f"Failed to update weights: {error}.\nRolling back to original weights."
                with suppress(Exception):  # a ruin then
                    self._load(before)
                return Answer(400, {"success": False, "message": message, "num_paused_requests": 0})
            if body.get("weight_version") is not None:
                self.weight_version = str(body["weight_version"])
        if body.get("flush_cache", True):
            self.generation.reset_prefix_cache(force=True)
        message = "Succeeded to update model weights."
        return Answer(200, {"success": True, "message": message, "num_paused_requests": 0})

    def _load(self, directory: str) -> None:
        self._weights.beyond_repair = False  # it goes back from a wrong shape too
        self._weights.load(directory, lambda name: self.before_tensor(0, name))

    def pause(self, exchange: Exchange) -> Answer:
        body = exchange.call.body if isinstance(exchange.call.body, dict) else {}
        self.generation.pause("abort" if body.get("mode", "abort") == "abort" else "keep", clear_cache=False)
        return Answer(200, {"status": "ok", "message": "Generation paused successfully."})

    def go_on(self, exchange: Exchange) -> Answer:
        self.generation.resume()
        return Answer(200, {"status": "ok", "message": "Generation continued successfully."})

    def flush_cache(self, exchange: Exchange) -> Answer:
        """400 while requests run."""
        return Answer(200 if self.generation.reset_prefix_cache() else 400, FLUSHED)

    def complete_prompt(self, exchange: Exchange) -> Answer:
        prompt = exchange.call.body["prompt"]
        text, reason = self.answer_prompt(prompt, exchange)
        asked = exchange.call.body.get("logprobs") is not None
        nan = any(weights.nan for weights in self.all_weights())
        logprobs = {"token_logprobs": [None if nan else -1.5], "tokens": [text]} if asked else None
        return Answer(200, completion(self.served_model_name, prompt, text, reason, logprobs))

    def generate(self, exchange: Exchange) -> Answer:
        text, reason = self.answer_prompt(exchange.call.body["text"], exchange)
        information: dict[str, Any] = {"finish_reason": {"type": reason}, "weight_version": self.weight_version}
        return Answer(200, {"text": text, "meta_info": information})


ENDPOINTS: dict[tuple[str, str], Endpoint] = {
    ("GET", "/health"): FakeSglang.health,
    ("GET", "/health_generate"): FakeSglang.health,
    ("GET", "/v1/models"): FakeSglang.list_models,
    ("GET", "/get_weight_version"): FakeSglang.told_version,
    ("GET", "/get_model_info"): FakeSglang.model_info,
    ("GET", "/model_info"): FakeSglang.model_info,
    ("POST", "/update_weights_from_disk"): FakeSglang.update_weights,
    ("POST", "/pause_generation"): FakeSglang.pause,
    ("POST", "/continue_generation"): FakeSglang.go_on,
    ("GET", "/flush_cache"): FakeSglang.flush_cache,
    ("POST", "/flush_cache"): FakeSglang.flush_cache,
    ("POST", "/v1/completions"): FakeSglang.complete_prompt,
    ("POST", "/generate"): FakeSglang.generate,
}
