"""The in-place pass: deltas folded over local tensors, forward under proof, or back when that fails.

The same job object starts a pass, undoes it and (after a kill) finishes it: what differs is only what the journal
already holds. Which digest failed says whose fault it is (docs/DESIGN.md): the old one wrong means local bytes were
rotten, and the tensor is rebuilt from its anchor; the old one right and the new one wrong means a bad publication.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from vime_sync import fsio
from vime_sync.errors import ChecksumMismatch, CorruptPayload, Damaged, Malformed, SyncError
from vime_sync.format.checksum import new_hasher
from vime_sync.local.intent import ApplyIntent, TensorWork
from vime_sync.local.journal import Journal, Side, block_count
from vime_sync.materialize.context import Buffers, Context
from vime_sync.materialize.local_files import LocalFiles
from vime_sync.materialize.pool import run
from vime_sync.materialize.rebuild import Chain, rebuild, span_digest
from vime_sync.materialize.staging import Staging
from vime_sync.materialize.transform import Digests, settle_torn_block, transform
from vime_sync.model import ChecksumFormat, DeltaVersion
from vime_sync.stream.payloads import SourceFiles


@dataclass(frozen=True)
class Feed:
    """Where payloads that are not staged yet come from: the pass's deltas on the share."""

    deltas: Sequence[DeltaVersion]
    files: SourceFiles


# Opens the chain from an anchor to the pass's target (NEW) or origin (OLD); raises SyncError where there is none.
OpenChain = Callable[[Side], Chain]


