"""The embedded engine: a small HTTP server that speaks as much of vLLM as the daemon asks for.

It really loads: told to reload, it reads the directory's files with the safetensors library into memory of its own,
and every later answer is computed from them. Paused, it lets requests wait, as vLLM does. Lives in threads of this
process, on a loopback port of its own.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vime_sync.demo.models import Model
from vime_sync.demo.weights import Weights, read_weights

_LOOPBACK = "127.0.0.1"
_STOP_POLL_S = 0.1
# What a paused engine lets a request wait at most: whoever asked has gone by then.
_PATIENCE_S = 60.0

Answer = tuple[int, Mapping[str, Any]]


class EmbeddedEngine:
    """Up from the moment it is made, with the base loaded, until `close`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._weights: Weights = read_weights(model.base)
        self._weight_version = "default"
        self._is_open = threading.Event()
        self._is_open.set()
        self._guard = threading.Lock()  # one load or answer at a time
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_STOP_POLL_S,), name="demo-engine", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self._server.server_address[1]}"

    def close(self) -> None:
        self._is_open.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ---- what it answers

    def answer(self, method: str, path: str, body: Mapping[str, Any]) -> Answer:
        endpoint = _ENDPOINTS.get((method, path))
        return (404, {"detail": "Not Found"}) if endpoint is None else endpoint(self, body)

    def _health(self, body: Mapping[str, Any]) -> Answer:
        return 200, {}

    def _weight_info(self, body: Mapping[str, Any]) -> Answer:
        return 200, {"weight_version": self._weight_version}

    def _is_paused(self, body: Mapping[str, Any]) -> Answer:
        return 200, {"is_paused": not self._is_open.is_set()}

    def _is_sleeping(self, body: Mapping[str, Any]) -> Answer:
        return 200, {"is_sleeping": False}

    def _world_size(self, body: Mapping[str, Any]) -> Answer:
        return 200, {"world_size": 1}

    def _pause(self, body: Mapping[str, Any]) -> Answer:
        self._is_open.clear()
        with self._guard:  # what is being answered ends first
            return 200, {"status": "paused"}

    def _resume(self, body: Mapping[str, Any]) -> Answer:
        self._is_open.set()
        return 200, {"status": "resumed"}

    def _reset_cache(self, body: Mapping[str, Any]) -> Answer:
        return 200, {"success": True}

    def _update_version(self, body: Mapping[str, Any]) -> Answer:
        self._weight_version = str(body.get("new_version"))
        return 200, {"success": True, "new_version": self._weight_version}

    def _collective_rpc(self, body: Mapping[str, Any]) -> Answer:
        if body.get("method") != "reload_weights":
            return 400, {"error": {"message": f"unknown method {body.get('method')!r}"}}
        with self._guard:
            try:
                self._weights = self._loaded(Path(body["kwargs"]["weights_path"]))
            except (OSError, ValueError, KeyError, TypeError) as problem:
                return 500, {"error": {"message": f"reload_weights: {problem}"}}
        return 200, {"results": [None]}

    def _loaded(self, directory: Path) -> Weights:
        """Raises ValueError for weights of another model."""
        weights = read_weights(directory)
        wanted = {name: (weight.dtype, weight.bits.shape) for name, weight in self._weights.items()}
        found = {name: (weight.dtype, weight.bits.shape) for name, weight in weights.items()}
        if found != wanted:
            odd = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
            raise ValueError(f"tensors are not those of the model: {', '.join(odd[:3])}")
        return weights

    def _models(self, body: Mapping[str, Any]) -> Answer:
        return 200, {"object": "list", "data": [{"id": "demo", "object": "model"}]}

    def _complete(self, body: Mapping[str, Any]) -> Answer:
        if not self._is_open.wait(_PATIENCE_S):
            return 503, {"error": {"message": "still paused"}}
        with self._guard:
            choice = self._model.task.choice(self._weights)
        return 200, {"object": "text_completion", "model": "demo", "choices": [{"index": 0, **choice}]}


_ENDPOINTS: dict[tuple[str, str], Callable[[EmbeddedEngine, Mapping[str, Any]], Answer]] = {
    ("GET", "/health"): EmbeddedEngine._health,
    ("GET", "/weight_info"): EmbeddedEngine._weight_info,
    ("GET", "/is_paused"): EmbeddedEngine._is_paused,
    ("GET", "/is_sleeping"): EmbeddedEngine._is_sleeping,
    ("GET", "/get_world_size"): EmbeddedEngine._world_size,
    ("GET", "/v1/models"): EmbeddedEngine._models,
    ("POST", "/pause"): EmbeddedEngine._pause,
    ("POST", "/resume"): EmbeddedEngine._resume,
    ("POST", "/reset_prefix_cache"): EmbeddedEngine._reset_cache,
    ("POST", "/update_weight_version"): EmbeddedEngine._update_version,
    ("POST", "/collective_rpc"): EmbeddedEngine._collective_rpc,
    ("POST", "/v1/completions"): EmbeddedEngine._complete,
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        super().__init__((_LOOPBACK, 0), _Handler)

    def server_bind(self) -> None:
        """Without the name look-up of HTTPServer, which can hang, and whose result nobody uses."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = _LOOPBACK, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is the client's affair."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            body = None
        self._answer(body if isinstance(body, dict) else {})

    def _answer(self, body: Mapping[str, Any]) -> None:
        status, document = self.server.engine.answer(str(self.command), urlsplit(self.path).path, body)
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """No access log: the demo tells what happens."""
