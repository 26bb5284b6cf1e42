"""How a pass goes, as one bar on a terminal: the phase at work, its bytes, speed, time left, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from vime_sync.materialize.context import Tally

# Columns left free: where a terminal is narrower than it says, a full line would break and leave a trail of bars.
_FREE_COLUMNS = 3
_BAR_COLUMNS = 20
# What a phase counts where it is not tensors.
_UNITS = {"sync": "files"}


def progress_bar(console: Console) -> Progress:
    console.width = max(1, console.width - _FREE_COLUMNS)
    return Progress(
        TextColumn("{task.description:<6}"),
        BarColumn(bar_width=_BAR_COLUMNS),
        DownloadColumn(binary_units=False),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[counted]}/{task.fields[all]} {task.fields[unit]}"),
        console=console,
        transient=True,
    )


@contextmanager
def show_progress() -> Iterator[Tally]:
    """A tally whose progress is shown on stderr while the body runs, and gone afterwards."""
    with progress_bar(Console(stderr=True)) as progress:
        yield Tally(Bar(progress).listen)


class Bar:
    """The phase at work as one bar; the next phase takes its place."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._counted = 0

    def listen(self, event: str, counted: int, size_bytes: int) -> None:
        """What a tally tells: `start:PHASE` with the totals, then each addition."""
        if event.startswith("start:"):
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._counted = 0
            phase = event.removeprefix("start:")
            unit = _UNITS.get(phase, "tensors")
            self._task = self._progress.add_task(phase, total=size_bytes, counted=0, all=counted, unit=unit)
        elif self._task is not None:
            self._counted += counted
            self._progress.update(self._task, advance=size_bytes, counted=self._counted)
