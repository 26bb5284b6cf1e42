"""`state.json` and the digest tables: what is known of the committed version, and how it is written.

`state.json` is shared with the peers' receiver: `version` is theirs, all of ours lies under one extra key, and
the file is absent while the bytes are between versions (docs/FORMAT.md). A digest table is immutable; the state
names one by file and digest, so a table that does not belong to it is noticed.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vime_sync import fsio
from vime_sync.format.checksum import xxh3
from vime_sync.local.paths import LocalPaths
from vime_sync.model import (
    DigestTable,
    FileDigest,
    FileStat,
    Lineage,
    LineageEntry,
    LocalState,
    VersionKind,
    version_label,
)

# Something else than a file stands under the name of a record.
NO_RECORD = (errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
# Stands for no boot at all: a sync failed or power was lost, and the bytes may not be what was written.
DISTRUSTED_BOOT = "distrusted"

# No base or full version has this identity.
_PROVISIONAL = "found here"

_SCHEMA = 1
_OURS = "vime_sync"


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
    """Never raises for contents: garbage is a reading too (FIELD_GUIDE H4)."""
    try:
        raw = paths.state.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return StateReading(False)
    except OSError as problem:
        if problem.errno not in NO_RECORD:
            raise
        return StateReading(True)
    try:
        document = json.loads(raw)
        version = int(document["version"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return StateReading(True)
    try:
        return StateReading(True, state_from_document(document[_OURS], version))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return StateReading(True, peer_version=version)


def write_state(paths: LocalPaths, state: LocalState) -> None:
    document = {"version": version_label(state.version), _OURS: state_to_document(state)}
    fsio.write_atomic(paths.state, json.dumps(document).encode(), durable=True)


def state_to_document(state: LocalState) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "version": state.version,
        "lineage": lineage_to_document(state.lineage),
        "table": state.table_name,
        "stats": stats_to_document(state.stats),
        "boot_id": state.boot_id,
        "durable": state.durable,
        "share": state.share,
        "base": state.base,
        "anchor_table": state.anchor_table_name,
        "damaged": list(state.damaged),
        "repairs": state.repairs,
    }


def state_from_document(document: dict[str, Any], version: int) -> LocalState:
    """Raises ValueError, KeyError or TypeError when it is not one of ours for `version`."""
    if document["schema"] != _SCHEMA or document["version"] != version:
        raise ValueError("not a state of this schema and version")
    return LocalState(
        version=version,
        lineage=lineage_from_document(document["lineage"]),
        table_name=str(document["table"]),
        stats=stats_from_document(document["stats"]),
        boot_id=str(document["boot_id"]),
        durable=bool(document["durable"]),
        share=document["share"],
        base=document["base"],
        anchor_table_name=str(document["anchor_table"]),
        damaged=tuple(document["damaged"]),
        repairs=int(document["repairs"]),
    )


def lineage_to_document(lineage: Lineage) -> list[list[Any]]:
    return [[entry.version, entry.kind.value, entry.identity, entry.fingerprint] for entry in lineage]


def lineage_from_document(document: list[list[Any]]) -> Lineage:
    lineage = tuple(
        LineageEntry(int(version), VersionKind(kind), str(identity), str(fingerprint))
        for version, kind, identity, fingerprint in document
    )
    if not lineage:
        raise ValueError("a lineage has at least its anchor")
    return lineage


def stats_to_document(stats: Any) -> dict[str, list[int]]:
    return {name: [stat.size_bytes, stat.mtime_ns, stat.ctime_ns, stat.inode] for name, stat in sorted(stats.items())}


def stats_from_document(document: dict[str, list[int]]) -> dict[str, FileStat]:
    return {name: FileStat(*map(int, figures)) for name, figures in document.items()}


def write_table(paths: LocalPaths, table: DigestTable) -> str:
    """Write a digest table durably; returns its file name, which carries the digest of its contents."""
    document = {
        "schema": "vime-sync/digests/1",
        "version": table.version,
        "anchor_identity": table.anchor_identity,
        "files": {name: [file.size_bytes, file.digest, file.is_shard] for name, file in table.files.items()},
        "tensors": dict(table.tensors),
    }
    raw = json.dumps(document).encode()
    name = f"{version_label(table.version)}-{xxh3(raw)}.json"
    fsio.make_directory(paths.tables)
    if not (paths.tables / name).is_file() or (paths.tables / name).read_bytes() != raw:
        fsio.write_atomic(paths.tables / name, raw, durable=True)
    return name


def weights_digest(table: DigestTable) -> str:
    """One digest for all tensors of a version: the same on every host that holds the same weights."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(table.tensors.items()))
    return xxh3(lines.encode())


def read_table(paths: LocalPaths, name: str) -> DigestTable | None:
    """The table of that name, or None when it is not there or its contents are not what its name says."""
    try:
        raw = (paths.tables / name).read_bytes()
    except OSError:
        return None
    if Path(name).stem.partition("-")[2] != xxh3(raw):
        return None
    document = json.loads(raw)
    files = {
        file: FileDigest(int(size_bytes), str(hexadecimal), bool(is_shard))
        for file, (size_bytes, hexadecimal, is_shard) in document["files"].items()
    }
    return DigestTable(int(document["version"]), str(document["anchor_identity"]), document["tensors"], files)


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