class ApplyJob:
    """One in-place pass. Use as a context manager; `fresh` starts it, else it is taken up where a kill left it."""

    def __init__(self, context: Context, intent: ApplyIntent, feed: Feed | None, open_chain: OpenChain, *, fresh: bool):
        self.context = context
        self.intent = intent
        self.feed = feed
        self.staged: set[int] = set()
        self.rotten: set[int] = set()
        self.digests: dict[str, str] = {}
        self._open_chain = open_chain
        self._fresh = fresh
        self.distrusted = False
        self._guard = threading.Lock()
        self._stack = ExitStack()
        self.rebuilt: set[int] = set()

    def __enter__(self) -> ApplyJob:
        try:
            self._open()
        except BaseException:  # nobody calls the exit of what was not entered
            self.close()
            raise
        return self

    def _open(self) -> None:
        paths = self.context.paths
        directory = paths.kept if self.intent.prestaged else paths.staged
        fresh = self._fresh and not self.intent.prestaged
        self.staging = self._stack.enter_context(Staging(directory, self.intent.steps, fresh=fresh))
        counts = [block_count(work.span.size_bytes) for work in self.intent.work]
        self.journal = Journal(paths.journal, counts, fresh=self._fresh)
        self._stack.callback(self.journal.close)
        self.files = self._stack.enter_context(LocalFiles(paths))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files: what is removed then also frees its space."""
        self._stack.close()

    def distrust(self) -> None:
        """After a power loss neither the journal nor what is staged is believed: every tensor is looked at whole."""
        self.distrusted = True
        for number in range(len(self.intent.work)):
            self.journal.distrust(number)

    # ---- forward

    def forward(self) -> None:
        """Bring every tensor of the pass to its new bytes, proven. Raises at the first that cannot be."""
        todo = [number for number in range(len(self.intent.work)) if number not in self.rotten]
        self.context.tally.start("apply", len(todo), sum(self.intent.work[number].span.size_bytes for number in todo))
        run(self.context, todo, self._forward_one, self._stage_one)
        if self.rotten:
            self._rebuild_rotten()

    def _stage_one(self, number: int, check: Callable[[], None]) -> None:
        work = self.intent.work[number]
        if not work.payloads or self.intent.prestaged:
            return
        if self.distrusted and self.feed is None:
            return  # what is staged is tried as it is: digests decide
        if not self.distrusted and not self._fresh and self.journal.begun(number):
            return  # begun means that it was staged whole before
        if self.feed is None:
            raise Damaged(
                f"finishing version {self.intent.version}: tensor {work.name!r} was not staged before the kill, and "
                "the share does not have it any more",
                version=self.intent.version,
                tensors=(work.name,),
            )
        copied = self.staging.stage(work, self.feed.deltas, self.feed.files)
        self.context.tally.add(read=copied)
        with self._guard:
            self.staged.add(number)

    def _forward_one(self, number: int, buffers: Buffers, check: Callable[[], None]) -> None:
        work = self.intent.work[number]
        found = not self._fresh and self.journal.begun(number) and self._found_after_kill(number, buffers, check)
        if not found and not self.journal.is_lost(number):
            found = self._transform_one(number, buffers, check)
        if not found:
            with self._guard:
                self.rotten.add(number)
        self.context.tally.advance("apply", work.span.size_bytes)

    def _transform_one(self, number: int, buffers: Buffers, check: Callable[[], None]) -> bool:
        """True when the new bytes are proven, False when the old ones were rotten."""
        work = self.intent.work[number]
        file = self.files.get(work.span.file)
        if not work.payloads:
            digest = span_digest(file, work.span, buffers, check)
            self.context.tally.add(read=work.span.size_bytes)
            if digest == work.digest:
                self._note(number, digest)
            return digest == work.digest
        digests = self._transform(number, buffers, check, Side.NEW)
        if digests.published == work.digest:
            self._note(number, digests.new)
            return True
        if digests.old != work.old_digest:
            return False
        raise ChecksumMismatch(
            f"version {self.intent.version}: tensor {work.name!r} comes to the {work.checksum.value} digest "
            f"{digests.published}, expected {work.digest}; the bytes before were right",
            version=self.intent.version,
            tensors=(work.name,),
        )

    def _transform(self, number: int, buffers: Buffers, check: Callable[[], None], want: Side) -> Digests:
        work = self.intent.work[number]
        steps = self.staging.open_steps(work, buffers.scratch)
        file = self.files.get(work.span.file)
        digests = transform(
            file, work.span, steps, work.checksum, buffers, check, journal=self.journal, tensor=number, want=want
        )
        self.context.tally.add(read=work.span.size_bytes, written=digests.written_bytes)
        return digests

    def _note(self, number: int, digest: str) -> None:
        with self._guard:
            self.digests[self.intent.work[number].name] = digest

    def _found_after_kill(self, number: int, buffers: Buffers, check: Callable[[], None]) -> bool:
        """Whether a tensor that was begun turns out to be done; also learns when it is untouched after all."""
        work = self.intent.work[number]
        file = self.files.get(work.span.file)
        ours = span_digest(file, work.span, buffers, check)
        if ours == work.old_digest and work.payloads:
            self.journal.record_found(number, Side.OLD)
            return False
        published = ours
        if work.checksum is not ChecksumFormat.XXH3_128:
            hasher = new_hasher(work.checksum)
            for start in range(0, work.span.size_bytes, len(buffers.current)):
                block = buffers.current[: min(len(buffers.current), work.span.size_bytes - start)]
                file.read_into(block.data, work.span.offset + start)
                hasher.update(block.data)
            published = hasher.hexdigest()
        if published != work.digest:
            return False
        self.journal.record_found(number, Side.NEW)
        self._note(number, ours)
        return True

    def _rebuild_rotten(self) -> None:
        """Tensors whose old bytes were wrong come from the anchor along the chain (FIELD_GUIDE H5)."""
        chain = self._open_chain(Side.NEW)
        rotten = sorted(self.rotten)
        self.context.tally.start("repair", len(rotten), sum(self.intent.work[item].span.size_bytes for item in rotten))
        run(self.context, rotten, lambda number, buffers, check: self._rebuild_one(chain, number, buffers, check))
        chain.files.check_unchanged()

    def _rebuild_one(self, chain: Chain, number: int, buffers: Buffers, check: Callable[[], None]) -> None:
        work = self.intent.work[number]
        self.journal.record_lost(number)
        file = self.files.get(work.span.file)
        digests = rebuild(chain, work.name, file, work.span.offset, buffers, check, checksum=work.checksum)
        self.context.tally.add(read=work.span.size_bytes, written=work.span.size_bytes)
        if digests.published != work.digest:
            what = (
                f"version {self.intent.version}: tensor {work.name!r} was rotten here; rebuilt from "
                f"{chain.anchor.directory} it comes to {digests.published}, expected {work.digest}"
            )
            # The same two digests tell who is at fault: an anchor that leads to the old bytes is the right one.
            if work.payloads and self._rebuilds_old(work, buffers, check):
                raise ChecksumMismatch(
                    f"{what}; the bytes before come out right", version=self.intent.version, tensors=(work.name,)
                )
            raise Damaged(what, version=self.intent.version, tensors=(work.name,))
        self.journal.record_found(number, Side.NEW)
        self._note(number, digests.new)
        with self._guard:
            self.rotten.discard(number)
            self.rebuilt.add(number)
        self.context.tally.advance("repair", work.span.size_bytes)

    def _rebuilds_old(self, work: TensorWork, buffers: Buffers, check: Callable[[], None]) -> bool:
        try:
            return rebuild(self._open_chain(Side.OLD), work.name, None, 0, buffers, check).new == work.old_digest
        except SyncError:
            return False

    # ---- back

    def settle(self) -> None:
        """Settle the block of each tensor that a kill or a failed write may have torn; what cannot be is rebuilt."""
        doubtful = [number for number in range(len(self.intent.work)) if self.journal.doubt(number) is not None]
        run(self.context, doubtful, self._settle_one)

    def _settle_one(self, number: int, buffers: Buffers, check: Callable[[], None]) -> None:
        work, doubt = self.intent.work[number], self.journal.doubt(number)
        assert doubt is not None
        steps = self.staging.open_steps(work, buffers.scratch, keep_old=doubt.towards is Side.OLD)
        side = settle_torn_block(self.files.get(work.span.file), work.span, steps, buffers, doubt)
        if side is None:
            self.journal.record_lost(number)
        else:
            self.journal.settle(number, side)

    def back(self) -> frozenset[str]:
        """Bring every tensor that was begun back to its old bytes; returns the names of those that are not right.

        Those were rotten before the pass, or had to be rebuilt and cannot be any more.
        """
        self.settle()
        begun = [number for number in range(len(self.intent.work)) if self.journal.begun(number)]
        # Rotten but never written: still as wrong as it was found.
        wrong = {self.intent.work[number].name for number in self.rotten if not self.journal.begun(number)}
        self.context.tally.start("undo", len(begun), sum(self.intent.work[number].span.size_bytes for number in begun))

        def undo(number: int, buffers: Buffers, check: Callable[[], None]) -> None:
            if not self._back_one(number, buffers, check):
                with self._guard:
                    wrong.add(self.intent.work[number].name)
            self.context.tally.advance("undo", self.intent.work[number].span.size_bytes)

        run(self.context, begun, undo)
        return frozenset(wrong)

    def _back_one(self, number: int, buffers: Buffers, check: Callable[[], None]) -> bool:
        work = self.intent.work[number]
        file = self.files.get(work.span.file)
        if self.journal.is_lost(number) or not work.payloads:
            return self._back_from_anchor(work, file, buffers, check)
        try:
            digests = self._transform(number, buffers, check, Side.OLD)
        except (CorruptPayload, Malformed):  # what was staged is spoilt: by a power loss, never by a mere kill
            self.journal.record_lost(number)
            return self._back_from_anchor(work, file, buffers, check)
        if digests.old == work.old_digest:
            return True
        # Old values kept from rotten bytes do not undo a tensor that was rebuilt since.
        return number in self.rebuilt and self._back_from_anchor(work, file, buffers, check)

    def _back_from_anchor(self, work: TensorWork, file: fsio.File, buffers: Buffers, check: Callable[[], None]) -> bool:
        if span_digest(file, work.span, buffers, check) == work.old_digest:
            return True
        try:
            chain = self._open_chain(Side.OLD)
            return rebuild(chain, work.name, file, work.span.offset, buffers, check).new == work.old_digest
        except SyncError:
            return False
