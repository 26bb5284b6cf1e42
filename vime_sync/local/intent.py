"""The intent: the durable record that LOCAL's bytes are between two versions, and all that is needed to finish
or to undo.

Order (each step durable before the next, docs/DESIGN.md): intent written, `state.json` removed, directory synced,
and only then the first byte of data changes. At the end: digest table, `state.json`, then the intent goes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime_sync import fsio
from vime_sync.local.journal import BLOCK_BYTES
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import (
    NO_RECORD,
    lineage_from_document,
    lineage_to_document,
    read_state,
    state_from_document,
    state_to_document,
)
from vime_sync.model import ChecksumFormat, Encoding, Lineage, LocalState, Span, structure_of

_APPLY_SCHEMA = "vime-sync/apply-intent/1"
_REPLACE_SCHEMA = "vime-sync/replace-intent/1"
_KEPT_INTENT = "intent.json"


@dataclass(frozen=True)
class Step:
    """One delta of a pass; `backward` takes its version back instead of bringing it."""

    version: int
    encoding: Encoding
    checksum: ChecksumFormat
    backward: bool = False


@dataclass(frozen=True)
class StagedPayload:
    """One delta of one tensor: where its frame is staged, and where the old bytes of an overwrite are kept.

    `content_size` is the frame's decoded size; `digest` the published digest of the tensor's new bytes.
    """

    step: int
    size_bytes: int
    content_size: int
    staged_offset: int
    old_offset: int
    digest: str


@dataclass(frozen=True)
class TensorWork:
    """One tensor of a pass: `old_digest` (xxh3-128) proves the bytes before, `digest` in `checksum` those after.

    Without payloads it only has to be proven, or rebuilt from an anchor.
    """

    name: str
    span: Span
    old_digest: str
    checksum: ChecksumFormat
    digest: str
    payloads: tuple[StagedPayload, ...]


@dataclass(frozen=True)
class ApplyIntent:
    """An in-place pass from `origin` to `lineage`'s last version; `work` is in the order of the journal's numbers.

    `origin_proven` is False where the bytes before were no whole version: going back then commits nothing.
    `forward_only` is True where a full version is written over the old one: there is no going back. `prestaged` is
    True where all payloads were staged before the intent: the kept ones of the pass that is taken back.
    """

    origin: LocalState
    lineage: Lineage
    steps: tuple[Step, ...]
    work: tuple[TensorWork, ...]
    boot_id: str
    origin_proven: bool = True
    forward_only: bool = False
    prestaged: bool = False
    block_bytes: int = BLOCK_BYTES

    @property
    def version(self) -> int:
        return self.lineage[-1].version


@dataclass(frozen=True)
class ReplaceIntent:
    """New files built aside, to be renamed over LOCAL's: name in LOCAL -> name in the aside directory.

    `state` is what will be committed. Files of ours that it lacks are known by the manifest.
    """

    state: LocalState
    moves: Mapping[str, str]
    from_version: int | None


Intent = ApplyIntent | ReplaceIntent


def begin(paths: LocalPaths, intent: Intent) -> None:
    """From here on the bytes may be between two versions. Durable when this returns."""
    fsio.write_atomic(paths.intent, json.dumps(_to_document(intent)).encode(), durable=True)
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
    """The intent on disk, or None if there is none. Raises ValueError for one that is not ours to read."""
    return _read(paths.intent)


def _read(path: Path) -> Intent | None:
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        if problem.errno not in NO_RECORD:
            raise
        raise ValueError(f"{path}: {problem.strerror}") from None
    try:
        return _from_document(json.loads(raw))
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{path}: {problem!r}") from None


def _to_document(intent: Intent) -> dict[str, Any]:
    if isinstance(intent, ReplaceIntent):
        return {
            "schema": _REPLACE_SCHEMA,
            "version": intent.state.version,
            "state": state_to_document(intent.state),
            "moves": dict(intent.moves),
            "from_version": intent.from_version,
        }
    return {
        "schema": _APPLY_SCHEMA,
        "origin_version": intent.origin.version,
        "origin": state_to_document(intent.origin),
        "lineage": lineage_to_document(intent.lineage),
        "steps": [[step.version, step.encoding.value, step.checksum.value, step.backward] for step in intent.steps],
        "work": [
            [
                work.name,
                [work.span.file, work.span.offset, work.span.size_bytes],
                work.old_digest,
                work.checksum.value,
                work.digest,
                [
                    [
                        payload.step,
                        payload.size_bytes,
                        payload.content_size,
                        payload.staged_offset,
                        payload.old_offset,
                        payload.digest,
                    ]
                    for payload in work.payloads
                ],
            ]
            for work in intent.work
        ],
        "boot_id": intent.boot_id,
        "origin_proven": intent.origin_proven,
        "forward_only": intent.forward_only,
        "prestaged": intent.prestaged,
        "block_bytes": intent.block_bytes,
    }


def _from_document(document: dict[str, Any]) -> Intent:
    if document["schema"] == _REPLACE_SCHEMA:
        state = state_from_document(document["state"], document["version"])
        return ReplaceIntent(state, document["moves"], document["from_version"])
    if document["schema"] != _APPLY_SCHEMA:
        raise ValueError(f"unknown intent {document['schema']!r}")
    return ApplyIntent(
        origin=state_from_document(document["origin"], document["origin_version"]),
        lineage=lineage_from_document(document["lineage"]),
        steps=tuple(
            Step(int(version), Encoding(encoding), ChecksumFormat(checksum), bool(backward))
            for version, encoding, checksum, backward in document["steps"]
        ),
        work=tuple(
            TensorWork(
                name,
                Span(*span),
                old,
                ChecksumFormat(checksum),
                digest,
                tuple(StagedPayload(*item) for item in payloads),
            )
            for name, span, old, checksum, digest, payloads in document["work"]
        ),
        boot_id=str(document["boot_id"]),
        origin_proven=bool(document["origin_proven"]),
        forward_only=bool(document["forward_only"]),
        prestaged=bool(document["prestaged"]),
        block_bytes=int(document["block_bytes"]),
    )
