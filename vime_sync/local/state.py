"""`state.json` and the digest tables: what is known of the committed version, and how it is written.

`state.json` is shared with the peers' receiver: `version` is theirs, all of ours lies under one extra key, and
the file is absent while the bytes are between versions (docs/FORMAT.md). A digest table is immutable; the state
names one by file and digest, so a table that does not belong to it is noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from vime_sync import fsio
from vime_sync.format.checksum import xxh3
from vime_sync.local.fields import Spoilt, version_of_label
from vime_sync.local.paths import LocalPaths
from vime_sync.local.seal import parse_open, read_record, unseal, write_sealed
from vime_sync.local.state_document import state_from_document, state_to_document
from vime_sync.local.table_document import table_from_document, table_to_document
from vime_sync.model import DigestTable, LocalState, version_label

# Stands for no boot at all: a sync failed or power was lost, and the bytes may not be what was written.
DISTRUSTED_BOOT = "distrusted"

# No base or full version has this identity.
_PROVISIONAL = "found here"

_OURS = "vime_sync"
# The object under our key is the last thing in the document, and its seal covers all of it.
_DEPTH = 2


@dataclass(frozen=True)
class StateReading:
    """What stands under the name `state.json`: nothing, ours, the peers' bare version, or neither."""

    present: bool
    state: LocalState | None = None
    peer_version: int | None = None


def boot_id() -> str:
    """Changes with every boot of this host: what was not durable before it is not to be trusted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def read_state(paths: LocalPaths) -> StateReading:
    """Never raises for contents: garbage is a reading too (FIELD_GUIDE H4).

    Under our key stands ours or garbage, never the peers': they leave `version` alone there. What makes the two apart
    is whose the files beside it are.
    """
    try:
        raw = read_record(paths.state)
    except Spoilt:
        return StateReading(True)
    if raw is None:
        return StateReading(False)
    try:
        document = unseal(raw, depth=_DEPTH)
        return StateReading(True, state_from_document(document[_OURS], version_of_label(document["version"])))
    except (KeyError, TypeError, ValueError):
        return StateReading(True, peer_version=_peer_version(raw))


def _peer_version(raw: bytes) -> int | None:
    try:
        document = parse_open(raw)
        return None if _OURS in document else version_of_label(document["version"])
    except (KeyError, Spoilt):
        return None


def write_state(paths: LocalPaths, state: LocalState) -> None:
    document = {"version": version_label(state.version), _OURS: state_to_document(state)}
    write_sealed(paths.state, document, durable=True, depth=_DEPTH)


def write_table(paths: LocalPaths, table: DigestTable) -> str:
    """Write a digest table durably; returns its file name, which carries the digest of its contents."""
    raw = json.dumps(table_to_document(table)).encode()
    name = f"{version_label(table.version)}-{xxh3(raw)}.json"
    fsio.make_directory(paths.tables)
    if not (paths.tables / name).is_file() or (paths.tables / name).read_bytes() != raw:
        fsio.write_atomic(paths.tables / name, raw, durable=True)
    else:
        fsio.sync_directory(paths.tables)  # whoever wrote it may have been killed before its name lasted
    return name


def weights_digest(table: DigestTable) -> str:
    """One digest for all tensors of a version: the same on every host that holds the same weights."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(table.tensors.items()))
    return xxh3(lines.encode())


def read_table(paths: LocalPaths, name: str) -> DigestTable | None:
    """The table of that name, or None when it is not there, its contents are not what its name says, or no table.

    Raises OSError for trouble with the disk: that says nothing about the table.
    """
    try:
        raw = read_record(paths.tables / name)
    except ValueError:
        return None
    if raw is None or Path(name).stem.partition("-")[2] != xxh3(raw):
        return None
    try:
        return table_from_document(json.loads(raw))
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError):
        return None


def belong_together(state: LocalState, table: DigestTable) -> bool:
    """Whether all that a state names is in its table: a state is a record, and may be wrong."""
    return table.files.keys() >= state.stats.keys() and all(
        name in table.files or name in table.tensors for name in state.damaged
    )


def write_provisional_table(paths: LocalPaths, table: DigestTable) -> str:
    """Digests as they were found, wrong ones among them: what a job starts from, and never an anchor's proof."""
    return write_table(paths, replace(table, anchor_identity=_PROVISIONAL))


def find_anchor_table(paths: LocalPaths, version: int, anchor_identity: str) -> DigestTable | None:
    """The table of a base or full version that was seeded here before and still is the same, if it was kept."""
    if paths.tables.is_dir():
        for path in sorted(paths.tables.glob(f"{version_label(version)}-*.json")):
            table = read_table(paths, path.name)
            if table is not None and table.anchor_identity == anchor_identity:
                return table
    return None


def drop_tables(paths: LocalPaths, keep: Iterable[str]) -> None:
    """Remove the tables that no state can need any more: only once a later version is durable."""
    kept = set(keep)
    if not paths.tables.is_dir():
        return
    for path in paths.tables.iterdir():
        if path.name not in kept:
            fsio.unlink(path)
