"""The real `watch` process under the test's eyes: its log, its HTTP side, its exit code."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests import toolkit
from tests.daemon_story import SAFETY_S, eventually, state_of
from tests.fake_vllm import FakeVllm
from tests.host import Host

ROOT = Path(__file__).parents[1]


class WatchProcess:
    """`vime-sync watch` for a host. `lines` is what it has said on stderr so far."""

    def __init__(self, host: Host, options: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self.host = host
        self.lines: list[str] = []
        self._said = threading.Condition()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vime_sync", *map(str, options)],
            env={**clean, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", **environment},
            cwd=host.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="watch-stderr", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()

    def wait_for_line(self, *parts: str, count: int = 1) -> str:
        """The last of the first `count` lines that hold all the parts, once there are so many."""

        def found() -> list[str]:
            return [line for line in self.lines if all(part in line for part in parts)]

        with self._said:
            arrived = self._said.wait_for(lambda: len(found()) >= count or not self._reader.is_alive(), SAFETY_S)
        assert arrived and len(found()) >= count, f"{parts} was not said {count} times:\n" + "\n".join(self.lines)
        return found()[count - 1]

    def told(self, *parts: str) -> list[str]:
        return [line for line in self.lines if all(part in line for part in parts)]

    def wait_for_version(self, version: int, *, durable: bool = False) -> None:
        def there() -> bool:
            assert self.process.poll() is None, "\n".join(self.lines)
            state = state_of(self.host)
            return state.get("version") == version and (state["durable"] or not durable)

        eventually(there, f"version {version}; said:\n" + "\n".join(self.lines[-20:]))

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, and its exit code."""
        self.send(number)
        return self.code()

    def code(self) -> int:
        """Its exit code, once it has ended by itself."""
        code = self.process.wait(SAFETY_S)
        self._reader.join(SAFETY_S)
        return code

    @property
    def port(self) -> int:
        return int(self.wait_for_line("http on port").rpartition(" ")[2].rstrip("}"))

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SAFETY_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """`name` or `name{label=value,...}` -> value."""
        found = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1].decode()):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def wait_for_polls(self, count: int) -> None:
        """Until it has looked at the share so many times more."""
        wanted = self.metrics()["vime_sync_polls_total"] + count
        eventually(lambda: self.metrics()["vime_sync_polls_total"] >= wanted, f"{count} more looks")

    def proc(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_text(encoding="utf-8")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SAFETY_S)
        self._reader.join(SAFETY_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def watching(
    host: Host,
    *options: str | Path,
    engines: Sequence[str] = (),
    poll_interval_s: float = 0.05,
    environment: Mapping[str, str] | None = None,
) -> Iterator[WatchProcess]:
    """The command with this host's three directories and an HTTP port; killed at the end if it still runs."""
    arguments: list[str | Path] = ["watch", "--local", host.local, "--shared", host.shared, "--base", host.base]
    arguments += ["--poll-interval", str(poll_interval_s), "--engine-interval", "0.1", "--http", "127.0.0.1:0"]
    arguments += [word for engine in engines for word in ("--engine", engine)]
    with any_watch(host, *arguments, *options, environment=environment) as process:
        yield process


@contextmanager
def any_watch(
    host: Host, *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> Iterator[WatchProcess]:
    """The command line with exactly these arguments."""
    process = WatchProcess(host, arguments, environment or {})
    try:
        yield process
    finally:
        process.close()


def reloads(fake: FakeVllm) -> int:
    return len(fake.told("/collective_rpc"))


def wait_ready(watch: WatchProcess, version: int) -> None:
    def ready() -> bool:
        if watch.get("/healthz")[0] != 200:
            return False
        document = json.loads(watch.get("/status")[1])
        return bool(document["local_version"] == version)

    eventually(ready, f"ready at version {version}; said:\n" + "\n".join(watch.lines[-15:]))


def large_host(root: Path) -> Host:
    """One whose passes take long enough for a signal to come in the middle."""
    return Host.create(root, model=toolkit.make_model(seed=5, tensors=40, kib=32 << 10), shards=4)


def wait_for_path(path: Path) -> None:
    eventually(path.exists, str(path))
