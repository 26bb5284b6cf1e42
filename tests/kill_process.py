"""Runs of the command line in processes of their own that can be killed at any moment, hundreds of times.

Run as a program this is a warm process of one thread that has imported the package and forks a child for each run,
so that a kill costs no interpreter start. The children are killed by SIGKILL from outside; nothing in them knows.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Outcome:
    """How a run of process `pid` ended: `code` is None where it was killed; `window_s` since the awaited path appeared.

    `read_bytes` of files below the traced directories, by path; a file that was only opened counts nothing.
    """

    code: int | None
    seconds: float
    window_s: float | None
    read_bytes: Mapping[str, int]
    messages: str
    pid: int


class KillableRuns:
    """The warm process, from the side of a test."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._scratch = scratch
        settings = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kill_process"],
            cwd=Path(__file__).parents[1],
            env={**settings, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "KillableRuns":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(
        self,
        arguments: Iterable[str | Path],
        *,
        kill_after_s: float | None = None,
        after: Path | None = None,
        traced: Iterable[Path] = (),
        noted: Path | None = None,
        peer: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run one command, killed so long after its start, or after `after` appeared. Reads below `traced` are told.

        `noted` is a file that gets a line for each durable operation (`two_processes`). With `peer` it is no command
        but the peers' receiver that runs.
        """
        request = {
            "arguments": [str(argument) for argument in arguments],
            "kill_after_s": kill_after_s,
            "after": None if after is None else str(after),
            "traced": [str(directory) + os.sep for directory in traced],
            "noted": None if noted is None else str(noted),
            "peer": None if peer is None else dict(peer),
            "scratch": str(self._scratch),
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        read_bytes: Counter[str] = Counter()
        for line in (self._scratch / "traced").read_text(encoding="utf-8").splitlines():
            size, _, path = line.partition(" ")
            read_bytes[path] += int(size)
        messages = (self._scratch / "stderr").read_text(encoding="utf-8")
        return Outcome(answer["code"], answer["seconds"], answer["window_s"], read_bytes, messages, answer["pid"])


# ---- the warm process and its children


def _child(request: dict[str, Any], started: int) -> None:
    """Never returns. What it read is written down at once: a kill must not take it along."""
    from tests.two_processes import Notes, receive_as_peer
    from vime_sync import fsio
    from vime_sync.cli import run

    scratch = Path(request["scratch"])
    for descriptor, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(scratch / name, flags, 0o644), descriptor)
    log = os.open(scratch / "traced", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    traced = tuple(request["traced"])
    read_into, read_up_to = fsio.File.read_into, fsio.File.read_up_to

    def note(path: object, size: int) -> None:
        if str(path).startswith(traced):
            os.write(log, f"{size} {path}\n".encode())

    def hook(event: str, details: tuple[object, ...]) -> None:
        if event == "open" and isinstance(details[0], (str, os.PathLike)):
            note(details[0], 0)

    def noted_read_into(file: fsio.File, view: memoryview, offset: int) -> None:
        note(file.path, len(view))
        read_into(file, view, offset)

    def noted_read_up_to(file: fsio.File, size_bytes: int, offset: int) -> bytes:
        piece = read_up_to(file, size_bytes, offset)
        note(file.path, len(piece))
        return piece

    if traced:
        sys.addaudithook(hook)
        mock.patch.object(fsio.File, "read_into", noted_read_into).start()
        mock.patch.object(fsio.File, "read_up_to", noted_read_up_to).start()
    notes = None if request["noted"] is None else Notes(Path(request["noted"]))
    os.write(started, b"x")
    if notes is not None:
        notes.write("starts", "")
        fsio.observer = notes.observe
    if request["peer"] is None:
        code = run(request["arguments"])
    else:
        assert notes is not None
        code = receive_as_peer(notes, request["peer"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    begun, started = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(begun)
            _child(request, started)
        finally:
            os._exit(70)
    os.close(started)
    os.read(begun, 1)
    os.close(begun)
    start = time.perf_counter()
    over = os.pidfd_open(child)
    appeared = None if request["after"] is None else _wait_for(Path(request["after"]), over)
    kill_after_s = request["kill_after_s"]
    if kill_after_s is not None and (request["after"] is None or appeared is not None):
        origin = start if appeared is None else appeared
        _wait_until(origin + kill_after_s, over)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    end = time.perf_counter()
    os.close(over)
    return {
        "code": None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
        "seconds": end - start,
        "window_s": None if appeared is None else end - appeared,
        "pid": child,
    }


def _ended(over: int, timeout_s: float) -> bool:
    return bool(select.select([over], [], [], timeout_s)[0])


def _wait_for(path: Path, over: int) -> float | None:
    """Without a pause: an intent over a few renames is gone within a millisecond."""
    name = str(path)
    while not os.path.exists(name):  # noqa: PTH110
        if _ended(over, 0):
            return None
    return time.perf_counter()


def _wait_until(moment: float, over: int) -> None:
    while (left := moment - time.perf_counter()) > 0 and not _ended(over, left):
        continue


def _no_wait(fd: object) -> None:
    """Instead of a sync."""


def main() -> None:
    import tests.two_processes
    import vime_sync.cli  # imported before the first fork, and for every child

    assert tests.two_processes.Notes is not None
    assert vime_sync.cli.run is not None
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "a process that forks must have one thread"
    # A kill keeps the page cache, so a sync changes nothing here; without waits kills land where bytes change.
    os.fsync = _no_wait
    for line in sys.stdin:
        print(json.dumps(_serve(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
