"""Commands in processes of their own, each with a limit on address space, on processor time and on the clock.

A helper process imports the program once and forks for each command, so that a command costs milliseconds. What a limit
ends shows as a signal, and never as an exit code of the program.
"""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.toolkit import Result, parse_result

# On top of what the imported program takes: two threads' stacks and blocks, and decoders with their windows.
MEMORY_BYTES = 256 << 20
PROCESSOR_S = 20
# Generous: the machine may be busy. A command that needs it hangs.
CLOCK_S = 120
# Memory ran out and nobody took notice.
EXHAUSTED = 99
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "VIME_SYNC_THREADS": "2"}


class Limited:
    """Runs `vime-sync` commands within the limits; a context manager that leaves no process behind."""

    def __enter__(self) -> "Limited":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
        environment |= {**_SETTINGS, "PYTHONPATH": str(Path(__file__).parents[2])}
        self._helper = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.limits"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._helper.stdin is not None and self._helper.stdout is not None
        self._helper.stdin.close()
        self._helper.stdout.close()
        self._helper.wait(timeout=CLOCK_S)

    def vime(self, *args: str | Path) -> Result:
        """The exit code is minus a signal's number where one ended the command: a limit, or a crash."""
        return self._ask({"args": [*map(str, args)]})

    def exhaust(self, what: str) -> Result:
        """Take more `memory` or `time` than a command may have."""
        return self._ask({"exhaust": what})

    def _ask(self, request: dict[str, Any]) -> Result:
        assert self._helper.stdin is not None and self._helper.stdout is not None
        with tempfile.TemporaryDirectory() as directory:
            out, err = Path(directory, "out"), Path(directory, "err")
            self._helper.stdin.write(json.dumps({**request, "out": str(out), "err": str(err)}) + "\n")
            self._helper.stdin.flush()
            code = int(self._helper.stdout.readline())
            return parse_result(code, out.read_bytes(), err.read_bytes())


def limit(memory_bytes: int = MEMORY_BYTES, processor_s: int = PROCESSOR_S) -> None:
    """From here on this process cannot have more than that on top of what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _command(request: dict[str, Any]) -> int:
    """In the forked process; returns the exit code."""
    from vime_sync.cli import run

    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    what = request.get("exhaust")
    limit(processor_s=1 if what == "time" else PROCESSOR_S)
    signal.setitimer(signal.ITIMER_REAL, CLOCK_S)  # its default is to end the process
    if what == "memory":
        return len(bytearray(2 * MEMORY_BYTES)) & 1
    while what == "time":
        pass
    code = run(request["args"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _serve() -> None:
    from vime_sync.cli import run

    with contextlib.redirect_stdout(io.StringIO()):  # whatever is loaded at the first use is loaded before any fork
        assert run(["inspect", str(Path(__file__).parent / "files" / "base")]) == 0
    for line in sys.stdin:
        child = os.fork()
        if not child:
            code = EXHAUSTED
            with contextlib.suppress(MemoryError):
                code = _command(json.loads(line))
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
