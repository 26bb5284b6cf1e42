"""The processes of the long runs: a daemon and a fake engine, each started, killed and started again.

Owns their lives and what the kernel says of them; what they are to hold is not known here. Whoever makes one ends it
(`end`): none outlives its test.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fake_http import bound_socket
from tests.fake_weights import weights_digest

ROOT = Path(__file__).parents[1]
# A daemon that is told to end is given this long, whatever it is doing.
TERM_S = 10.0
_ASK_S = 10.0
_TAIL_BYTES = 3000
# What a daemon logs once it listens to signals; the interpreter's own start is over then.
_LISTENING = "watching "


@dataclass(frozen=True)
class Figures:
    """What a process takes, by proc(5)."""

    resident_bytes: int
    descriptors: int
    threads: int


def environment() -> dict[str, str]:
    """Ours without any setting of the product, and with one thread for numpy, which multiplies nothing here."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    return {**settings, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Process:
    """One place in the story that processes take one after the other; all write to the same log."""

    def __init__(self, arguments: Sequence[str | Path], log: Path) -> None:
        self._arguments = [str(argument) for argument in arguments]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begins = 0

    @property
    def is_up(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is down"
        return self._process.pid

    def start(self) -> None:
        assert self._process is None, "it is up already"
        with self.log.open("ab") as log:
            self._log_begins = log.tell()
            self._process = subprocess.Popen(
                self._arguments, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """SIGKILL, and reaped."""
        assert self._process is not None, "it is down"
        self._process.kill()
        self._process.wait()
        self._process = None

    def end(self) -> None:
        """For the end of a test, whatever state it is in."""
        if self._process is not None:
            self.kill()

    def check_alive(self) -> None:
        """Nothing here ends unless it is told to."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise AssertionError(f"process {self._process.pid} ended by itself with {code}:\n{self.tail()}")

    def said(self) -> str:
        """All that the present process has logged."""
        with self.log.open("rb") as log:
            log.seek(self._log_begins)
            return log.read().decode("utf-8", "replace")

    def tail(self) -> str:
        return self.log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")


class WatchProcess(Process):
    """`vime-sync watch`; `wrapper` is a command that ends by becoming it."""

    def __init__(self, options: Sequence[str | Path], log: Path, wrapper: Sequence[str | Path] = ()) -> None:
        super().__init__([*wrapper, sys.executable, "-m", "vime_sync", "watch", *options], log)

    def ask_to_end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def expect_end(self, what: str = "the daemon") -> None:
        """After TERM: it ends with 0 and in time. Before it listens to signals nothing is promised."""
        assert self._process is not None, "it is down"
        try:
            code = self._process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{what} still runs {TERM_S:g} s after TERM:\n{self.tail()}") from None
        self._process = None
        allowed = (0,) if _LISTENING in self.said() else (0, -signal.SIGTERM)
        assert code in allowed, f"{what} ended with {code} after TERM:\n{self.tail()}"

    def figures(self) -> Figures:
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines()
        )
        descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208  names that are gone at the next look
        return Figures(int(fields["VmRSS"].split()[0]) * 1024, descriptors, int(fields["Threads"]))

    def cpu_seconds(self) -> float:
        """Used so far, in the kernel and outside of it."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def children(self) -> list[int]:
        """Of all its threads, dead ones that nobody waited for among them."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                found += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
            except FileNotFoundError:
                continue  # this thread has ended
        return found


class EngineProcess(Process):
    """The fake vLLM in a process of its own, always at one port. `life` counts how often it was killed."""

    def __init__(self, base: Path, log: Path) -> None:
        # Bound, never listening: nobody else is given the port while the engine is down.
        self._reserved = bound_socket(0)
        self.port: int = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.life = 0
        arguments = (sys.executable, "-m", "tests.fake_vllm", "--port", str(self.port), "--model", base)
        super().__init__(arguments, log)

    def kill(self) -> None:
        self.life += 1  # before: what was answered while it still was the same is of the life that was
        super().kill()

    def end(self) -> None:
        super().end()
        self._reserved.close()

    def loaded_digest(self) -> str | None:
        """One digest of all that it holds, as `fake_weights.weights_digest`; None where it does not answer."""
        document = self.ask("/fake/loaded")
        if document is None:
            return None
        (rank,) = document["ranks"]
        return weights_digest(rank["tensors"])

    def ask(self, path: str) -> Any:
        """A JSON answer to a GET; None while it is down or just starting."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}{path}", timeout=_ASK_S) as response:
                return json.loads(response.read())
        except OSError:
            return None
