"""One completion after a load: it has to come, and its probability has to be a number (FIELD_GUIDE E4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vime_sync.engines.http import Client
from vime_sync.errors import EngineNotReady, EngineRefused, EngineUncertain

_PROMPT = "The quick brown fox"
_TIMEOUT_S = 60.0
_NO_ACCESS = (401, 403)


def check_key(client: Client) -> None:
    """Before an engine is paused: a wrong key would fail the probe of a load that went well. Raises EngineNotReady."""
    answer = client.ask("/v1/models")
    if answer.status in _NO_ACCESS:
        where = f"GET {client.spec.shown_url}/v1/models"
        raise EngineNotReady(
            f"{where} answered {answer.status}: {answer.reason}; a probe needs its API key",
            hint="Give the key as VIME_SYNC_ENGINE_API_KEY or with --engine-api-key-file.",
        )


def check_completion(client: Client) -> None:
    """Greedy, one token, by the OpenAI endpoint that vLLM and SGLang share. Raises Engine* errors."""
    models = client.ask("/v1/models").fields.get("data")
    names = [model.get("id") for model in models if isinstance(model, Mapping)] if isinstance(models, list) else []
    body: dict[str, Any] = {"prompt": _PROMPT, "max_tokens": 1, "temperature": 0, "logprobs": 1}
    if names:
        body["model"] = names[0]
    answer = client.tell("/v1/completions", body, timeout_s=_TIMEOUT_S)
    where = f"POST {client.spec.shown_url}/v1/completions"
    if not answer.is_success:
        raise EngineRefused(f"{where} answered {answer.status}: {answer.reason or 'nothing'}")
    choices = answer.fields.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    logprobs = choice.get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, Mapping) else None
    if not isinstance(values, list) or not values or not all(_is_finite(value) for value in values):
        raise EngineUncertain(f"{where} gave no finite token probability: {str(values)[:100]}")


def _is_finite(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer with hundreds of digits
        return False
