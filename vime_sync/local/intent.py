"""The intent: the durable record that LOCAL's bytes are between two versions, and all that is needed to finish
or to undo.

Order (each step durable before the next, docs/DESIGN.md): intent written, `state.json` removed, directory synced,
and only then the first byte of data changes. At the end: digest table, `state.json`, then the intent goes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vime_sync import fsio
from vime_sync.local.journal import BLOCK_BYTES
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import (
    boot_id,
    lineage_from_document,
    lineage_to_document,
    state_from_document,
    state_to_document,
)
from vime_sync.model import ChecksumFormat, Encoding, Lineage, LocalState, Span

_APPLY_SCHEMA = "vime-sync/apply-intent/1"
_REPLACE_SCHEMA = "vime-sync/replace-intent/1"


@dataclass(frozen=True)
class Step:
    """One delta of a pass."""

    version: int
    encoding: Encoding
    checksum: ChecksumFormat


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
    """One tensor of a pass. `old_digest` is ours (xxh3-128); without payloads it only has to be proven or rebuilt."""

    name: str
    span: Span
    old_digest: str
    payloads: tuple[StagedPayload, ...]


@dataclass(frozen=True)
class ApplyIntent:
    """An in-place pass from `origin` to `lineage`'s last version; `work` is in the order of the journal's numbers."""

    origin: LocalState
    lineage: Lineage
    steps: tuple[Step, ...]
    work: tuple[TensorWork, ...]
    boot_id: str
    block_bytes: int = BLOCK_BYTES

    @property
    def version(self) -> int:
        return self.lineage[-1].version

    def wanted(self, work: TensorWork) -> tuple[ChecksumFormat, str]:
        """The digest that proves the tensor's new bytes: the publisher's, or ours where no delta touches it."""
        if not work.payloads:
            return ChecksumFormat.XXH3_128, work.old_digest
        last = work.payloads[-1]
        return self.steps[last.step].checksum, last.digest


@dataclass(frozen=True)
class ReplaceIntent:
    """New files built aside, to be renamed over LOCAL's: name in LOCAL -> name in the aside directory.

    `state` is what will be committed; `remove` are files of ours that the new version lacks.
    """

    state: LocalState
    moves: Mapping[str, str]
    remove: tuple[str, ...]


Intent = ApplyIntent | ReplaceIntent


def new_apply_intent(
    origin: LocalState, lineage: Lineage, steps: tuple[Step, ...], work: tuple[TensorWork, ...]
) -> ApplyIntent:
    return ApplyIntent(origin, lineage, steps, work, boot_id())


def begin(paths: LocalPaths, intent: Intent) -> None:
    """From here on the bytes may be between two versions. Durable when this returns."""
    fsio.write_atomic(paths.intent, json.dumps(_to_document(intent)).encode(), durable=True)
    fsio.unlink(paths.state)
    fsio.sync_directory(paths.sync)


def end(paths: LocalPaths) -> None:
    """The state says where the bytes are: the intent and what was staged for it are done with."""
    fsio.unlink(paths.intent)
    fsio.sync_directory(paths.sync)
    fsio.unlink(paths.journal)
    fsio.remove_tree(paths.staged)


def read_intent(paths: LocalPaths) -> Intent | None:
    """The intent on disk, or None if there is none. Raises ValueError for one that is not ours to read."""
    try:
        raw = paths.intent.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return _from_document(json.loads(raw))
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{paths.intent}: {problem!r}") from None


def _to_document(intent: Intent) -> dict[str, Any]:
    if isinstance(intent, ReplaceIntent):
        return {
            "schema": _REPLACE_SCHEMA,
            "version": intent.state.version,
            "state": state_to_document(intent.state),
            "moves": dict(intent.moves),
            "remove": list(intent.remove),
        }
    return {
        "schema": _APPLY_SCHEMA,
        "origin_version": intent.origin.version,
        "origin": state_to_document(intent.origin),
        "lineage": lineage_to_document(intent.lineage),
        "steps": [[step.version, step.encoding.value, step.checksum.value] for step in intent.steps],
        "work": [
            [
                work.name,
                [work.span.file, work.span.offset, work.span.size_bytes],
                work.old_digest,
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
        "block_bytes": intent.block_bytes,
    }


def _from_document(document: dict[str, Any]) -> Intent:
    if document["schema"] == _REPLACE_SCHEMA:
        state = state_from_document(document["state"], document["version"])
        return ReplaceIntent(state, document["moves"], tuple(document["remove"]))
    if document["schema"] != _APPLY_SCHEMA:
        raise ValueError(f"unknown intent {document['schema']!r}")
    return ApplyIntent(
        origin=state_from_document(document["origin"], document["origin_version"]),
        lineage=lineage_from_document(document["lineage"]),
        steps=tuple(
            Step(int(version), Encoding(encoding), ChecksumFormat(checksum))
            for version, encoding, checksum in document["steps"]
        ),
        work=tuple(
            TensorWork(name, Span(*span), old_digest, tuple(StagedPayload(*payload) for payload in payloads))
            for name, span, old_digest, payloads in document["work"]
        ),
        boot_id=str(document["boot_id"]),
        block_bytes=int(document["block_bytes"]),
    )
