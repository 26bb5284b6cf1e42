"""An intent as JSON, and back. Pure.

What comes back makes sense in itself: its names stay inside LOCAL, its steps, tensors and lineages fit one another, and
no tensor reaches out of its file. That its tensors lie where their shards' headers say is for whoever has the headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vime_sync.format.checksum import DIGEST_DIGITS
from vime_sync.format.codec import overwrite_count
from vime_sync.local import fields
from vime_sync.local.fields import Spoilt
from vime_sync.local.intent_values import ApplyIntent, Intent, ReplaceIntent, StagedPayload, Step, TensorWork
from vime_sync.local.journal import BLOCK_BYTES
from vime_sync.local.state_document import (
    lineage_from_document,
    lineage_to_document,
    state_from_document,
    state_to_document,
)
from vime_sync.model import ChecksumFormat, Encoding, FileStat, Span

_APPLY_SCHEMA = "vime-sync/apply-intent/1"
_REPLACE_SCHEMA = "vime-sync/replace-intent/1"
_HEX = re.compile(r"[0-9a-f]*")
# No sum of two of them needs more than 64 bits; and no disk is as large.
_MOST_BYTES = 1 << 60


def intent_to_document(intent: Intent) -> dict[str, Any]:
    if isinstance(intent, ReplaceIntent):
        return {
            "schema": _REPLACE_SCHEMA,
            "version": intent.state.version,
            "state": state_to_document(intent.state),
            "moves": dict(intent.moves),
            "from_version": intent.from_version,
            "ours": list(intent.ours),
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


def intent_from_document(document: dict[str, Any]) -> Intent:
    """Raises Spoilt."""
    try:
        if document["schema"] == _REPLACE_SCHEMA:
            return _replacement(document)
        if document["schema"] == _APPLY_SCHEMA:
            return _pass(document)
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise Spoilt(f"no intent of ours: {problem!r:.200}") from None
    raise Spoilt(f"unknown intent {document['schema']!r:.80}")


def _replacement(document: dict[str, Any]) -> ReplaceIntent:
    state = state_from_document(document["state"], document["version"])
    moves = {fields.name_inside(name): _place_aside(place) for name, place in fields.mapping(document["moves"]).items()}
    if moves.keys() != state.stats.keys() or len(set(moves.values())) != len(moves):
        raise Spoilt("the files to move are not the files of the version")
    came_from = document["from_version"]
    ours = tuple(map(fields.name_inside, fields.listing(document["ours"])))
    return ReplaceIntent(state, moves, None if came_from is None else fields.version_number(came_from), ours)


def _place_aside(value: object) -> str:
    """A file right in the directory where new files are built."""
    name = fields.name_inside(value)
    if "/" in name:
        raise Spoilt(f"{name!r:.80}, expected a file right in aside/")
    return name


def _pass(document: dict[str, Any]) -> ApplyIntent:
    origin = state_from_document(document["origin"], document["origin_version"])
    lineage = lineage_from_document(document["lineage"])
    steps = tuple(_step(*fields.listing(step)) for step in fields.listing(document["steps"]))
    # What is taken back is what the bytes were built from; what is brought is what they are then built from.
    known = {True: {entry.version for entry in origin.lineage}, False: {entry.version for entry in lineage}}
    if any(step.version not in known[step.backward] for step in steps):
        raise Spoilt("steps that lead along neither lineage")
    if len({step.version for step in steps}) != len(steps):
        raise Spoilt("a version that is brought twice")
    if len({step.backward for step in steps}) > 1:
        raise Spoilt("steps that lead both ways")
    if document["block_bytes"] != BLOCK_BYTES:
        raise Spoilt("blocks of another size than ours")
    return ApplyIntent(
        origin=origin,
        lineage=lineage,
        steps=steps,
        work=_work(fields.listing(document["work"]), steps, origin.stats),
        boot_id=fields.word(document["boot_id"]),
        origin_proven=fields.flag(document["origin_proven"]),
        forward_only=fields.flag(document["forward_only"]),
        prestaged=fields.flag(document["prestaged"]),
    )


def _step(version: object, encoding: object, checksum: object, backward: object) -> Step:
    return Step(fields.version_number(version), Encoding(encoding), ChecksumFormat(checksum), fields.flag(backward))


def _work(items: list[Any], steps: tuple[Step, ...], stats: Mapping[str, FileStat]) -> tuple[TensorWork, ...]:
    """There may be a hundred thousand tensors: what can be checked of all of them at once is."""
    checksums = {checksum.value: checksum for checksum in ChecksumFormat}
    work = []
    numbers: list[int] = []
    digests: dict[ChecksumFormat, list[str]] = {checksum: [] for checksum in ChecksumFormat}
    shapes = [(digests[step.checksum], step.encoding is Encoding.XOR) for step in steps]
    for name, (file, offset, size_bytes), old_digest, checksum_name, digest, payloads in items:
        checksum = checksums[checksum_name]
        for payload in payloads:
            found, is_xor = shapes[payload[0]]
            found.append(payload[5])
            numbers += payload[:5]
            if not is_xor:
                overwrite_count(payload[2], size_bytes)
            elif payload[2] != size_bytes:
                raise Spoilt(f"tensor {name!r:.80} is not as long as its delta")
        staged = tuple([StagedPayload(*payload) for payload in payloads])
        if len(staged) > 1:
            _check_order([payload.step for payload in staged])
        digests[ChecksumFormat.XXH3_128].append(old_digest)
        digests[checksum].append(digest)
        numbers += (offset, size_bytes)
        work.append(TensorWork(name, Span(file, offset, size_bytes), old_digest, checksum, digest, staged))
    if set(map(type, numbers)) - {int} or min(numbers, default=0) < 0 or max(numbers, default=0) > _MOST_BYTES:
        raise Spoilt("a size or place that is no number of bytes")
    for checksum, found in digests.items():
        _check_digests(checksum, found)
    fields.check_encodable(item.name for item in work)
    if len({item.name for item in work}) != len(work):
        raise Spoilt("a tensor stands twice in a pass")
    _check_places(work, stats)
    return tuple(work)


def _check_order(steps: list[int]) -> None:
    """Oldest first, or the other way round when they are taken back."""
    if len(set(steps)) != len(steps) or sorted(steps) not in (steps, steps[::-1]):
        raise Spoilt("a tensor has its payloads in no order")


def _check_digests(checksum: ChecksumFormat, found: list[str]) -> None:
    digits = DIGEST_DIGITS[checksum]
    together = "".join(found)
    if len(together) != digits * len(found) or set(map(len, found)) - {digits} or not _HEX.fullmatch(together):
        raise Spoilt(f"what should be {checksum.value} digests is none")


def _check_places(work: list[TensorWork], stats: Mapping[str, FileStat]) -> None:
    """No tensor reaches out of its file, as far as the file's size is known, and no two share a byte."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for item in work:
        span = item.span
        spans.setdefault(span.file, []).append((span.offset, span.offset + span.size_bytes))
    for file, found in spans.items():
        fields.name_inside(file)
        if file not in stats:
            raise Spoilt(f"a tensor in {file!r:.80}, which is no file of the version")
        last = 0
        for begin, end in sorted(found):
            if begin < last and begin < end:
                raise Spoilt(f"two tensors in one place of {file!r:.80}")
            last = max(last, end)
        if 0 <= stats[file].size_bytes < last:
            raise Spoilt(f"a tensor beyond the end of {file!r:.80}")
