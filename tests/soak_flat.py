"""Whether a long-lived process stays as large as it was: the rule, over figures taken at quiet moments of one life."""

import statistics
from collections.abc import Sequence

from tests.soak_processes import Figures

MIB = 1 << 20
# The first quarter is warm-up; then the median of the next third of what is left is held against that of the last.
WARM_UP = 0.25
RESIDENT_SLACK_BYTES = 6 * MIB
DESCRIPTOR_SLACK = 2
THREAD_SLACK = 1


def quiet(figures: Sequence[Figures]) -> Figures:
    """Of a few looks close together the lowest: a look at an engine or a sync may just be under way."""
    return Figures(*(min(column) for column in zip(*map(_columns, figures), strict=True)))


def growth(samples: Sequence[Figures]) -> Figures:
    """By how much each figure grew between the beginning (after warm-up) and the end."""
    warm = samples[int(len(samples) * WARM_UP) :]
    third = max(1, len(warm) // 3)
    before, after = warm[:third], warm[-third:]
    return Figures(
        *(int(_median(after, column) - _median(before, column)) for column in range(len(_columns(samples[0]))))
    )


def not_flat(samples: Sequence[Figures]) -> list[str]:
    """What grew by more than its slack."""
    grown = growth(samples)
    rules = (
        ("resident bytes", grown.resident_bytes, RESIDENT_SLACK_BYTES),
        ("descriptors", grown.descriptors, DESCRIPTOR_SLACK),
        ("threads", grown.threads, THREAD_SLACK),
    )
    return [f"{name} grew by {by}, allowed {slack}: {samples}" for name, by, slack in rules if by > slack]


def _columns(figures: Figures) -> tuple[int, int, int]:
    return (figures.resident_bytes, figures.descriptors, figures.threads)


def _median(samples: Sequence[Figures], column: int) -> float:
    return statistics.median(_columns(sample)[column] for sample in samples)
