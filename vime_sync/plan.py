"""From what is local, what is published and what is wanted: which way leads there. Pure.

Rules, in this order:
1. The target is the wanted version, or the newest ready one; `latest` never goes below the local version within
   one stream (V10), an explicit lower target is a rollback (V1).
2. A published version of our lineage with another identity means another stream: start from an anchor (V2, V3, V9).
3. From the local version the deltas above it lead up; a full version on the way is the nearer start (V4).
4. A rollback takes the last pass back by what it kept, and xor deltas back by applying them again.
5. Else from the newest full version at or below the target, else from the base, with the deltas above it.
6. A version missing in between is a gap (V5); one that is there but cannot be used says why itself.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from vime_sync.errors import LineageGap, ShareUnreachable, SyncError, UsageError, VersionMissing
from vime_sync.model import Checkpoint, DeltaVersion, Encoding, LineageEntry, LocalState, Published

# A pass reads and writes each tensor once; more deltas than this per pass would cost a decoder each.
MAX_DELTAS_IN_PLACE = 12
# A seed folds more: every byte of a new file is written once however many deltas follow.
MAX_DELTAS_IN_SEED = 48


class Result(str, enum.Enum):
    """What a pass did, as the command line contract names it."""

    UPDATED = "updated"
    ALREADY_CURRENT = "already_current"
    ROLLED_BACK = "rolled_back"
    PLANNED = "planned"


@dataclass(frozen=True)
class View:
    """What a plan is made from. `same` says of published versions of our lineage whether they still are those.

    `kept_from` is the version that the last pass can be taken back to by what it kept on this host; `refreshed` are
    entries of our lineage whose files' stats changed although they are the same; `anchor_known` says that the digests
    of our lineage's anchor are at hand. `refused` were tried and were no good: `latest` is below what builds on them.
    """

    share: Path | None
    wanted: int | None
    local: LocalState | None
    has_base: bool
    versions: tuple[int, ...]
    entries: Mapping[int, Published | SyncError]
    same: Mapping[int, bool]
    kept_from: int | None = None
    refreshed: tuple[LineageEntry, ...] = ()
    anchor_known: bool = True
    refused: frozenset[int] = frozenset()


@dataclass(frozen=True)
class PlannedPass:
    """One committed pass: from the local bytes (anchor None), or from a full version or the base (0).

    `back_to` is the version a rollback pass ends at: `deltas` are then taken back, newest first; without any it is
    the last pass that is taken back by what it kept.
    """

    anchor: int | None
    deltas: tuple[int, ...]
    back_to: int | None = None


@dataclass(frozen=True)
class Plan:
    """`passes` may be empty: the local version is the target. `repairs` names what must be rebuilt on the way.

    `skipped` says of each version above the target of `latest` why it cannot be used.
    """

    result: Result
    target: int
    passes: tuple[PlannedPass, ...]
    new_stream: bool = False
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    refreshed: tuple[LineageEntry, ...] = ()
    skipped: tuple[SyncError, ...] = ()


def builds_on_refused(
    entries: Mapping[int, Published | SyncError], refused: frozenset[int], version: int
) -> int | None:
    """The version that was no good and that `version` builds on, without a full version in between; None: none."""
    while refused and isinstance(entries.get(version), DeltaVersion):
        version -= 1
        if version in refused:
            return version
    return None


def is_new_stream(view: View) -> bool:
    """Whether the share shows another stream than the one the local bytes came from."""
    if view.local is None or view.local.version == 0:
        return False
    if view.same:
        return not all(view.same.values())
    # Nothing of ours is left, and all there is stands at or below our number: begun again.
    return bool(view.versions) and view.versions[-1] <= view.local.version


def make_plan(view: View) -> Plan:
    """Raises the SyncError that says why no way leads to the target."""
    plan = _make_plan(view)
    above = [entry for version, entry in sorted(view.entries.items()) if version > plan.target]
    skipped = tuple(entry for entry in above if isinstance(entry, SyncError)) if view.wanted is None else ()
    return replace(plan, refreshed=() if plan.new_stream else view.refreshed, skipped=skipped)


def _make_plan(view: View) -> Plan:
    new_stream = is_new_stream(view)
    target, warnings = _target(view, new_stream)
    local = view.local
    if local is not None and not new_stream and target == local.version:
        result = Result.UPDATED if local.damaged else Result.ALREADY_CURRENT
        passes = (PlannedPass(None, ()),) if local.damaged else ()
        return Plan(result, target, passes, repairs=local.damaged, warnings=warnings)
    rolled_back = local is not None and not new_stream and target < local.version
    if rolled_back:
        back = _way_back(view, target)
        if back is not None:
            assert local is not None
            return Plan(Result.ROLLED_BACK, target, back, repairs=local.damaged, warnings=warnings)
    start = local.version if local is not None and not new_stream and local.version < target else None
    anchor, deltas = _way(view, target, start)
    return Plan(
        Result.ROLLED_BACK if rolled_back else Result.UPDATED,
        target,
        _passes(anchor, deltas),
        new_stream,
        local.damaged if local is not None and anchor is None else (),
        warnings,
    )


def _target(view: View, new_stream: bool) -> tuple[int, tuple[str, ...]]:
    local = view.local
    if view.wanted == 0:
        return 0, ()
    going_back = local is not None and view.wanted is not None and view.wanted < local.version
    if (
        not view.versions
        and local is not None
        and local.version > 0
        and not (going_back and view.kept_from is not None)
    ):
        raise ShareUnreachable(
            f"{view.share} shows no version at all while version {local.version} is here: it looks unmounted"
        )
    if view.wanted is not None:
        if view.wanted not in view.versions and (local is None or new_stream or not _is_ours(local, view.wanted)):
            newest = f"the newest there is {view.versions[-1]}" if view.versions else "there is none yet"
            raise VersionMissing(f"version {view.wanted} is not in {view.share}; {newest}", version=view.wanted)
        return view.wanted, ()
    # To a host that holds nothing yet a share that is not mounted looks just the same: at least it is said.
    warnings = [] if view.versions else [f"{view.share} shows no version yet: version 0, the base, is the newest"]
    for version in reversed(view.versions):
        if local is not None and version == local.version and view.same.get(version) and not new_stream:
            break  # the one we hold: known again without parsing it
        entry = view.entries[version]
        if not isinstance(entry, SyncError):
            bad = builds_on_refused(view.entries, view.refused, version)
            if bad is None:
                break
            warnings.append(f"skipped: version {version} builds on version {bad}, which is no good")
            continue
        warnings.append(f"skipped: {entry.message}")
        if local is not None and not new_stream and version <= local.version:
            break
    else:
        version = 0
    if local is not None and not new_stream and version < local.version:
        warnings.append(
            f"{view.share} shows nothing ready above version {version} while {local.version} is here: staying there"
        )
        version = local.version
    if version == 0 and ((local is None and not view.has_base) or (local is not None and local.version > 0)):
        _raise_nothing_ready(view)
    return version, tuple(warnings)


def _is_ours(local: LocalState, version: int) -> bool:
    """A version that the local bytes went through can be reached by going back, published still or not."""
    return any(entry.version == version for entry in local.lineage)


def _raise_nothing_ready(view: View) -> None:
    for version in reversed(view.versions):
        entry = view.entries[version]
        if isinstance(entry, SyncError):
            raise entry
    raise VersionMissing(
        f"{view.share} shows no version yet, and no --base is given to start from",
        hint="Wait for the trainer to publish (`--wait SECONDS`), or give --base.",
    )


def _way(view: View, target: int, start: int | None) -> tuple[int | None, tuple[int, ...]]:
    """Walk down from the target to where it can be started from: the local version, a full version, the base."""
    deltas: list[int] = []
    version = target
    while version != start:
        if version == 0:
            if not view.has_base:
                raise UsageError(
                    f"reaching version {target} starts from the base (version 0), and no --base is given",
                    hint="Give --base the checkpoint that the trainer and the engines started from.",
                )
            return 0, tuple(reversed(deltas))
        if version not in view.versions and version == target:
            raise VersionMissing(f"version {target} is not in {view.share} any more", version=target)
        if version not in view.versions:
            raise LineageGap(
                f"version {version} is missing in {view.share}, and no full version lies between it and {target}",
                version=version,
            )
        entry = view.entries[version]
        if isinstance(entry, SyncError):
            raise entry
        if isinstance(entry, Checkpoint):
            return version, tuple(reversed(deltas))
        deltas.append(version)
        version -= 1
    return None, tuple(reversed(deltas))


def _way_back(view: View, target: int) -> tuple[PlannedPass, ...] | None:
    """Down from the local version without an anchor, or None: kept values first, then xor deltas of our lineage.

    Every version of the lineage that is gone back over, or proves the bytes below, must still be what it was.
    """
    assert view.local is not None
    version = view.local.version
    passes = []
    if view.kept_from is not None:
        version = max(target, view.kept_from)
        passes.append(PlannedPass(None, (), version))
    if version == target:
        return tuple(passes)
    # What is not visible cannot prove the digests below; the anchor proves itself by its own table.
    deltas = [entry.version for entry in view.local.lineage[1:]]
    if (
        not view.anchor_known
        or target < view.local.lineage[0].version
        or not all(view.same.get(delta) for delta in deltas if delta <= version)
    ):
        return None
    backward = [delta for delta in reversed(deltas) if target < delta <= version]
    entries = [view.entries.get(delta) for delta in backward]
    if not all(isinstance(entry, DeltaVersion) and entry.encoding is Encoding.XOR for entry in entries):
        return None
    for begin in range(0, len(backward), MAX_DELTAS_IN_PLACE):
        taken = tuple(backward[begin : begin + MAX_DELTAS_IN_PLACE])
        passes.append(PlannedPass(None, taken, taken[-1] - 1))
    return tuple(passes)


def _passes(anchor: int | None, deltas: tuple[int, ...]) -> tuple[PlannedPass, ...]:
    passes = []
    if anchor is not None:
        passes.append(PlannedPass(anchor, deltas[:MAX_DELTAS_IN_SEED]))
        deltas = deltas[MAX_DELTAS_IN_SEED:]
    for begin in range(0, len(deltas), MAX_DELTAS_IN_PLACE):
        passes.append(PlannedPass(None, deltas[begin : begin + MAX_DELTAS_IN_PLACE]))
    return tuple(passes)
