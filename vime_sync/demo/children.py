"""Child processes: started without settings from outside, listened to line by line, and always ended.

They stay in the process group of the demo, so that a terminal's Ctrl-C reaches them too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

# What systemd gives a service; a child is none.
_SERVICE_VARIABLES = {"JOURNAL_STREAM", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}


def plain_environment() -> dict[str, str]:
    """The environment without settings of ours: the demo touches nobody's directories but its own."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("VIME_SYNC_") and name not in _SERVICE_VARIABLES
    }


class Child:
    """A process whose output, both streams, is kept by lines."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path | None = None) -> None:
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.lines: list[str] = []
        self._told = 0
        self._reader = threading.Thread(target=self._read, name="demo-reader", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed under it
            for line in self._process.stdout:
                self.lines.append(line.rstrip("\n"))

    def new_lines(self) -> list[str]:
        """Those that came since the last time."""
        found = self.lines[self._told :]
        self._told += len(found)
        return found

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> int:
        """SIGKILL; returns the exit code."""
        self._process.kill()
        return self._reaped()

    def end(self, patience_s: float) -> int:
        """TERM, and a kill for what does not end; returns the exit code."""
        self._process.terminate()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._reaped()

    def _reaped(self) -> int:
        code = self._process.wait()
        self._reader.join(timeout=5)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        return code
