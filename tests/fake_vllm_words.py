"""How the fake vLLM words things: its errors, its validation, what it tells about its configuration."""

import re
from typing import Any

from tests.fake_http import Answer, Exchange

NOT_FINITE = "Out of range float values are not JSON compliant"


def error(status: int, kind: str, message: str, parameter: str | None = None, *, closes: bool = False) -> Answer:
    """An error as the server words it: paths are blotted out."""
    message = re.sub(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+", "<path>", message)
    message = re.sub(r"(?:/[\w\-]+)+/[\w\-]+\.\w+", "<path>", message).strip()
    return Answer(status, {"error": {"message": message, "type": kind, "param": parameter, "code": status}}, closes)


def invalid(kind: str, place: str, message: str) -> Answer:
    """What is wrong with an argument, as the server's validation says it."""
    told = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{place}', 'msg': {message!r}}}"
    return error(400, "Bad Request", told, place)


def flag(exchange: Exchange, name: str, *, default: bool) -> bool:
    """A yes or no of the query."""
    return exchange.call.query.get(name, str(default)).lower() in ("true", "1", "yes", "on")


def server_info(model_dir: str, ranks: int, extension: str | None, *, text: bool) -> dict[str, Any]:
    """The configuration of the start: a reload does not change what it says."""
    parallel = {
        "tensor_parallel_size": ranks,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "world_size": ranks,
        "nnodes": 1,
        "node_rank": 0,
        "worker_extension_cls": extension or "",
    }
    model = {"model": model_dir, "tokenizer": model_dir, "served_model_name": "m", "quantization": None}
    config: Any = {"model_config": model, "parallel_config": parallel, "load_config": {"load_format": "auto"}}
    if text:
        config = f"model='{model_dir}', tensor_parallel_size={ranks}"
    return {"vllm_config": config, "vllm_env": {"VLLM_SERVER_DEV_MODE": True}, "system_env": {}}


def sleep_metrics(*, sleeping: bool) -> bytes:
    """The part of /metrics that tells a sleeping server from a paused one."""
    states = {"awake": not sleeping, "weights_offloaded": sleeping, "discard_all": False}
    lines = (
        f'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="{state}"}} {float(holds)}\n'
        for state, holds in states.items()
    )
    return "".join(lines).encode()
