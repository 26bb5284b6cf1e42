"""Delta bytes on this host's disk: a tensor's payloads are copied here before the tensor is first written.

So a share that loses or replaces files in the middle changes nothing, and every step can be finished or undone from
local bytes (docs/DESIGN.md). One file of frames and one of old values per delta of the pass; the intent says where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from vime_sync import fsio
from vime_sync.format.codec import Bytes, overwrite_count
from vime_sync.local.intent import ApplyIntent, StagedPayload, Step, TensorWork
from vime_sync.materialize.steps import BlockStep, FileRegion, OldValues, naming, open_step, walk_frame
from vime_sync.model import ChecksumFormat, DeltaVersion, Encoding, Span
from vime_sync.stream.payloads import SourceFiles

_PIECE_BYTES = 256 << 10


def lay_out(
    spans: Mapping[str, Span],
    digests: Mapping[str, str],
    deltas: Sequence[DeltaVersion],
    content_sizes: Sequence[Mapping[str, int]],
    repairs: frozenset[str],
    standing: Mapping[str, int] | None = None,
) -> tuple[TensorWork, ...]:
    """The work of a pass, largest tensor first, with each payload's place in the staging files. Pure.

    `digests` are ours of the bytes as they are; `content_sizes` of the frames come from `check_payloads`. With
    `standing` only those tensors are worked on, each from the version it stands at.
    """
    touched = repairs.union(*(delta.payloads for delta in deltas)) if standing is None else frozenset(standing)
    staged_ends = [0] * len(deltas)
    old_ends = [0] * len(deltas)
    work = []
    for name in _in_turns(touched, spans):
        payloads = []
        for number, delta in enumerate(deltas):
            payload = delta.payloads.get(name)
            if payload is None or (standing is not None and delta.version <= standing[name]):
                continue
            content_size = content_sizes[number][name]
            payloads.append(
                StagedPayload(
                    number, payload.size_bytes, content_size, staged_ends[number], old_ends[number], payload.digest
                )
            )
            staged_ends[number] += payload.size_bytes
            if delta.encoding is Encoding.OVERWRITE:
                old_ends[number] += overwrite_count(content_size, spans[name].size_bytes)
        if payloads:
            wanted = (deltas[payloads[-1].step].checksum, payloads[-1].digest)
        else:
            wanted = (ChecksumFormat.XXH3_128, digests[name])
        work.append(TensorWork(name, spans[name], digests[name], *wanted, tuple(payloads)))
    return tuple(work)


def _in_turns(names: Iterable[str], spans: Mapping[str, Span]) -> list[str]:
    """Largest first; of equal ones the files take turns, as two threads that write to one file wait for each other."""
    met: Counter[tuple[int, str]] = Counter()
    order = []
    for name in sorted(names):
        span = spans[name]
        place = (span.size_bytes, span.file)
        order.append((-span.size_bytes, met[place], span.file, name))
        met[place] += 1
    return [name for *_, name in sorted(order)]


def staging_bytes(intent: ApplyIntent) -> int:
    """How much room the staging files of a pass take."""
    return sum(
        payload.size_bytes + (payload.content_size // 5 if _overwrites(intent, payload) else 0)
        for work in intent.work
        for payload in work.payloads
    )


def _overwrites(intent: ApplyIntent, payload: StagedPayload) -> bool:
    return intent.steps[payload.step].encoding is Encoding.OVERWRITE


class Staging:
    """The staging files of one pass, open for the time of a job. Safe to share between threads."""

    def __init__(self, directory: Path, steps: Sequence[Step], *, fresh: bool) -> None:
        self._steps = steps
        if fresh:
            fsio.remove_tree(directory)
        fsio.make_directory(directory)
        with ExitStack() as opened:  # half of them open is none open

            def open_file(path: Path) -> fsio.File:
                return opened.enter_context(fsio.File(path, write=True, create=fresh or not path.exists()))

            self._frames = [open_file(directory / f"{step.version}.frames") for step in steps]
            self._old = [open_file(directory / f"{step.version}.old") for step in steps]
            self._opened = opened.pop_all()

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def stage(self, work: TensorWork, deltas: Sequence[DeltaVersion], files: SourceFiles) -> int:
        """Copy the tensor's payloads here, checking that each is one whole frame; returns how many bytes.

        Raises StreamChanged, ShareUnreachable, Malformed, CorruptPayload, OSError (local).
        """
        scratch = np.empty(_PIECE_BYTES, np.uint8)
        copied = 0
        for staged in work.payloads:
            delta = deltas[staged.step]
            payload = delta.payloads[work.name]
            shard = delta.shards[payload.shard]
            target = self._frames[staged.step]

            def read_into(view: memoryview, offset: int) -> None:
                files.read_into(view, shard.path, shard.stat, payload.offset + offset, delta.version)  # noqa: B023

            def take(view: memoryview, offset: int) -> None:
                target.write_at(view, staged.staged_offset + offset)  # noqa: B023

            with naming(delta.version, work.name):
                walk_frame(read_into, payload.size_bytes, scratch, take)
            copied += payload.size_bytes
        return copied

    def open_steps(self, work: TensorWork, scratch: Bytes, *, keep_old: bool = True) -> list[BlockStep]:
        """The tensor's steps over its staged payloads. Raises Malformed, CorruptPayload."""
        steps = []
        for staged in work.payloads:
            step = self._steps[staged.step]
            frames = self._frames[staged.step]

            def open_source(frames: fsio.File = frames, staged: StagedPayload = staged) -> FileRegion:
                return FileRegion(frames, staged.staged_offset, staged.size_bytes)

            # Going back needs the old values in either direction; going forward only a real write keeps them.
            with_old = keep_old or step.backward
            old = OldValues(self._old[staged.step], staged.old_offset) if with_old else None
            opened = open_step(
                step.version,
                work.name,
                step.encoding,
                open_source,
                staged.content_size,
                work.span.size_bytes,
                scratch,
                old,
                reverse=step.backward,
            )
            steps.append(opened)
        return steps
