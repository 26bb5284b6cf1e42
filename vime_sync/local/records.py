"""What outlives a process beside the checkpoint itself: what each engine loaded, and the last pass's error.

Both are written by whoever holds the lock or watches; a record that cannot be read counts as none: the engine is then
loaded again, which is always right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime_sync import fsio
from vime_sync.local.paths import LocalPaths
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
            memories[name] = _memory(fields)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return memories


def write_engines(paths: LocalPaths, memories: Mapping[str, EngineMemory]) -> None:
    """Durable: an engine on another machine outlives this one, and may be paused by us (FIELD_GUIDE E7)."""
    document = {"schema": _SCHEMA, "engines": {name: _fields(memory) for name, memory in sorted(memories.items())}}
    fsio.write_atomic(paths.engines, json.dumps(document).encode(), durable=True)


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
        fsio.write_atomic(paths.trouble, json.dumps(document).encode(), durable=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


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
        weights = Weights(int(version), str(lineage), int(repairs))
    return EngineMemory(
        weights,
        fields["told"],
        bool(fields["open"]),
        bool(fields["leave_paused"]),
        fields["error"],
        fields["error_id"],
    )
