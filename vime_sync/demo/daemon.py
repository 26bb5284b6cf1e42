"""The real daemon: `vime-sync watch` as a child process, known by its command line, its HTTP side and its log."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vime_sync.demo.children import Child, plain_environment
from vime_sync.demo.telling import Listener
from vime_sync.engines.http import Client
from vime_sync.engines.spec import EngineKind, EngineSettings, EngineSpec
from vime_sync.errors import DemoFailed, EngineUnreachable
from vime_sync.local.paths import LocalPaths

# Nothing here takes a second on an idle machine.
_PATIENCE_S, _LOG_PATIENCE_S, _POLL_S, _WATCH_POLL_S = 90.0, 1.0, 0.01, 0.0002
# What the journal grows by for each block of a tensor that is written (docs/FORMAT.md, 7).
_RECORD_BYTES = 40
_TIME = re.compile(r"^\d{4}-\S+Z ")
_PASS = ": updated from version "
_PORT = re.compile(r"http on port (\d+)")


class Daemon:
    """One LOCAL's daemon, started and ended many times. `engine_url` is what it drives, as a vLLM."""

    def __init__(
        self, root: Path, engine_url: str, listener: Listener, check_stop: Callable[[], None], *, verbose: bool
    ) -> None:
        self._root = root
        self._spec = EngineSpec(EngineKind.VLLM, engine_url)
        self._listener = listener
        self._check_stop = check_stop
        self._verbose = ("--verbose",) if verbose else ()
        self._child: Child | None = None
        self._client: Client | None = None
        self._paths = LocalPaths(root / "local")

    # ---- its lives

    def start(self, *options: str) -> None:
        """`options` come after those that name the places."""
        words = ["watch", "--shared", "share", "--local", "local", "--base", "base"]
        words += ["--engine", str(self._spec), "--http", "127.0.0.1:0", *self._verbose, *options]
        self._listener.say("demo", f"$ vime-sync {' '.join(words)}")
        places = [str(self._root / word) if word in ("share", "local", "base") else word for word in words]
        quick = ["--poll-interval", "0.2", "--engine-interval", "0.5"]
        self._child = Child([sys.executable, "-m", "vime_sync", *places, *quick], plain_environment())
        self._client = None

    def stop(self) -> None:
        """TERM, as an operator does; it ends at a safe point."""
        if self._child is not None:
            self._tell()
            child, self._child = self._child, None
            code = child.end(_PATIENCE_S)
            if code:
                self._check_stop()  # a terminal's Ctrl-C is its second signal
                raise DemoFailed(f"the daemon ended with exit code {code} when it was stopped", hint=_log(child))

    def close(self) -> None:
        """However it went."""
        if self._child is not None:
            child, self._child = self._child, None
            child.end(5.0)

    def kill_in_the_middle(self, blocks: int) -> bool:
        """SIGKILL once so many blocks are written; whether that came before the pass was done."""
        child = self._running()
        deadline = time.monotonic() + _PATIENCE_S
        while _size(self._paths.journal) < blocks * _RECORD_BYTES and not _is_done(child):
            self._check(child, deadline, "begin a pass")
            time.sleep(_WATCH_POLL_S)
        child.kill()
        self._child = None
        return self._paths.intent.exists() and not self._paths.state.exists()

    # ---- what it says

    def wait_until_served(self, version: int, *, is_loaded_anew: bool = True) -> None:
        """Until the engine is known to hold the version, and the host is ready."""
        child = self._running()
        health = f"/healthz/{self._spec.address}"

        def is_served() -> bool:
            found = self._ask(health)
            return found.get("ready") is True and found.get("version") == version

        self._wait(is_served, f"have version {version} served")
        # Its log line comes a moment later, and is to stand before what follows.
        deadline = time.monotonic() + _LOG_PATIENCE_S
        while is_loaded_anew and time.monotonic() < deadline:
            if any(f": loaded version {version} in " in line for line in child.lines):
                break
            time.sleep(_POLL_S)
        self._tell()

    def wait_until_refused(self, version: int) -> dict[str, Any]:
        """Until it says that this published version is no good; the error."""

        def is_refused() -> bool:
            problem = self._ask("/status").get("last_error")
            return isinstance(problem, dict) and problem.get("version") == version

        self._wait(is_refused, f"refuse version {version}")
        refused: dict[str, Any] = self._ask("/status")["last_error"]
        return refused

    def passes_and_loads(self) -> tuple[int, int]:
        """How often it says that it changed the version, and had an engine load, since it was started."""
        lines = self._running().lines
        return sum(_PASS in line for line in lines), sum(": loaded version " in line for line in lines)

    def _wait(self, condition: Callable[[], bool], doing: str) -> None:
        child = self._running()
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            self._check(child, deadline, doing)
            self._tell()
            time.sleep(_POLL_S)
        self._tell()

    def _check(self, child: Child, deadline: float, doing: str) -> None:
        self._check_stop()
        if child.exit_code is not None:
            raise DemoFailed(
                f"the daemon ended with exit code {child.exit_code}, expected it to {doing}", hint=_log(child)
            )
        if time.monotonic() > deadline:
            raise DemoFailed(f"the daemon did not {doing} in {_PATIENCE_S:.0f} s", hint=_log(child))

    def _ask(self, path: str) -> dict[str, Any]:
        """What it answers over HTTP; nothing while it does not listen yet."""
        if self._client is None:
            ports = [found for line in self._running().lines if (found := _PORT.search(line))]
            if not ports:
                return {}
            # Of this client only the asking is used: it takes no proxies, and bounds its answers.
            url = f"http://127.0.0.1:{ports[0][1]}"
            self._client = Client(EngineSpec(EngineKind.WEBHOOK, url), EngineSettings())
        try:
            return dict(self._client.ask(path).fields)
        except EngineUnreachable:
            return {}

    def _tell(self) -> None:
        for line in self._running().new_lines():
            text = _TIME.sub("", line).replace(f"{self._root}/", "")
            self._listener.say("daemon", text)

    def _running(self) -> Child:
        assert self._child is not None, "the daemon was not started"
        return self._child


def _is_done(child: Child) -> bool:
    """Whether it says that a pass has ended."""
    return any(_PASS in line for line in child.lines)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _log(child: Child) -> str:
    return "It said last: " + (" / ".join(child.lines[-3:]) or "nothing")
