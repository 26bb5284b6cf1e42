"""`--settings FILE`: settings as `VIME_SYNC_<OPTION>=value` lines, as in a systemd unit's environment file.

They stand in for the environment and win over it, so that a daemon can read the file anew (signal HUP); options on
the command line win over both.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from vime_sync.errors import UsageError

PREFIX = "VIME_SYNC_"


def read_settings(path: Path) -> dict[str, str]:
    """Raises UsageError. Names of others are passed over: a unit's file may hold them too."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is no text"
        raise UsageError(f"--settings {path} cannot be read: {reason}") from None
    settings = {}
    for number, line in enumerate(lines, start=1):
        if line.lstrip()[:1] in ("#", ";"):
            continue
        try:
            words = shlex.split(line)  # a # inside a value is part of it, as for systemd and sh
        except ValueError as problem:
            raise UsageError(f"--settings {path}, line {number}: {problem}") from None
        comment = next((place for place, word in enumerate(words) if word.startswith("#")), len(words))
        words = words[:comment]
        if words[:1] == ["export"]:
            words = words[1:]
        if not words:
            continue
        name, equals, value = words[0].partition("=")
        if len(words) > 1 or not equals or "\0" in line:
            raise UsageError(
                f"--settings {path}, line {number}, expected NAME=value",
                hint="Put a value with spaces between quotes.",
            )
        if name.startswith(PREFIX):
            settings[name] = value
    return settings


class SettingsSource:
    """The file of one process, put into the environment while the command runs."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._replaced: dict[str, str | None] = {}

    def use(self, path: Path) -> None:
        """Raises UsageError."""
        self._path = path
        self.read_again()

    def read_again(self) -> None:
        """What the file does not name any more is again as the environment had it. Raises UsageError."""
        if self._path is None:
            return
        settings = read_settings(self._path)
        self.give_back()
        self._replaced = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)

    def give_back(self) -> None:
        for name, value in self._replaced.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._replaced = {}
