"""A whole in-place pass from plan to commit: checks, intent, forward, and back when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vime_sync.errors import ChecksumMismatch, Damaged, Interrupted, NoRoom, StreamChanged, SyncError
from vime_sync.local import intent as intents
from vime_sync.local.intent import ApplyIntent, Step
from vime_sync.local.journal import Side
from vime_sync.local.ownership import replace_links
from vime_sync.local.room import SPARE_BYTES, make_room
from vime_sync.local.state import boot_id
from vime_sync.materialize.apply import ApplyJob, Feed, OpenChain
from vime_sync.materialize.commit import clear, commit, current_stats
from vime_sync.materialize.context import Buffers, Context
from vime_sync.materialize.diagnose import diagnose
from vime_sync.materialize.staging import lay_out, staging_bytes
from vime_sync.materialize.transform import transform
from vime_sync.model import DeltaVersion, DigestTable, LocalState, Span, lineage_entry
from vime_sync.stream.payloads import SourceFiles, check_payloads


def prepare_apply(
    context: Context,
    origin: LocalState,
    table: DigestTable,
    spans: dict[str, Span],
    deltas: Sequence[DeltaVersion],
    repairs: frozenset[str],
    files: SourceFiles,
) -> ApplyIntent:
    """Check all that needs no decoding, before a local byte changes; returns the intent of the pass.

    Raises LineageMismatch, Malformed, StreamChanged, ShareUnreachable, NoRoom.
    """
    content_sizes = [check_payloads(delta, spans, files) for delta in deltas]
    lineage = origin.lineage + tuple(lineage_entry(delta) for delta in deltas)
    steps = tuple(Step(delta.version, delta.encoding, delta.checksum) for delta in deltas)
    work = lay_out(spans, table.tensors, deltas, content_sizes, repairs)
    intent = ApplyIntent(origin, lineage, steps, work, boot_id())
    needed = staging_bytes(intent) + SPARE_BYTES
    free = make_room(context.paths, needed)
    if needed > free:
        raise NoRoom(
            f"staging version {intent.version} needs {needed} bytes on the filesystem of {context.paths.root}, "
            f"which has {free} free",
            hint="Free some space there and run the same command again.",
        )
    return intent


@dataclass(frozen=True)
class Applied:
    """What a pass committed, as it was written: nobody has to read it again. `repaired` tensors were rebuilt."""

    state: LocalState
    table: DigestTable
    repaired: int


def apply_pass(
    context: Context,
    intent: ApplyIntent,
    table: DigestTable,
    feed: Feed | None,
    repairs: frozenset[str],
    chain: OpenChain,
) -> Applied:
    """Apply and commit.

    `repairs` are tensors known to be wrong here, to be rebuilt and not transformed. Whatever fails, the old version is
    whole and committed again before the error leaves (but for a signal, and for a disk that does not let us: then the
    intent stays, and the next run heals).
    """
    replace_links(context.paths, sorted({work.span.file for work in intent.work}))
    intents.begin(context.paths, intent)
    with ApplyJob(context, intent, feed, chain, fresh=True) as job:
        job.rotten = {number for number, work in enumerate(intent.work) if work.name in repairs}
        return finish(job, table)


def finish(job: ApplyJob, table: DigestTable) -> Applied:
    """Forward and commit, or back and raise."""
    intent = job.intent
    try:
        job.forward()
        state, new_table = committed_forward(job, table)
        state = commit(job.context, state, new_table, trusted=not job.distrusted)
    except Interrupted:
        raise
    except Exception as failure:
        if intent.forward_only:
            raise  # the bytes that were replaced are nowhere any more: the intent stays, the next run goes on
        problem = undo(job, failure)
        if intent.prestaged and isinstance(problem, SyncError):
            # Nobody published what failed here: it was kept on this host, and is spoilt. Plan again without it.
            intents.drop_kept(job.context.paths)
            problem = StreamChanged(f"what the last pass kept does not lead back: {problem.message}")
        raise problem from (failure if problem is not failure else None)
    forward = bool(intent.steps) and not any(step.backward for step in intent.steps)
    clear(job.context.paths, keep=forward and intent.origin_proven)
    return Applied(state, new_table, len(job.rebuilt))


def undo(job: ApplyJob, failure: Exception) -> Exception:
    """Make the old version whole again, find out whose fault it was, commit; returns the error to raise."""
    # The commit itself may have failed half way: a state must not stand beside bytes that are being undone.
    intents.withdraw_state(job.context.paths)
    wrong = job.back()
    problem: Exception = failure
    backward = any(step.backward for step in job.intent.steps)
    if isinstance(failure, ChecksumMismatch) and failure.tensors and not backward:
        problem = _diagnose(job, failure)
    commit_back(job, wrong)
    if wrong and isinstance(problem, SyncError):
        problem.message += f"; {len(wrong)} tensors were found rotten here and are marked for repair"
    return problem


def commit_back(job: ApplyJob, wrong: frozenset[str]) -> None:
    """The origin is the truth again; where it was no whole version, nothing is."""
    state = committed_back(job, wrong)
    job.close()
    intents.drop_staged(job.context.paths)  # on a full disk the state needs the room (H6)
    if job.intent.origin_proven:
        commit(job.context, state, None, trusted=not job.distrusted)
    intents.end(job.context.paths)


def _diagnose(job: ApplyJob, failure: ChecksumMismatch) -> SyncError:
    numbers = {work.name: number for number, work in enumerate(job.intent.work)}
    smallest_first = [work.name for work in reversed(job.intent.work) if work.payloads]

    def first_bad_version(name: str) -> int | None:
        return _first_bad_version(job, numbers[name])

    return diagnose(failure, smallest_first, first_bad_version, job.intent.version)


def _first_bad_version(job: ApplyJob, number: int) -> int | None:
    """Replay one tensor from its old bytes, delta by delta, without writing. Raises Damaged where those are wrong."""
    intent = job.intent
    work = intent.work[number]
    check: Callable[[], None] = job.context.stop.check
    if number not in job.staged and job.feed is not None and not job.journal.begun(number):
        job.staging.stage(work, job.feed.deltas, job.feed.files)
    buffers = Buffers()
    for count in range(1, len(work.payloads) + 1):
        payload = work.payloads[count - 1]
        step = intent.steps[payload.step]
        steps = job.staging.open_steps(work, buffers.scratch, keep_old=False)[:count]
        digests = transform(
            job.files.get(work.span.file), work.span, steps, step.checksum, buffers, check,
            journal=None, tensor=number, want=Side.NEW,
        )  # fmt: skip
        if digests.old != work.old_digest:
            raise Damaged(f"tensor {work.name!r} is rotten here: no replay says anything of what was published")
        if digests.published != payload.digest:
            return step.version
    return None


def committed_forward(job: ApplyJob, table: DigestTable) -> tuple[LocalState, DigestTable]:
    """The state and the table that a finished pass commits. Reads only the stats of the touched files."""
    intent = job.intent
    files = {work.span.file for work in intent.work}
    origin = intent.origin
    state = replace(
        origin,
        version=intent.version,
        lineage=intent.lineage,
        stats={**origin.stats, **current_stats(job.context.paths, files)},
        damaged=tuple(name for name in origin.damaged if name not in job.digests),
        repairs=origin.repairs + (1 if job.rebuilt else 0),
    )
    return state, DigestTable(intent.version, table.anchor_identity, {**table.tensors, **job.digests}, table.files)


def committed_back(job: ApplyJob, wrong: frozenset[str]) -> LocalState:
    """The state after an undo: the origin, with the touched files' new stats.

    A tensor that was known to be damaged and was rebuilt on the way is proven to be at its old bytes: it is whole now.
    """
    origin = job.intent.origin
    files = {work.span.file for work in job.intent.work}
    whole = {work.name for number, work in enumerate(job.intent.work) if job.journal.begun(number)} - wrong
    return replace(
        origin,
        stats={**origin.stats, **current_stats(job.context.paths, files)},
        damaged=tuple(sorted({*origin.damaged, *wrong} - whole)),
    )
