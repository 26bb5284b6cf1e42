"""What a kill left: an intent is there, or none; afterwards LOCAL is at a whole version again.

A `state.json` beside the intent voids it: ours means that the job had ended or not begun, the peers' that their
receiver took over (FIELD_GUIDE H20). Otherwise a replacement is finished by renaming the rest, and an in-place pass is
finished from what is staged (and from the share for what was not begun), or undone from local bytes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from vime_sync.errors import Damaged, Interrupted, LocalIOError, SyncError
from vime_sync.local import intent as intents
from vime_sync.local.intent import ApplyIntent, ReplaceIntent
from vime_sync.local.journal import Side
from vime_sync.local.layout import lie_there, read_layout
from vime_sync.local.state import boot_id, read_state, read_table
from vime_sync.materialize.apply import ApplyJob, Feed
from vime_sync.materialize.context import Context
from vime_sync.materialize.inplace import commit_back, finish
from vime_sync.materialize.install import finish_install
from vime_sync.materialize.rebuild import Chain
from vime_sync.model import DeltaVersion, DigestTable
from vime_sync.reconcile.sources import Sources
from vime_sync.stream.payloads import SourceFiles


@dataclass(frozen=True)
class Recovered:
    """What was cut short: the version the job came from (None: a seed), and how many tensors it was to change.

    `repaired` tensors were rebuilt.
    """

    repaired: int = 0
    finished: bool = False
    from_version: int | None = None
    tensors_changed: int = 0


def recover(context: Context, sources: Sources) -> Recovered:
    """Finish or undo what was cut short. Raises LocalIOError, Interrupted."""
    paths = context.paths
    try:
        intent = intents.read_intent(paths)
    except ValueError:
        intent = None  # written whole or not at all: what cannot be read was spoiled since, and says nothing
    reading = read_state(paths)
    if intent is None or reading.state is not None or reading.peer_version is not None:
        intents.end(paths)
        return Recovered()
    # Whoever removed the state may have been killed before that lasted: no byte changes while it can come back.
    intents.withdraw_state(paths)
    if isinstance(intent, ReplaceIntent):
        return _recover_replace(context, intent)
    table = read_table(paths, intent.origin.table_name)
    layout = read_layout(paths, table) if table is not None else None
    if table is None or layout is None or layout.broken or not lie_there(intent.work, layout):
        intents.end(paths)  # nothing says what the bytes were, or a shard is cut or gone: identify what is there
        return Recovered()
    rebooted = intent.boot_id != boot_id()
    with SourceFiles() as files:
        try:
            recovered = _recover_apply(context, sources, intent, table, files, rebooted=rebooted)
        except Damaged:
            if (not intent.forward_only and intent.origin_proven) or sources.shows_nothing():
                raise
            intents.end(paths)
            return Recovered()
    return recovered


def _recover_replace(context: Context, intent: ReplaceIntent) -> Recovered:
    try:
        finish_install(context, intent)
    except Damaged:
        intents.end(context.paths)  # a file is nowhere any more: identify what is there
        return Recovered()
    return Recovered(0, True, intent.from_version, len(intent.moves))


def _recover_apply(
    context: Context,
    sources: Sources,
    intent: ApplyIntent,
    table: DigestTable,
    files: SourceFiles,
    *,
    rebooted: bool,
) -> Recovered:
    def open_chain(side: Side) -> Chain:
        lineage = intent.lineage if side is Side.NEW else intent.origin.lineage
        return sources.lineage_chain(lineage, files)

    feed = _find_feed(sources, intent, files)
    with ApplyJob(context, intent, feed, open_chain, fresh=False) as job:
        if rebooted:
            job.distrust()
        else:
            job.settle()
        if not _can_finish(job):
            commit_back(job, job.back())
            return Recovered()
        try:
            repaired = finish(job, table).repaired
            changed = sum(bool(work.payloads) for work in intent.work)
            return Recovered(repaired, True, intent.origin.version, changed)
        except (Interrupted, LocalIOError):
            raise
        except SyncError:
            if intent.forward_only:
                raise
            return Recovered()  # undone: the old version is whole, and the plan that follows meets the reason again


def _find_feed(sources: Sources, intent: ApplyIntent, files: SourceFiles) -> Feed | None:
    """The pass's deltas on the share, if they still are the ones that the intent was made for (S21)."""
    deltas = []
    identities = {entry.version: entry.identity for entry in (*intent.origin.lineage, *intent.lineage)}
    if intent.prestaged:
        return None
    for step in intent.steps:
        try:
            found = sources.published(step.version)
        except SyncError:
            return None
        if not isinstance(found, DeltaVersion) or found.identity != identities.get(step.version):
            return None
        deltas.append(found)
    return Feed(deltas, files) if intents.is_staged_from(intent, deltas) else None


def _can_finish(job: ApplyJob) -> bool:
    """Whether forward is open: all that was not begun can still be staged."""
    return (
        job.feed is not None
        or job.intent.prestaged
        or all(job.journal.begun(number) or not work.payloads for number, work in enumerate(job.intent.work))
    )
