"""A committed state as JSON, and back: what `state.json` holds under our key, and an intent of the state it began with.

Pure. What comes back makes sense in itself; that the digest table is the state's own is for the reader of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from vime_sync.local import fields
from vime_sync.local.fields import Spoilt
from vime_sync.model import FileStat, Lineage, LineageEntry, LocalState, VersionKind

_SCHEMA = 1
# No file is smaller than nothing: stands for one that is not in place yet.
_LEAST_SIZE = -1


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


def state_from_document(value: object, version: int) -> LocalState:
    """Raises Spoilt, or KeyError for what is missing, when it is not one of ours for `version`."""
    document = fields.mapping(value)
    if document["schema"] != _SCHEMA or fields.version_number(document["version"]) != version:
        raise Spoilt("not a state of this schema and version")
    lineage = lineage_from_document(document["lineage"])
    if lineage[-1].version != version:
        raise Spoilt(f"a lineage that ends at version {lineage[-1].version}, expected {version}")
    anchor_table = document["anchor_table"]
    return LocalState(
        version=version,
        lineage=lineage,
        table_name=fields.table_name(document["table"]),
        stats=stats_from_document(document["stats"]),
        boot_id=fields.word(document["boot_id"]),
        durable=fields.flag(document["durable"]),
        share=fields.text_or_none(document["share"]),
        base=fields.text_or_none(document["base"]),
        anchor_table_name=fields.table_name(anchor_table) if anchor_table != "" else "",
        damaged=tuple(map(fields.tensor_or_file_name, fields.listing(document["damaged"]))),
        repairs=fields.number(document["repairs"]),
    )


def lineage_to_document(lineage: Lineage) -> list[list[Any]]:
    return [[entry.version, entry.kind.value, entry.identity, entry.fingerprint] for entry in lineage]


def lineage_from_document(value: object) -> Lineage:
    """A base or full version, then deltas, each on the one before it."""
    lineage = tuple(_entry(*fields.listing(entry)) for entry in fields.listing(value))
    if not lineage or lineage[0].kind is VersionKind.DELTA:
        raise Spoilt("a lineage has at least its anchor")
    for before, entry in itertools.pairwise(lineage):
        if entry.kind is not VersionKind.DELTA or entry.version != before.version + 1:
            raise Spoilt(f"version {entry.version} follows {before.version} in a lineage")
    return lineage


def _entry(version: object, kind: object, identity: object, fingerprint: object) -> LineageEntry:
    return LineageEntry(
        fields.version_number(version), VersionKind(kind), fields.word(identity), fields.word(fingerprint)
    )


def stats_to_document(stats: Mapping[str, FileStat]) -> dict[str, list[int]]:
    return {name: [stat.size_bytes, stat.mtime_ns, stat.ctime_ns, stat.inode] for name, stat in sorted(stats.items())}


def stats_from_document(value: object) -> dict[str, FileStat]:
    return {
        fields.name_inside(name): _stat(*fields.listing(figures)) for name, figures in fields.mapping(value).items()
    }


def _stat(size_bytes: object, mtime_ns: object, ctime_ns: object, inode: object) -> FileStat:
    return FileStat(fields.number(size_bytes, _LEAST_SIZE), *map(fields.file_figure, (mtime_ns, ctime_ns, inode)))
