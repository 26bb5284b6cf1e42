"""`owner.json`: our mark on LOCAL, and the list of the files in it that are ours.

Owns how the list is written and read, not what may be done by it (`ownership`).
"""

from __future__ import annotations

from collections.abc import Iterable

from vime_sync.local import fields
from vime_sync.local.fields import Spoilt
from vime_sync.local.paths import LocalPaths
from vime_sync.local.seal import read_sealed, write_sealed

_SCHEMA = "vime-sync/owner/1"


def write_files(paths: LocalPaths, files: Iterable[str]) -> None:
    """Durable when this returns."""
    write_sealed(paths.owner, {"schema": _SCHEMA, "files": sorted(files)}, durable=True)


def read_files(paths: LocalPaths) -> set[str] | None:
    """The files that are ours by our own list; None where there is no list, or none that can be believed."""
    try:
        document = read_sealed(paths.owner)
        if document is None or document["schema"] != _SCHEMA:
            return None
        return set(map(fields.name_inside, fields.listing(document["files"])))
    except (Spoilt, KeyError, OSError):
        return None
