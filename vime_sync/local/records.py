"""What outlives a process beside the checkpoint itself: what each engine loaded, and the last pass's error.

Both are written by whoever holds the lock or watches; a record that cannot be believed counts as none: the engine is
then loaded again, which is always right.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime_sync import fsio
from vime_sync.local.fields import Spoilt, flag, mapping, number, text, text_or_none, version_number, word
from vime_sync.local.paths import LocalPaths
from vime_sync.local.seal import SEAL, read_sealed, write_sealed
from vime_sync.model import EngineMemory, Weights

_SCHEMA = "vime-sync/engines/1"


def read_engines(paths: LocalPaths) -> dict[str, EngineMemory]:
    """By engine (`vllm=http://...`)."""
    document = _read(paths.engines)
    if document.get("schema") != _SCHEMA or not isinstance(document.get("engines"), dict):
        return {}
    memories = {}
    for name, fields in document["engines"].items():
        try:
            memories[text(name)] = _memory(mapping(fields))
        except (KeyError, TypeError, ValueError):
            continue
    return memories


def write_engines(paths: LocalPaths, memories: Mapping[str, EngineMemory]) -> None:
    """Durable: an engine on another machine outlives this one, and may be paused by us (FIELD_GUIDE E7)."""
    document = {"schema": _SCHEMA, "engines": {name: _fields(memory) for name, memory in sorted(memories.items())}}
    write_sealed(paths.engines, document, durable=True)


def read_last_error(paths: LocalPaths) -> dict[str, Any] | None:
    """The `vime-sync/error/1` document of the last pass, None when it went well."""
    return _read(paths.trouble) or None


def write_last_error(paths: LocalPaths, document: Mapping[str, Any] | None) -> None:
    """None: it went well. Nothing is written where LOCAL has no directory of ours yet."""
    if not paths.sync.is_dir():
        return
    if document is None:
        if paths.trouble.exists():
            fsio.unlink(paths.trouble)
    elif _read(paths.trouble) != document:
        write_sealed(paths.trouble, document, durable=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = read_sealed(path) or {}
    except (OSError, Spoilt):
        return {}
    document.pop(SEAL, None)
    return document


def _fields(memory: EngineMemory) -> dict[str, Any]:
    weights = memory.weights
    return {
        "weights": None if weights is None else [weights.version, weights.lineage, weights.repairs],
        "told": memory.told,
        "open": memory.is_open,
        "leave_paused": memory.leave_paused,
        "error": memory.error,
        "error_id": memory.error_id,
    }


def _memory(fields: Mapping[str, Any]) -> EngineMemory:
    weights = None
    if fields["weights"] is not None:
        version, lineage, repairs = fields["weights"]
        weights = Weights(version_number(version), word(lineage), number(repairs))
    return EngineMemory(
        weights,
        text_or_none(fields["told"]),
        flag(fields["open"]),
        flag(fields["leave_paused"]),
        _message(fields["error"]),
        text_or_none(fields["error_id"]),
    )


def _message(value: object) -> str | None:
    """An engine's own words may be in it, in whatever encoding it thinks right."""
    if value is None or type(value) is not str:
        return text_or_none(value)
    return value.encode("utf-8", "replace").decode()
