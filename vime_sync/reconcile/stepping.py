"""Passes in place: deltas forward, deltas and kept values back, single tensors rebuilt."""

from __future__ import annotations

from dataclasses import replace

from vime_sync.errors import LocalIOError, StreamChanged
from vime_sync.local.intent import ApplyIntent, TensorWork, drop_kept, read_kept
from vime_sync.local.journal import Side
from vime_sync.local.layout import lie_there, read_layout
from vime_sync.local.state import boot_id, read_table
from vime_sync.materialize.apply import Feed, OpenChain
from vime_sync.materialize.context import Context
from vime_sync.materialize.inplace import apply_pass, prepare_apply
from vime_sync.materialize.rebuild import Chain
from vime_sync.model import ChecksumFormat, DigestTable, Lineage, LocalState, Span
from vime_sync.plan import PlannedPass
from vime_sync.reconcile.request import Local, Report
from vime_sync.reconcile.seeding import delta_of
from vime_sync.reconcile.sources import Sources
from vime_sync.stream.payloads import SourceFiles


def chain_opener(sources: Sources, origin: Lineage, target: Lineage, files: SourceFiles) -> OpenChain:
    """How a tensor is rebuilt during a pass: along the lineage of its target, or of its origin."""

    def open_chain(side: Side) -> Chain:
        return sources.lineage_chain(target if side is Side.NEW else origin, files)

    return open_chain


def whole_spans(context: Context, local: Local) -> dict[str, Span]:
    """Where each tensor lies. Raises LocalIOError where a shard that was whole a moment ago is not any more."""
    layout = read_layout(context.paths, local.table)
    if layout.broken:
        raise LocalIOError(
            f"reading {context.paths.file(layout.broken[0])}: its header or its size is another one than a moment ago",
            hint="See to the storage of LOCAL and to who else writes there; the next pull mends the file.",
        )
    return layout.spans


def step_forward(context: Context, sources: Sources, report: Report, local: Local, planned: PlannedPass) -> Local:
    """Fold the planned deltas over the local tensors; damaged ones are rebuilt on the way."""
    with report.timed("apply"), SourceFiles() as files:
        deltas = [delta_of(sources, version) for version in planned.deltas]
        spans = whole_spans(context, local)
        repairs = frozenset(local.state.damaged)
        intent = prepare_apply(context, local.state, local.table, spans, deltas, repairs, files)
        chain = chain_opener(sources, local.state.lineage, intent.lineage, files)
        applied = apply_pass(context, intent, local.table, Feed(deltas, files), repairs, chain)
    report.tensors_repaired += applied.repaired
    report.tensors_changed += len({name for delta in deltas for name in delta.payloads})
    return Local(applied.state, applied.table)


def step_back(context: Context, sources: Sources, report: Report, local: Local, planned: PlannedPass) -> Local:
    """Take versions back: by what the last pass kept, or xor deltas by applying them again (V1)."""
    assert planned.back_to is not None
    with report.timed("apply"), SourceFiles() as files:
        if planned.deltas:
            intent, feed = _intent_by_xor(context, sources, local, planned, files)
        else:
            intent, feed = _intent_by_kept(context, local, planned.back_to), None
        chain = chain_opener(sources, local.state.lineage, intent.lineage, files)
        applied = apply_pass(context, intent, local.table, feed, frozenset(local.state.damaged), chain)
    report.tensors_repaired += applied.repaired
    report.tensors_changed += len(intent.work)
    return Local(applied.state, applied.table)


def _intent_by_kept(context: Context, local: Local, target: int) -> ApplyIntent:
    """The last pass reversed: its frames and the old values it replaced are staged already."""
    kept = read_kept(context.paths, local.state)
    if kept is not None and not lie_there(kept.work, read_layout(context.paths, local.table)):
        drop_kept(context.paths)  # a record that lies about where the tensors are
        kept = None
    if kept is None:
        raise StreamChanged("what the last pass kept is gone")  # plan again, without it
    steps = tuple(replace(step, backward=True) for step in kept.steps)
    work = []
    for item in kept.work:
        undone = [payload for payload in item.payloads if kept.steps[payload.step].version > target]
        below = [payload for payload in item.payloads if kept.steps[payload.step].version <= target]
        if not undone:
            continue
        if below:
            wanted = (kept.steps[below[-1].step].checksum, below[-1].digest)
        else:
            wanted = (ChecksumFormat.XXH3_128, item.old_digest)
        work.append(TensorWork(item.name, item.span, local.table.tensors[item.name], *wanted, tuple(reversed(undone))))
    named = {item.name for item in work}
    spans = whole_spans(context, local)
    work += [_proof(name, local.table, spans[name]) for name in local.state.damaged if name not in named]
    lineage = tuple(entry for entry in local.state.lineage if entry.version <= target)
    return ApplyIntent(local.state, lineage, steps, tuple(work), boot_id(), prestaged=True)


def _proof(name: str, table: DigestTable, span: Span) -> TensorWork:
    """A tensor that no delta of the pass touches, but that is known to be wrong: to be rebuilt as it was."""
    digest = table.tensors[name]
    return TensorWork(name, span, digest, ChecksumFormat.XXH3_128, digest, ())


def _intent_by_xor(
    context: Context, sources: Sources, local: Local, planned: PlannedPass, files: SourceFiles
) -> tuple[ApplyIntent, Feed]:
    """Xor deltas applied once more, newest first; what proves the bytes below are the digests published for them."""
    assert planned.back_to is not None
    deltas = [delta_of(sources, version) for version in planned.deltas]
    lineage = tuple(entry for entry in local.state.lineage if entry.version <= planned.back_to)
    spans = whole_spans(context, local)
    forward = prepare_apply(context, local.state, local.table, spans, deltas, frozenset(local.state.damaged), files)
    wanted = _digests_at(context, sources, local.state, lineage)
    work = []
    for item in forward.work:
        if item.payloads:
            if item.name not in wanted:
                raise StreamChanged(f"what proves {item.name!r} at version {planned.back_to} is not published any more")
            checksum, digest = wanted[item.name]
            item = replace(item, checksum=checksum, digest=digest)
        work.append(item)
    steps = tuple(replace(step, backward=True) for step in forward.steps)
    return ApplyIntent(local.state, lineage, steps, tuple(work), boot_id()), Feed(deltas, files)


def _digests_at(
    context: Context, sources: Sources, state: LocalState, lineage: Lineage
) -> dict[str, tuple[ChecksumFormat, str]]:
    """What each tensor was proven by at the end of `lineage`: its last delta's digest, or ours of the anchor."""
    anchor = read_table(context.paths, state.anchor_table_name)
    found = {} if anchor is None else {name: (ChecksumFormat.XXH3_128, hex_) for name, hex_ in anchor.tensors.items()}
    for entry in lineage[1:]:
        delta = delta_of(sources, entry.version)
        if delta.identity != entry.identity:
            raise StreamChanged(f"version {entry.version} is another one than a moment ago", version=entry.version)
        found.update((name, (delta.checksum, payload.digest)) for name, payload in delta.payloads.items())
    return found
