"""Which versions may go. Pure.

Rules:
1. The newest `keep` versions that are ready stay, and everything newer than the newest ready one: a trainer writes it.
   A version without an index counts for neither (`SINGLE`): whether it is ready only a host can tell, and it may be so
   for one host and not for another.
2. The version that the oldest host holds stays, and so does everything above it: that host has it still to come.
3. The floor is the lower of the two. What it builds on stays: from the newest full version at or below it that has an
   index, the anchor, every version up to it. Where there is none the anchor is the base, which no share holds, and
   nothing may go.
4. Of what lies below the anchor, only whole versions go. One that is not ready or malformed may still be written to,
   one without an index may be either, and one that is a link may be somebody else's: they stay, and are named.

So nothing at or above the anchor is ever touched: whoever could reach a version there still can, and a fresh host
starts from the anchor.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BASE = 0


class Kind(str, enum.Enum):
    """What a version directory is.

    `SINGLE`: one model.safetensors without an index. A host takes it for a full version where its tensors are those of
    its own checkpoint, else it is not ready to it. `UNUSABLE`: not ready, malformed, or built on another version than
    the one below.
    """

    FULL = "full"
    DELTA = "delta"
    SINGLE = "single"
    UNUSABLE = "unusable"


@dataclass(frozen=True)
class Decision:
    """`removed` and `kept` are ascending; `anchor` is 0 for the base, None where no version is ready for certain.

    `spared` are those of `kept` that lie below the anchor, `single` those without an index, wherever they lie. `reason`
    says why not more goes.
    """

    removed: tuple[int, ...]
    kept: tuple[int, ...]
    anchor: int | None
    reason: str
    spared: tuple[int, ...] = ()
    single: tuple[int, ...] = ()


def decide(
    found: Mapping[int, Kind], keep: int, oldest_held: int | None, *, fixed: Iterable[int] = (), who: str = "a host"
) -> Decision:
    """`oldest_held` is what the host that is furthest behind holds, None where no host counts; `who` names it.

    `fixed` are versions that may not be taken away. `keep` is at least 1.
    """
    everything = tuple(sorted(found))
    single = tuple(version for version in everything if found[version] is Kind.SINGLE)
    ready = [version for version in everything if found[version] in (Kind.FULL, Kind.DELTA)]
    if not ready:
        return Decision((), everything, None, _no_anchor(everything, single), single=single)
    newest_kept = ready[-keep:][0]
    floor = newest_kept if oldest_held is None else min(newest_kept, oldest_held)
    count = min(keep, len(ready))
    why = "the newest that is ready" if count == 1 else f"the oldest of the newest {count}"
    if floor < newest_kept:
        why = f"which {who} holds"
    fulls = [version for version in ready if version <= floor and found[version] is Kind.FULL]
    if not fulls:
        unsure = ", or on a version without an index" if single and single[0] <= floor else ""
        return Decision((), everything, BASE, f"version {floor}, {why}, builds on the base{unsure}", single=single)
    anchor = fulls[-1]
    staying = set(everything).difference(ready).union(fixed)
    below = [version for version in everything if version < anchor]
    removed = tuple(version for version in below if version not in staying)
    spared = tuple(version for version in below if version in staying)
    needs = "is a full version" if anchor == floor else f"builds on the full version {anchor}"
    kept = tuple(version for version in everything if version not in removed)
    return Decision(removed, kept, anchor, f"version {floor}, {why}, {needs}", spared, single)


def _no_anchor(everything: tuple[int, ...], single: tuple[int, ...]) -> str:
    if not everything:
        return "there is no version"
    return "no version there that has an index is ready" if single else "no version there is ready"
