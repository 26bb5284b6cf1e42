"""A real vLLM as the engine of the demo, where one is installed: a child process on a loopback port of its own."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vime_sync import fsio
from vime_sync.demo.children import Child, plain_environment
from vime_sync.demo.made import MAX_TOKENS
from vime_sync.demo.models import Model
from vime_sync.engines.http import Client
from vime_sync.engines.spec import EngineKind, EngineSettings, EngineSpec
from vime_sync.errors import EngineUnreachable, UsageError

_START_S, _POLL_S, _END_S = 420.0, 0.2, 30.0
_LOG_LINES = 3
_SERVER = ("-m", "vllm.entrypoints.openai.api_server", "--model")
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the endpoints by which it is paused and reloaded
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def vllm_command() -> list[str]:
    """How a vLLM is started here, the model's directory coming next. Raises UsageError where none is installed."""
    if importlib.util.find_spec("vllm") is not None:
        return [sys.executable, *_SERVER]
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and _can_run(Path(folder) / "vllm"):
            # The interpreter beside it, where there is one: `vllm serve` of builds for CPUs does not find itself.
            python = Path(folder) / "python"
            return [str(python), *_SERVER] if _can_run(python) else [str(Path(folder) / "vllm"), "serve"]
    raise UsageError(
        "--vllm is given, but no vLLM is installed: neither as a package beside this one nor as `vllm` on PATH",
        hint="Install vLLM, or leave --vllm out: the embedded engine goes the same way.",
    )


def _can_run(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)


class RealVllm:
    """Started with the base when it is made, and ended by `close`."""

    def __init__(self, command: Sequence[str], model: Model, scratch: Path, check_stop: Callable[[], None]) -> None:
        fsio.make_directory(scratch)
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = {
            "--served-model-name": "demo",
            "--host": "127.0.0.1",
            "--port": str(port),
            # The answers are held against 64 bit floats.
            "--dtype": "float32",
            "--max-model-len": str(MAX_TOKENS),
            "--max-num-seqs": "2",
        }
        words = [word for option in options.items() for word in option]
        environment = {**plain_environment(), **_ENVIRONMENT, "VLLM_CACHE_ROOT": str(scratch / "cache")}
        self._child = Child([*command, str(model.base), *words, "--enforce-eager"], environment, scratch)
        try:
            self._wait_until_up(check_stop)
        except BaseException:
            self.close()
            raise

    def _wait_until_up(self, check_stop: Callable[[], None]) -> None:
        client = Client(EngineSpec(EngineKind.VLLM, self.url), EngineSettings())
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            check_stop()
            if self._child.exit_code is not None:
                break
            try:
                if client.ask("/health").is_success:
                    return
            except EngineUnreachable:
                time.sleep(_POLL_S)
        tail = " / ".join([line.strip() for line in self._child.lines if line.strip()][-_LOG_LINES:])
        raise EngineUnreachable(
            f"vLLM did not come up (exit code {self._child.exit_code}); the end of its log: {tail}",
            hint="Try `vllm serve` by hand, or leave --vllm out.",
        )

    def close(self) -> None:
        self._child.end(_END_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
