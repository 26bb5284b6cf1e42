"""What a cache remembers of the share: the newest version that was published with it, of whatever kind.

An unmounted share looks empty, and one that is mounted with less looks young (FIELD_GUIDE S16, V10): who only counts
what is shown would publish another version under a number that hosts have taken. Owns published.json, beside the
cache's other records; never touches the share.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import Damaged, ShareUnreachable
from vime_sync.local.fields import Spoilt, version_number
from vime_sync.local.lock import hold
from vime_sync.local.ownership import check_ownership
from vime_sync.local.paths import LocalPaths, check_apart
from vime_sync.local.seal import read_sealed, write_sealed
from vime_sync.publish.values import Options
from vime_sync.reconcile.request import load_local
from vime_sync.stream.catalog import Catalog

_PUBLISHED = "published.json"


def check_cache(paths: LocalPaths, options: Options) -> None:
    """Refuse a share that shows less than the cache knows of, and a cache that is none of ours. Writes nothing.

    Raises ShareUnreachable, Damaged, NotOurs, UsageError.
    """
    check_apart(paths, options.shared, options.base)
    check_ownership(paths, adopt=False)
    held = load_local(paths)
    known = [(held.state.version, held.state.share)] if held is not None and held.state.share is not None else []
    try:
        known += _read(paths)
    except Spoilt as problem:
        # What it said may be all that tells an unmounted share from a new one.
        raise Damaged(
            f"--cache {paths.root}: {paths.sync / _PUBLISHED} is spoilt ({problem}): how far {options.shared} had come "
            "cannot be told",
            hint="Look whether the share is mounted and shows its newest version. If so, remove that file and publish "
            "again.",
        ) from None
    share = os.path.realpath(options.shared)
    newest = max((version for version, place in known if os.path.realpath(place) == share), default=0)
    shows = max(Catalog(options.shared).versions, default=0)
    if newest > shows:
        shown = f"only up to {shows}" if shows else "nothing"
        raise ShareUnreachable(
            f"--cache {paths.root} knows of version {newest} in {options.shared}, which now shows {shown}",
            hint="Check that the share is mounted and whole. If a new stream is to begin there, give a new --cache.",
        )


def remember_published(paths: LocalPaths, share: Path, version: int) -> None:
    """Keep with the cache how far the share has come. The cache's lock is held. Raises OSError."""
    document = {"schema": "vime-sync/published/1", "share": os.fspath(share), "version": version}
    write_sealed(paths.sync / _PUBLISHED, document, durable=True)


def remember_apart(paths: LocalPaths, share: Path, version: int, check_stop: Callable[[], None]) -> None:
    """As `remember_published`, of a cache that was not used, and may not be there yet. Raises SyncError, OSError."""
    fsio.make_directory(paths.sync, durable=True)
    with hold(paths, wait_s=0, check_stop=check_stop):
        remember_published(paths, share, version)


def _read(paths: LocalPaths) -> list[tuple[int, str]]:
    """The version and its share; none where nothing was published yet. Raises Spoilt, OSError."""
    document = read_sealed(paths.sync / _PUBLISHED)
    if document is None:
        return []
    share = document.get("share")
    if type(share) is not str or "\0" in share:
        raise Spoilt("it names no share")
    return [(version_number(document.get("version")), share)]
