"""A real vLLM server under a story's control: started, asked, killed, started again on the same port.

Weights lie on disk as bf16 and are computed with as 32 bit floats, so that the order of sums (tensor parallel or not,
cached or not) never decides about a greedy token. Nothing is left behind: no process, no shared memory, no file.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import requests

from tests.real_vllm.process_group import end_group, until
from tests.real_vllm.tiny_model import MAX_TOKENS

# The interpreter of the environment that has vLLM; scripts/test-vllm sets it.
PYTHON_VARIABLE = "VIME_SYNC_VLLM_PYTHON"
MODEL_NAME = "tiny"
ANSWER_TOKENS = 16
CHECKOUT = Path(__file__).resolve().parents[2]
_REQUEST_S = 60.0
# A start takes half a minute of processor time, and several may go on at once on a busy machine.
_START_S = 420.0

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    # One thread each, on any core: several servers share few cores, and vLLM's threads wait by spinning.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "PYTHONUNBUFFERED": "1",
    # For the extension, and for what the stories themselves run in a worker.
    "PYTHONPATH": str(CHECKOUT),
}


@dataclass(frozen=True)
class Completion:
    """A greedy answer: what it says, and how sure of each token the model is."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def is_same(self, other: "Completion") -> bool:
        """Token by token; the probabilities may differ by what the order of sums makes."""
        if self.token_ids != other.token_ids or len(self.logprobs) != len(other.logprobs):
            return False
        return all(abs(mine - its) < 1e-3 for mine, its in zip(self.logprobs, other.logprobs, strict=True))


class Server:
    """Up inside the `with` block. `url` and `port` stay the same over a restart."""

    def __init__(
        self,
        model_dir: Path,
        port: int | None = None,
        *,
        tensor_parallel: int = 1,
        extension: str | None = None,
        api_key: str | None = None,
        dev_mode: bool = True,
        environment: Mapping[str, str] | None = None,
        extra_args: Sequence[str] = (),
    ) -> None:
        self.model_dir = model_dir
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._tensor_parallel = tensor_parallel
        self._extension = extension
        self.api_key = api_key
        self._dev_mode = dev_mode
        self._environment = dict(environment or {})
        self._extra_args = tuple(extra_args)
        self._process: subprocess.Popen[bytes] | None = None
        # Short, for the sockets in it: a socket's path has a small limit.
        self._scratch = Path(tempfile.mkdtemp(prefix="vllm-"))
        self.log = self._scratch / "log"

    def __enter__(self) -> "Server":
        try:
            self.launch()
            self.wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            sys.stderr.write(f"\n---- end of the log of {self.url}\n{self.log_tail()}\n")
        self.close()

    # ---- its lives

    def launch(self) -> None:
        """Start the process; it is up some 25 seconds later."""
        assert self._process is None, "it runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env={**self.environment()},
                cwd=self._scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        """Return when it answers that it is healthy; fails with the end of its log when it dies before that."""

        def is_up() -> bool:
            assert self._process is not None, "it was never launched"
            code = self._process.poll()
            assert code is None, f"vLLM ended with {code} before it was up:\n{self.log_tail()}"
            return self.is_healthy()

        until(is_up, lambda: f"vLLM does not come up:\n{self.log_tail()}", _START_S)

    def kill(self) -> None:
        """SIGKILL to the server and its children, as the kernel does when memory is short."""
        if self._process is not None:
            end_group(self._process.pid)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ask it to end, and kill what does not."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
            self.kill()

    def ensure_up(self) -> None:
        """Launched now, unless it is up."""
        if self._process is None or self._process.poll() is not None:
            self.kill()
            self.launch()
        self.wait_until_up()

    def restart(self) -> None:
        """Killed and started anew, with the weights that it was started with."""
        self.kill()
        self.launch()
        self.wait_until_up()

    def wait_until_dead(self) -> None:
        """After an accident that it does not survive."""
        assert self._process is not None
        until(lambda: self._process is None or self._process.poll() is not None, "vLLM lives on")
        self.kill()

    def close(self) -> None:
        """The end of all of its lives."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    # ---- how it is started

    def command(self) -> list[str]:
        python = os.environ.get(PYTHON_VARIABLE)
        assert python, f"{PYTHON_VARIABLE} names no interpreter that has vLLM: run scripts/test-vllm"
        named_options = {
            "--model": self.model_dir,
            "--served-model-name": MODEL_NAME,
            "--host": "127.0.0.1",
            "--port": self.port,
            "--dtype": "float32",
            "--max-model-len": MAX_TOKENS,
            "--max-num-seqs": 4,
        }
        if self._tensor_parallel > 1:
            named_options["--tensor-parallel-size"] = self._tensor_parallel
        if self._extension is not None:
            named_options["--worker-extension-cls"] = self._extension
        if self.api_key is not None:
            named_options["--api-key"] = self.api_key
        options = [str(word) for option in named_options.items() for word in option]
        flags = ["--enforce-eager", "--enable-prefix-caching"]
        return [python, "-m", "vllm.entrypoints.openai.api_server", *options, *flags, *self._extra_args]

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VIME_SYNC_", "VLLM_"))}
        own = {"TMPDIR": str(self._scratch), "VLLM_CACHE_ROOT": str(self._scratch / "cache")}
        if self._dev_mode:
            own["VLLM_SERVER_DEV_MODE"] = "1"
        return {**inherited, **_ENVIRONMENT, **own, **self._environment}

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def log_text(self) -> str:
        """All of its lives."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def until_log(self, words: str, times: int = 1) -> None:
        """Return when its log, over all of its lives, has the words that often."""
        until(lambda: self.log_text().count(words) >= times, lambda: f"no {words!r} in\n{self.log_tail()}")

    # ---- what it is asked

    def ask(self, path: str, body: Any = None, *, method: str | None = None, timeout_s: float = _REQUEST_S) -> Any:
        """The response, over a connection of its own. GET without a body, POST with one ({}: an empty POST)."""
        with requests.Session() as session:
            session.trust_env = False
            session.headers["Connection"] = "close"
            if self.api_key is not None:
                session.headers["Authorization"] = f"Bearer {self.api_key}"
            verb = method or ("GET" if body is None else "POST")
            return session.request(verb, self.url + path, json=body or None, timeout=timeout_s)

    def is_healthy(self) -> bool:
        try:
            return bool(self.ask("/health", timeout_s=5).status_code == 200)
        except requests.RequestException:
            return False

    def is_paused(self) -> bool:
        return bool(self.ask("/is_paused").json()["is_paused"])

    def weight_version(self) -> str:
        return str(self.ask("/weight_info").json()["weight_version"])

    def call(self, method: str, **arguments: Any) -> Any:
        """A collective call that must succeed: the ranks' results."""
        response = self.ask("/collective_rpc", {"method": method, "kwargs": arguments})
        assert response.status_code == 200, response.text
        return response.json()["results"]

    def complete(self, prompt: str, max_tokens: int = ANSWER_TOKENS) -> Completion:
        """The greedy answer, which must come."""
        request = {
            "model": MODEL_NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        response = self.ask("/v1/completions", request)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        assert choice["finish_reason"] == "length", choice
        return Completion(choice["text"], tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]))


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
