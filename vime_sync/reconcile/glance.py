"""A look that is cheap enough for every second: whether anything changed that a pass could do something about.

It lists the share, and takes the stats of the version that is held and of those above it; of LOCAL and the base it
takes one stat. Equal glances mean that a pass would find what the last one found (FIELD_GUIDE S20).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import ShareUnreachable
from vime_sync.local.paths import LocalPaths
from vime_sync.model import FileStat
from vime_sync.stream.catalog import Catalog


@dataclass(frozen=True)
class Glance:
    """`versions` is None where the share cannot be listed; `prints` are the files' stats of the versions looked at."""

    versions: tuple[int, ...] | None
    prints: tuple[tuple[int, str | None], ...]
    local: FileStat | None
    base: FileStat | None


def take_glance(paths: LocalPaths, share: Path | None, base: Path | None, held: int, wanted: int | None) -> Glance:
    """`held` is the committed version, `wanted` a pinned one. Never raises for what cannot be read."""
    local, base_stat = _stat(paths.state), None if base is None else _stat(base)
    if share is None:
        return Glance((), (), local, base_stat)
    try:
        catalog = Catalog(share)
    except ShareUnreachable:
        return Glance(None, (), local, base_stat)
    lowest = held if wanted is None else min(held, wanted)
    prints = tuple((version, catalog.fingerprint(version)) for version in catalog.versions if version >= lowest)
    return Glance(catalog.versions, prints, local, base_stat)


def _stat(path: Path) -> FileStat | None:
    try:
        return fsio.stat(path)
    except OSError:
        return None
