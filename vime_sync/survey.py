"""Looking at the share just as far as a plan needs it: which versions to parse, and which of ours are still ours."""

from __future__ import annotations

from pathlib import Path

from vime_sync.errors import SyncError
from vime_sync.model import Checkpoint, LineageEntry, LocalState, Published
from vime_sync.plan import View, is_new_stream
from vime_sync.stream.catalog import Catalog, Signature

# How many of the newest published versions of our lineage are compared: a restarted stream differs in all.
_COMPARED_VERSIONS = 16


def survey(
    share: Path | None, wanted: int | None, local: LocalState | None, has_base: bool, reference: Signature | None
) -> View:
    """Raises ShareUnreachable. Version 0 needs no share."""
    if wanted == 0 or share is None:
        return View(share, wanted, local, has_base, (), {}, {})
    catalog = Catalog(share, reference)
    same = _compare_lineage(catalog, local)
    entries: dict[int, Published | SyncError] = {}
    view = View(share, wanted, local, has_base, catalog.versions, entries, same)
    start = local.version if local is not None and not is_new_stream(view) else None
    top = _load_down_to_ready(catalog, wanted, start, same, entries)
    version = top
    while version > 0 and version != start and version in catalog.versions:
        entries[version] = entry = catalog.entry(version)
        if isinstance(entry, (SyncError, Checkpoint)):
            break
        version -= 1
    return view


def _load_down_to_ready(
    catalog: Catalog,
    wanted: int | None,
    start: int | None,
    same: dict[int, bool],
    entries: dict[int, Published | SyncError],
) -> int:
    """The number to walk down from: the wanted one, or the newest that is ready (or that we hold)."""
    if wanted is not None:
        return wanted
    for version in reversed(catalog.versions):
        if version == start and same.get(version):
            return version
        entries[version] = entry = catalog.entry(version)
        if not isinstance(entry, SyncError):
            return version
        if start is not None and version <= start:
            break
    return 0


def _compare_lineage(catalog: Catalog, local: LocalState | None) -> dict[int, bool]:
    if local is None:
        return {}
    visible = set(catalog.versions)
    ours = [entry for entry in local.lineage if entry.version in visible]
    same: dict[int, bool] = {}
    for entry in ours[-_COMPARED_VERSIONS:]:
        answer = _is_same(catalog, entry)
        if answer is not None:
            same[entry.version] = answer
    return same


def _is_same(catalog: Catalog, known: LineageEntry) -> bool | None:
    """None where the published version cannot be read just now: that proves nothing either way."""
    if catalog.fingerprint(known.version) == known.fingerprint:
        return True
    entry = catalog.entry(known.version)
    return None if isinstance(entry, SyncError) else entry.identity == known.identity
