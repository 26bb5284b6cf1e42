"""Which versions may go. Pure.

Rules:
1. The newest `keep` versions that are ready stay, and everything newer than the newest ready one: a trainer writes it.
2. The version that the oldest host holds stays, and so does everything above it: that host has it still to come.
3. The floor is the lower of the two. What it builds on stays: from the newest full version at or below it, the anchor,
   every version up to it. Where there is none the anchor is the base, which no share holds, and nothing may go.
4. Of what lies below the anchor, only whole versions go. One that is not ready or malformed may still be written to,
   and one that is a link may be somebody else's: they stay, and are named.

So nothing at or above the anchor is ever touched: whoever could reach a version there still can, and a fresh host
starts from the anchor.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BASE = 0


class Kind(str, enum.Enum):
    """What a version directory is; `UNUSABLE`: not ready, malformed, or built on another version than the one below."""

    FULL = "full"
    DELTA = "delta"
    UNUSABLE = "unusable"


@dataclass(frozen=True)
class Decision:
    """`removed` and `kept` are ascending; `anchor` is 0 for the base, None where no version is ready.

    `spared` are those of `kept` that lie below the anchor. `reason` says why not more goes.
    """

    removed: tuple[int, ...]
    kept: tuple[int, ...]
    anchor: int | None
    reason: str
    spared: tuple[int, ...] = ()


def decide(
    found: Mapping[int, Kind], keep: int, oldest_held: int | None, *, fixed: Iterable[int] = (), who: str = "a host"
) -> Decision:
    """`oldest_held` is what the host that is furthest behind holds, None where no host counts; `who` names it.

    `fixed` are versions that may not be taken away. `keep` is at least 1.
    """
    everything = tuple(sorted(found))
    ready = [version for version in everything if found[version] is not Kind.UNUSABLE]
    if not ready:
        return Decision((), everything, None, "no version there is ready" if everything else "there is no version")
    newest_kept = ready[-keep:][0]
    floor = newest_kept if oldest_held is None else min(newest_kept, oldest_held)
    count = min(keep, len(ready))
    why = "the newest that is ready" if count == 1 else f"the oldest of the newest {count}"
    if floor < newest_kept:
        why = f"which {who} holds"
    fulls = [version for version in ready if version <= floor and found[version] is Kind.FULL]
    if not fulls:
        return Decision((), everything, BASE, f"version {floor}, {why}, builds on the base")
    anchor = fulls[-1]
    unusable = {version for version in everything if found[version] is Kind.UNUSABLE}
    staying = unusable.union(fixed)
    below = [version for version in everything if version < anchor]
    removed = tuple(version for version in below if version not in staying)
    spared = tuple(version for version in below if version in staying)
    needs = "is a full version" if anchor == floor else f"builds on the full version {anchor}"
    kept = tuple(version for version in everything if version not in removed)
    return Decision(removed, kept, anchor, f"version {floor}, {why}, {needs}", spared)
