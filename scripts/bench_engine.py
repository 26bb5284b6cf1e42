"""An engine as the bench needs one: a webhook that notes when it was told of which version, and answers at once."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

_PATIENCE_S = 60.0


class Engine:
    """Up inside the `with` block."""

    def __init__(self) -> None:
        self._told: dict[int, float] = {}
        self._changed = threading.Condition()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                arrived = time.monotonic()
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                engine._note(int(document["version"]), arrived)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Engine:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/reload"

    def _note(self, version: int, arrived: float) -> None:
        with self._changed:
            self._told.setdefault(version, arrived)
            self._changed.notify_all()

    def wait_for(self, version: int) -> float:
        """When (on the monotonic clock) the engine was first told of the version."""
        with self._changed:
            if not self._changed.wait_for(lambda: version in self._told, _PATIENCE_S):
                raise RuntimeError(f"the engine was not told of version {version}")
            return self._told[version]
