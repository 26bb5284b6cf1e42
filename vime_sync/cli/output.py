"""What is printed, and where: documents to stdout, messages to stderr."""

from __future__ import annotations

import contextlib
import json as json_module
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from vime_sync.cli.progress import show_progress
from vime_sync.cli.style import Line, Text, Tone, one_line, screen_of, shown
from vime_sync.cli.table import Table, table_lines
from vime_sync.errors import SyncError, UsageError, to_document
from vime_sync.materialize.context import Tally

_TRUE = frozenset(("1", "true", "yes", "on", "t", "y"))
_LOG_FORMAT = "--log-format"


def wants_json_errors(argv: Sequence[str]) -> bool:
    """Known even where the arguments cannot be parsed: the error has to come out in the right shape."""
    if "--json" in argv or os.environ.get("VIME_SYNC_JSON", "").lower() in _TRUE:
        return True
    log_format = os.environ.get("VIME_SYNC_LOG_FORMAT")
    for argument, following in zip(argv, [*argv[1:], ""], strict=False):
        if argument == _LOG_FORMAT:
            log_format = following
        elif argument.startswith(f"{_LOG_FORMAT}="):
            log_format = argument.partition("=")[2]
    return log_format == "json"


class Output:
    """One command's way of printing."""

    def __init__(
        self, *, json: bool = False, quiet: bool = False, verbose: bool = False, log_format: str = "text"
    ) -> None:
        if log_format not in ("text", "json"):
            raise UsageError(f"--log-format {log_format!r}, expected text or json")
        self.json = json
        self.quiet = quiet
        self.verbose = verbose and not quiet
        self._log_format = log_format
        self._guard = threading.Lock()

    def become(self, other: Output) -> None:
        """Print as `other` does from now on: settings were read again."""
        self.json, self.quiet, self.verbose, self._log_format = (
            other.json,
            other.quiet,
            other.verbose,
            other._log_format,
        )

    def document(self, document: dict[str, Any], lines: Sequence[Line | Table]) -> None:
        """The command's result: the document with --json, else the lines. Raises OSError where they cannot go out."""
        if self.json:
            lines = [json_module.dumps(document)]
        elif self.quiet:
            return
        screen = screen_of(sys.stdout)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        try:
            for item in lines:
                for line in table_lines(item, screen) if isinstance(item, Table) else (item,):
                    # A name that this terminal's encoding lacks is told all the same.
                    print(shown(line, screen).encode(encoding, "backslashreplace").decode(encoding))
            sys.stdout.flush()  # here, where a failure is still an error, and not when the process ends
        except OSError as problem:
            if problem.filename is None:
                problem.filename = "standard output"
            raise

    def warning(self, message: str) -> None:
        if not self.quiet:
            self._say("warning", message)

    def info(self, message: str) -> None:
        if self.verbose:
            self._say("info", message)

    def error(self, problem: SyncError) -> None:
        """One line and a hint, or one JSON object as the last line of stderr."""
        if self.json or self._log_format == "json":
            print(json_module.dumps(to_document(problem)), file=sys.stderr, flush=True)
            return
        screen = screen_of(sys.stderr)
        print(shown([Text(f"error [{problem.id}]:", Tone.BAD), f" {problem.message}"], screen), file=sys.stderr)
        print(shown([Text("  hint:", Tone.STRONG), f" {problem.hint}"], screen), file=sys.stderr, flush=True)

    def event(self, level: str, message: str, fields: Mapping[str, Any] | None = None) -> None:
        """One line of a log: with its time, and with --log-format json the fields too.

        One that cannot be written is lost: no full log disk and no reader that went away may end a daemon.
        """
        if self.quiet and level != "error":
            return
        with contextlib.suppress(OSError, ValueError):
            if self._log_format == "json":
                self._say(level, message, fields)
                return
            # The journal has times of its own.
            now = "" if "JOURNAL_STREAM" in os.environ else f"{_now()} "
            self._print(f"{now}{level}: {one_line(message)}")

    def _say(self, level: str, message: str, fields: Mapping[str, Any] | None = None) -> None:
        if self._log_format == "json":
            self._print(json_module.dumps({"time": _now(), "level": level, "message": message, **(fields or {})}))
        else:
            self._print(f"{level}: {one_line(message)}")

    def _print(self, line: str) -> None:
        with self._guard:  # whole lines, whichever thread they come from
            print(line, file=sys.stderr, flush=True)

    @contextmanager
    def tally(self) -> Iterator[Tally]:
        """Counts a pass; with a terminal on stderr also shows how it goes."""
        if self.quiet or self._log_format == "json" or not sys.stderr.isatty():
            yield Tally()
            return
        with show_progress() as tally:
            yield tally


def _now() -> str:
    return _rfc3339(datetime.now(timezone.utc))


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def told_moment(seconds: float | None) -> dict[str, Any]:
    """`written_at` and `age_s` of a moment in a file's stats; null where there is none, or none that can be told."""
    try:
        moment = None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, ValueError, OSError):
        moment = None
    if moment is None:
        return {"written_at": None, "age_s": None}
    age_s = (datetime.now(timezone.utc) - moment).total_seconds()
    return {"written_at": _rfc3339(moment), "age_s": round(max(0.0, age_s), 3)}


_AGE_UNITS = ((86_400 * 2, 86_400, "d"), (3600 * 2, 3600, "h"), (60 * 2, 60, "min"), (0, 1, "s"))


def human_age(seconds: float | None) -> str:
    """`95 s ago`, `5 min ago`; nothing where it is not known."""
    if seconds is None:
        return ""
    unit_s, unit = next((unit_s, unit) for least_s, unit_s, unit in _AGE_UNITS if seconds >= least_s)
    return f"{int(seconds // unit_s)} {unit} ago"


def human_bytes(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
