"""What is printed, and where: documents to stdout, messages to stderr, progress to a terminal only."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from vime_sync.errors import SyncError, UsageError, to_document
from vime_sync.materialize.context import Tally

_TRUE = frozenset(("1", "true", "yes", "on", "t", "y"))


def wants_json(argv: Sequence[str]) -> bool:
    """Known even where the arguments cannot be parsed: the error has to come out in the right shape."""
    return "--json" in argv or os.environ.get("VIME_SYNC_JSON", "").lower() in _TRUE


class Output:
    """One command's way of printing."""

    def __init__(
        self, *, json: bool = False, quiet: bool = False, verbose: bool = False, log_format: str = "text"
    ) -> None:
        if log_format not in ("text", "json"):
            raise UsageError(f"--log-format {log_format!r}, expected text or json")
        self.json = json
        self.quiet = quiet
        self.verbose = verbose
        self._log_format = log_format

    def document(self, document: dict[str, Any], lines: Sequence[str]) -> None:
        """The command's result: the document with --json, else the lines."""
        if self.json:
            print(json_module.dumps(document))
        elif not self.quiet:
            for line in lines:
                print(line)

    def warning(self, message: str) -> None:
        if not self.quiet:
            self._say("warning", message)

    def info(self, message: str) -> None:
        if self.verbose and not self.quiet:
            self._say("info", message)

    def error(self, problem: SyncError) -> None:
        """One line and a hint, or one JSON object as the last line of stderr."""
        if self.json or self._log_format == "json":
            print(json_module.dumps(to_document(problem)), file=sys.stderr, flush=True)
            return
        where = f" [{problem.id}]"
        print(f"error{where}: {_one_line(problem.message)}", file=sys.stderr)
        print(f"  hint: {_one_line(problem.hint)}", file=sys.stderr, flush=True)

    def _say(self, level: str, message: str) -> None:
        if self._log_format == "json":
            now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            print(json_module.dumps({"time": now, "level": level, "message": message}), file=sys.stderr)
        else:
            print(f"{level}: {_one_line(message)}", file=sys.stderr)

    @contextmanager
    def tally(self) -> Iterator[Tally]:
        """Counts a pass; with a terminal on stderr also shows how it goes."""
        if self.quiet or self._log_format == "json" or not sys.stderr.isatty():
            yield Tally()
            return
        columns = (
            TextColumn("{task.description:<8}"),
            BarColumn(),
            DownloadColumn(binary_units=False),
            TransferSpeedColumn(),
            TextColumn("{task.fields[tensors]}/{task.fields[all]} tensors"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield Tally(_Bar(progress).listen)


class _Bar:
    """The phase at work as one bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._tensors = 0

    def listen(self, event: str, tensors: int, size_bytes: int) -> None:
        if event.startswith("start:"):
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._tensors = 0
            phase = event.removeprefix("start:")
            self._task = self._progress.add_task(phase, total=size_bytes, tensors=0, all=tensors)
        elif self._task is not None:
            self._tensors += tensors
            self._progress.update(self._task, advance=size_bytes, tensors=self._tensors)


def _one_line(text: str) -> str:
    """Names come from strangers' files: nothing in them may break a line or steer a terminal."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def human_bytes(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"
