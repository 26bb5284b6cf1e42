"""What a job is about to do, as values: the deltas of a pass and each tensor's share of them, or the files of a seed.

Owns the words of an intent; how it stands on disk is `intent` and `intent_document`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vime_sync.local.journal import BLOCK_BYTES
from vime_sync.model import ChecksumFormat, DeltaVersion, Encoding, Lineage, LocalState, Span


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

    `state` is what will be committed. `ours` are all files of ours before and after, once the intent is begun: those
    that the new version lacks go.
    """

    state: LocalState
    moves: Mapping[str, str]
    from_version: int | None
    ours: tuple[str, ...] = ()


Intent = ApplyIntent | ReplaceIntent


def is_staged_from(intent: ApplyIntent, deltas: Sequence[DeltaVersion]) -> bool:
    """Whether the payloads of a pass are those of its deltas, step by step: an intent is a record, and may be wrong."""
    return len(deltas) == len(intent.steps) and all(
        published is not None and (published.size_bytes, published.digest) == (payload.size_bytes, payload.digest)
        for work in intent.work
        for payload in work.payloads
        for published in (deltas[payload.step].payloads.get(work.name),)
    )
