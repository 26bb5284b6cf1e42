"""Looking at the share just as far as a plan needs it: which versions to parse, and which of ours are still ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from vime_sync.errors import ShareUnreachable, SyncError
from vime_sync.model import Checkpoint, LineageEntry, LocalState, Published, structure_of
from vime_sync.plan import View, is_new_stream
from vime_sync.stream.catalog import Catalog, Reference, Refusal

SameContent = Callable[[Checkpoint], bool]

# How many of the newest published versions of our lineage are compared: a restarted stream differs in all.
_COMPARED_VERSIONS = 16


def survey(
    share: Path | None,
    wanted: int | None,
    local: LocalState | None,
    *,
    has_base: bool,
    reference: Reference | None = None,
    kept_from: int | None = None,
    same_content: SameContent = lambda checkpoint: False,
    anchor_known: bool = True,
    refused: Mapping[int, Refusal] | None = None,
) -> View:
    """Raises ShareUnreachable. Version 0 needs no share.

    `same_content` is asked of a full version of our lineage whose files' stats changed: whether its bytes still are
    those that the local ones were built from. `refused` are versions that were tried and were no good.
    """
    local_alone = wanted == 0 or (
        local is not None and kept_from is not None and _kept_covers(local, kept_from, wanted)
    )
    if share is None or (local_alone and not _is_listable(share)):
        return View(share, wanted, local, has_base, (), {}, {}, kept_from)
    catalog = Catalog(share, reference, refused)
    rolling_back = local is not None and wanted is not None and wanted < local.version
    entries: dict[int, Published | SyncError] = {}
    same = _compare_lineage(catalog, local, same_content, everything=rolling_back)
    view = View(
        share,
        wanted,
        local,
        has_base,
        catalog.versions,
        entries,
        same,
        kept_from,
        _refreshed(catalog, local, same),
        anchor_known,
        frozenset(version for version in refused or {} if catalog.is_refused(version)),
    )
    if rolling_back and local is not None and wanted is not None:
        above = [entry.version for entry in local.lineage if entry.version > wanted and same.get(entry.version)]
        entries.update((version, catalog.entry(version)) for version in above)
    start = local.version if local is not None and not is_new_stream(view) else None
    top = _load_down_to_ready(catalog, wanted, start, same, entries, below=None)
    while True:
        version = top
        while version > 0 and version != start and version in catalog.versions:
            entries[version] = entry = catalog.entry(version)
            if isinstance(entry, (SyncError, Checkpoint)):
                break
            version -= 1
        if wanted is not None or version not in view.refused:
            return view
        top = _load_down_to_ready(catalog, wanted, start, same, entries, below=version)


def _load_down_to_ready(
    catalog: Catalog,
    wanted: int | None,
    start: int | None,
    same: dict[int, bool],
    entries: dict[int, Published | SyncError],
    *,
    below: int | None,
) -> int:
    """The number to walk down from: the wanted one, or the newest below `below` that is ready (or that we hold)."""
    if wanted is not None:
        return wanted
    for version in reversed(catalog.versions):
        if below is not None and version >= below:
            continue
        if version == start and same.get(version):
            return version
        entries[version] = entry = catalog.entry(version)
        if not isinstance(entry, SyncError):
            return version
        if start is not None and version <= start:
            break
    return 0


def _kept_covers(local: LocalState, kept_from: int, wanted: int | None) -> bool:
    """A rollback over the last pass alone needs nothing from the share."""
    return wanted is not None and kept_from <= wanted < local.version


def _is_listable(share: Path) -> bool:
    try:
        Catalog(share)
    except ShareUnreachable:
        return False
    return True


def _compare_lineage(
    catalog: Catalog, local: LocalState | None, same_content: SameContent, *, everything: bool
) -> dict[int, bool]:
    if local is None:
        return {}
    visible = set(catalog.versions)
    ours = [entry for entry in local.lineage if entry.version in visible]
    same: dict[int, bool] = {}
    for entry in ours if everything else ours[-_COMPARED_VERSIONS:]:
        answer = _is_same(catalog, entry, same_content)
        if answer is not None:
            same[entry.version] = answer
    return same


def _refreshed(catalog: Catalog, local: LocalState | None, same: dict[int, bool]) -> tuple[LineageEntry, ...]:
    """Entries to be known again by their files' stats next time, without parsing or hashing."""
    refreshed = []
    for known in local.lineage if local is not None else ():
        if same.get(known.version) and catalog.fingerprint(known.version) != known.fingerprint:
            entry = catalog.entry(known.version)
            if not isinstance(entry, SyncError):
                refreshed.append(replace(known, identity=entry.identity, fingerprint=entry.fingerprint))
    return tuple(refreshed)


def _is_same(catalog: Catalog, known: LineageEntry, same_content: SameContent) -> bool | None:
    """None where the published version cannot be read just now: that proves nothing either way."""
    if catalog.fingerprint(known.version) == known.fingerprint:
        return True
    entry = catalog.entry(known.version)
    if isinstance(entry, SyncError):
        return None
    if not isinstance(entry, Checkpoint):
        return entry.identity == known.identity
    # Sizes and times may be the same and the bytes others (S21): whatever moved the fingerprint, hash again.
    return structure_of(entry.identity) == structure_of(known.identity) and same_content(entry)
