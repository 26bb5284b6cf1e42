"""What a kill left: an intent is there, or none; afterwards LOCAL is at a whole version again.

A `state.json` beside the intent voids it: ours means that the job had ended or not begun, the peers' that their
receiver took over (FIELD_GUIDE H20). Otherwise a replacement is finished by renaming the rest, and an in-place pass is
finished from what is staged (and from the share for what was not begun), or undone from local bytes alone.
"""

from __future__ import annotations

from collections.abc import Callable

from vime_sync.errors import Damaged, Interrupted, LocalIOError, SyncError
from vime_sync.local import intent as intents
from vime_sync.local.intent import ApplyIntent, ReplaceIntent
from vime_sync.local.journal import Side
from vime_sync.local.state import boot_id, read_state, read_table
from vime_sync.materialize.apply import ApplyJob, Feed, committed_back
from vime_sync.materialize.commit import commit
from vime_sync.materialize.context import Buffers, Context
from vime_sync.materialize.inplace import finish
from vime_sync.materialize.install import finish_install
from vime_sync.materialize.pool import run
from vime_sync.materialize.rebuild import Chain
from vime_sync.materialize.transform import settle_torn_block
from vime_sync.model import DeltaVersion, DigestTable
from vime_sync.sources import Sources
from vime_sync.stream.payloads import SourceFiles


def recover(context: Context, sources: Sources) -> int:
    """Returns how many tensors had to be repaired. Raises Damaged, LocalIOError, Interrupted."""
    paths = context.paths
    try:
        intent = intents.read_intent(paths)
    except ValueError:
        intent = None  # written whole or not at all: what cannot be read was spoiled since, and says nothing
    reading = read_state(paths)
    if intent is None or reading.state is not None or reading.peer_version is not None:
        intents.end(paths)
        return 0
    if isinstance(intent, ReplaceIntent):
        finish_install(context, intent)
        return 0
    table = read_table(paths, intent.origin.table_name, intent.origin.table_digest)
    if table is None:
        raise Damaged(f"the digest table of version {intent.origin.version} is gone from {paths.tables}")
    with SourceFiles() as files:
        return _recover_apply(context, sources, intent, table, files)


def _recover_apply(
    context: Context, sources: Sources, intent: ApplyIntent, table: DigestTable, files: SourceFiles
) -> int:
    def open_chain(side: Side) -> Chain:
        lineage = intent.lineage if side is Side.NEW else intent.origin.lineage
        return sources.lineage_chain(lineage, files)

    feed = _find_feed(sources, intent, files)
    with ApplyJob(context, intent, feed, open_chain, fresh=False) as job:
        _settle(job, believe_journal=intent.boot_id == boot_id())
        if not _can_finish(job):
            commit(context, committed_back(job, job.back()), None)
            return 0
        try:
            return finish(job, table)[1]
        except (Interrupted, LocalIOError, Damaged):
            raise
        except SyncError:
            return 0  # undone: the old version is whole, and the plan that follows meets the reason again


def _find_feed(sources: Sources, intent: ApplyIntent, files: SourceFiles) -> Feed | None:
    """The pass's deltas on the share, if they still are the ones that the intent was made for (S21)."""
    deltas = []
    identities = {entry.version: entry.identity for entry in intent.lineage}
    for step in intent.steps:
        try:
            found = sources.published(step.version)
        except SyncError:
            return None
        if not isinstance(found, DeltaVersion) or found.identity != identities[step.version]:
            return None
        deltas.append(found)
    return Feed(deltas, files)


def _can_finish(job: ApplyJob) -> bool:
    """Whether forward is open: all that was not begun can still be staged."""
    return job.feed is not None or all(
        job.journal.begun(number) or not work.payloads for number, work in enumerate(job.intent.work)
    )


def _settle(job: ApplyJob, *, believe_journal: bool) -> None:
    """Settle the block of each tensor that the kill may have torn; what cannot be settled is rebuilt.

    After a power loss the journal says only which tensors were begun: the first look at each hashes it whole.
    """
    doubtful = [number for number in range(len(job.intent.work)) if job.journal.doubt(number) is not None]

    def settle(number: int, buffers: Buffers, check: Callable[[], None]) -> None:
        work = job.intent.work[number]
        doubt = job.journal.doubt(number)
        if doubt is None:
            return
        steps = job.staging.open_steps(work, buffers.scratch, keep_old=doubt.towards is Side.OLD)
        side = settle_torn_block(job.files.get(work.span.file), work.span, steps, buffers, doubt)
        if side is None:
            job.journal.record_lost(number)
        else:
            job.journal.settle(number, side)

    run(job.context, doubtful, settle)
