"""The intent: the durable record that LOCAL's bytes are between two versions, and all that is needed to finish
or to undo.

Order (each step durable before the next, docs/DESIGN.md): intent written, `state.json` removed, directory synced,
and only then the first byte of data changes. At the end: digest table, `state.json`, then the intent goes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vime_sync import fsio
from vime_sync.local import manifest
from vime_sync.local.fields import Spoilt
from vime_sync.local.intent_document import intent_from_document, intent_to_document
from vime_sync.local.intent_values import (
    ApplyIntent,
    Intent,
    ReplaceIntent,
    StagedPayload,
    Step,
    TensorWork,
    is_staged_from,
)
from vime_sync.local.paths import LocalPaths
from vime_sync.local.seal import read_sealed, write_sealed
from vime_sync.local.state import read_state
from vime_sync.model import Lineage, LocalState, structure_of

__all__ = [
    "ApplyIntent",
    "Intent",
    "ReplaceIntent",
    "StagedPayload",
    "Step",
    "TensorWork",
    "begin",
    "drop_kept",
    "drop_staged",
    "end",
    "end_and_keep",
    "is_staged_from",
    "read_intent",
    "read_kept",
    "remembered_state",
    "withdraw_state",
]

_KEPT_INTENT = "intent.json"


def begin(paths: LocalPaths, intent: Intent) -> None:
    """From here on the bytes may be between two versions. Durable when this returns."""
    if isinstance(intent, ReplaceIntent):
        intent = replace(intent, ours=tuple(sorted(manifest.read_files(paths) or ())))
    write_sealed(paths.intent, intent_to_document(intent), durable=True)
    withdraw_state(paths)


def withdraw_state(paths: LocalPaths) -> None:
    """No version is committed until the next state is written. Durable when this returns."""
    fsio.unlink(paths.state)
    fsio.sync_directory(paths.sync)


def end(paths: LocalPaths) -> None:
    """The state says where the bytes are: the intent and what was staged for it are done with."""
    fsio.unlink(paths.intent)
    fsio.sync_directory(paths.sync)
    fsio.unlink(paths.journal)
    fsio.remove_tree(paths.staged)


def drop_staged(paths: LocalPaths) -> None:
    """Every tensor is at its old bytes again: make room for the state. The journal goes first: nothing is begun."""
    fsio.unlink(paths.journal)
    fsio.remove_tree(paths.staged)


def end_and_keep(paths: LocalPaths) -> None:
    """As `end`, but what was staged is kept: with it the pass can be taken back from local bytes alone (V1)."""
    fsio.remove_tree(paths.kept)
    fsio.rename(paths.staged, paths.kept)
    fsio.rename(paths.intent, paths.kept / _KEPT_INTENT)
    fsio.sync_directory(paths.sync)
    fsio.unlink(paths.journal)


def drop_kept(paths: LocalPaths) -> None:
    fsio.remove_tree(paths.kept)


def read_kept(paths: LocalPaths, state: LocalState) -> ApplyIntent | None:
    """The intent of the last forward pass, where it led to `state` and all it staged is kept."""
    try:
        intent = _read(paths.kept / _KEPT_INTENT)
    except ValueError:
        return None
    if not isinstance(intent, ApplyIntent) or not _same_lineage(intent.lineage, state.lineage):
        return None
    return intent if intent.steps and not any(step.backward for step in intent.steps) else None


def remembered_state(paths: LocalPaths) -> LocalState | None:
    """What LOCAL knows of itself: the committed state; in the middle of a job the one it began or ends with."""
    state = read_state(paths).state
    if state is not None:
        return state
    try:
        intent = read_intent(paths)
    except ValueError:
        return None
    if intent is None:
        return None
    return intent.origin if isinstance(intent, ApplyIntent) else intent.state


def _same_lineage(one: Lineage, other: Lineage) -> bool:
    """Stats of published files may have been refreshed since; what they are has not."""
    return [(entry.version, structure_of(entry.identity)) for entry in one] == [
        (entry.version, structure_of(entry.identity)) for entry in other
    ]


def read_intent(paths: LocalPaths) -> Intent | None:
    """The intent on disk, or None if there is none. Raises ValueError for one that is not ours to believe."""
    return _read(paths.intent)


def _read(path: Path) -> Intent | None:
    try:
        document = read_sealed(path)
        return None if document is None else intent_from_document(document)
    except Spoilt as problem:
        raise Spoilt(f"{path}: {problem}") from None
