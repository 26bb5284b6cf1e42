"""Taking times: wall and CPU of one run, pairs in turn, medians, and what a row of the table holds."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Sample:
    """One timed run; CPU is that of this process and of the children that ended in it."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


def cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@contextmanager
def timed() -> Iterator[Sample]:
    sample = Sample()
    cpu, wall = cpu_seconds(), time.perf_counter()
    yield sample
    sample.wall_s = time.perf_counter() - wall
    sample.cpu_s = cpu_seconds() - cpu


def settle() -> None:
    """Nothing dirty is left to be written back while the next run is timed."""
    os.sync()


def run_timed(work: Callable[[], object]) -> Sample:
    settle()
    with timed() as sample:
        work()
    return sample


def wall(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.wall_s for sample in samples)


def cpu(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.cpu_s for sample in samples)


def load_average() -> float:
    return os.getloadavg()[0]


@dataclass
class Row:
    """One line of the table. `figure` is in `unit`; with `higher_is_better` `at_least` is a floor, else a ceiling.

    `parts` are further figures by name, `how` says in which way the row was run; nothing here is asserted.
    """

    name: str
    what: str
    figure: float
    unit: str
    at_least: float | None = None
    stretch: float | None = None
    higher_is_better: bool = True
    parts: dict[str, Any] = field(default_factory=dict)
    how: str = ""
    load: float = field(default_factory=load_average)

    @property
    def is_reached(self) -> bool | None:
        if self.at_least is None:
            return None
        return self.figure >= self.at_least if self.higher_is_better else self.figure <= self.at_least


def ratio_row(
    name: str,
    what: str,
    yardstick: Sequence[Sample],
    ours: Sequence[Sample],
    size_bytes: int,
    at_least: float | None,
    stretch: float | None,
    how: str,
) -> Row:
    """How many times faster ours is than the yardstick: ratio of the medians of wall times, CPU beside it."""
    single = sorted(one.wall_s / other.wall_s for one, other in zip(yardstick, ours, strict=True))
    parts = {
        "pairs": len(ours),
        "ours_s": wall(ours),
        "yardstick_s": wall(yardstick),
        "ours_cpu_s": cpu(ours),
        "yardstick_cpu_s": cpu(yardstick),
        "cpu_ratio": cpu(yardstick) / cpu(ours),
        "ours_gb_per_s": size_bytes / wall(ours) / 1e9,
        "lowest_pair": single[0],
        "highest_pair": single[-1],
    }
    return Row(name, what, wall(yardstick) / wall(ours), "x the yardstick", at_least, stretch, True, parts, how)
