"""`vime-sync watch` in a process of its own, as an operator runs it, seen through its HTTP side and its log."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import requests

from tests.host import Host
from tests.real_vllm.process_group import end_group, until
from tests.real_vllm.server import CHECKOUT, Server, free_port

Status = dict[str, Any]


class Daemon:
    """Up inside the `with` block, which it must leave by TERM with exit code 0 unless it was killed before."""

    def __init__(self, host: Host, *options: str, engines: tuple[Server | str, ...] = ()) -> None:
        self._host = host
        self.url = f"http://127.0.0.1:{free_port()}"
        self.acks = host.root / "acks"
        self._log = host.root / "watch.log"
        self._engines = tuple(f"vllm={engine if isinstance(engine, str) else engine.url}" for engine in engines)
        keys = [engine.api_key for engine in engines if isinstance(engine, Server) and engine.api_key is not None]
        self._keys = {"VIME_SYNC_ENGINE_API_KEY": keys[0]} if keys else {}
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Daemon":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            sys.stderr.write(f"\n---- {self.url}\n{self.log_text()}\n")
            self.kill()
        elif self._process is not None:
            self.stop()

    # ---- its lives

    def start(self, *more_options: str) -> None:
        assert self._process is None, "it runs already"
        self.acks.mkdir(exist_ok=True)
        host = self._host
        engines = [word for url in self._engines for word in ("--engine", url)]
        places = ["--shared", host.shared, "--local", host.local, "--base", host.base, "--ack-dir", self.acks]
        settings = ["--host-name", "rollout", "--http", self.url.removeprefix("http://"), "--log-format", "json"]
        speed = ["--poll-interval", "0.2", "--engine-interval", "0.5", "--threads", "2"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
        words = [str(word) for word in (*places, *settings, *speed, *engines, *self._options, *more_options)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vime_sync", "watch", *words],
                cwd=CHECKOUT,
                env={**inherited, **self._keys, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def terminate(self) -> None:
        """One TERM; it ends when it is at a safe point."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit code."""
        assert self._process is not None
        code = self._process.wait(60)
        self._process = None
        return code

    def stop(self) -> None:
        self.terminate()
        assert self.wait() == 0, self.log_text()

    def kill(self) -> None:
        """SIGKILL, to whatever it is in the middle of."""
        if self._process is not None:
            end_group(self._process.pid)
            self._process.wait()
            self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # ---- what it tells

    def log_text(self) -> str:
        """All of its lives."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def get(self, path: str) -> tuple[int, str]:
        with requests.Session() as session:
            session.trust_env = False
            response = session.get(self.url + path, timeout=30)
            return response.status_code, response.text

    def status(self) -> Status | None:
        """None while it does not answer, or has nothing to tell yet."""
        assert self.is_running, f"the daemon has ended:\n{self.log_text()}"
        try:
            code, text = self.get("/status")
        except requests.RequestException:
            return None
        document: Status = json.loads(text)
        return document if code == 200 else None

    def until_status(self, fits: Callable[[Status], bool], what: str) -> Status:
        """The first status document that fits."""

        def look() -> Status | None:
            document = self.status()
            return document if document is not None and fits(document) else None

        return until(look, lambda: f"{what}; status {self.status()}\n{self.log_text()}")

    def until_served(self, version: int) -> Status:
        """Every engine serves that version, and this host says that it is ready."""

        def fits(document: Status) -> bool:
            engines = [(engine["state"], engine["version"]) for engine in document["engines"]]
            is_there = document["local_version"] == version and set(engines) == {("at_version", version)}
            return is_there and self.get("/healthz")[0] == 200

        return self.until_status(fits, f"version {version} is not served")

    def until_failed(self, words: str = "") -> str:
        """Some engine is given up; the error that is told, which has those words."""

        def look() -> str | None:
            document = self.status() or {"engines": []}
            errors = [engine["error"] for engine in document["engines"] if engine["state"] == "failed"]
            return errors[0] if errors else None

        error = until(look, lambda: f"no engine failed; status {self.status()}\n{self.log_text()}")
        assert words in error, error
        return error

    def until_log(self, words: str, times: int = 1) -> None:
        until(lambda: self.log_text().count(words) >= times, lambda: f"no {words!r} in\n{self.log_text()}")

    def until_file(self, path: Path) -> None:
        until(path.exists, lambda: f"no {path}\n{self.log_text()}")

    def engine(self, url: str) -> dict[str, Any]:
        """One engine of the status, as it stands now."""
        document = self.until_status(lambda _: True, "no status")
        return next(engine for engine in document["engines"] if engine["url"] == url)

    def ack(self) -> dict[str, Any]:
        """What this host tells trainers that it holds."""
        (file,) = [path for path in self.acks.iterdir() if not path.name.startswith(".")]
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return document
