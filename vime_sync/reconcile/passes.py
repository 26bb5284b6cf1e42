"""One pass under the lock: recover, look, plan, materialize, commit. Each step is in a module of its own."""

from __future__ import annotations

from dataclasses import replace

from vime_sync.errors import (
    Damaged,
    Interrupted,
    LineageGap,
    LocalIOError,
    NewStream,
    NoRoom,
    ShareUnreachable,
    StreamChanged,
    SyncError,
    UsageError,
)
from vime_sync.local.intent import read_kept
from vime_sync.local.layout import read_layout, touched_files
from vime_sync.local.ownership import holds_ours, remove_stale
from vime_sync.local.state import DISTRUSTED_BOOT, boot_id, read_table, write_state
from vime_sync.materialize.commit import forget_cache
from vime_sync.materialize.context import Context
from vime_sync.materialize.verify import hash_files, same_content, with_findings
from vime_sync.model import Checkpoint, LineageEntry, LocalState, lineage_entry, structure_of
from vime_sync.plan import Plan, PlannedPass, make_plan
from vime_sync.reconcile.identify import identify
from vime_sync.reconcile.overwriting import must_overwrite, overwrite
from vime_sync.reconcile.recover import recover
from vime_sync.reconcile.request import Local, Report, Request, load_local
from vime_sync.reconcile.seeding import mend_files, planned_chain, seed, text
from vime_sync.reconcile.sources import Sources
from vime_sync.reconcile.stepping import step_back, step_forward
from vime_sync.reconcile.survey import survey
from vime_sync.stream.catalog import Signature
from vime_sync.stream.payloads import SourceFiles

# Failures after which LOCAL is whole at its old version: it is the share's or the publisher's move.
OF_THE_SHARE = frozenset((10, 11, 12, 13))

# A share that changes under every look is in trouble of its own.
_LOOKS = 4


def plan_for(context: Context, request: Request, sources: Sources, local: Local | None) -> Plan:
    """Look at the share and plan. Reads the base's headers only where there is nothing else to compare with."""

    def reference() -> Signature | None:
        if local is not None:
            try:
                return read_layout(context.paths, local.table).signature
            except OSError as problem:  # this host's trouble, in the middle of reading the share
                raise LocalIOError(f"{problem.filename or context.paths.root}: {problem.strerror}") from problem
        try:
            return sources.base().signature() if request.base is not None else None
        except (UsageError, ShareUnreachable):
            return None

    state = local.state if local is not None else None
    base_entry = None
    if state is not None and 0 in (state.version, request.version) and _is_on_base(state) and request.base is not None:
        base_entry = _base_now(context, sources, state)
        if base_entry is None:
            state = None  # another base than LOCAL was seeded from: version 0 is that one now
    going_back = state is not None and request.version is not None and request.version < state.version
    # Only then: of a large pass it is megabytes of JSON.
    kept = read_kept(context.paths, state) if state is not None and going_back else None

    def is_same_content(checkpoint: Checkpoint) -> bool:
        known = None if state is None else read_table(context.paths, state.anchor_table_name)
        return known is not None and same_content(context, checkpoint, known)

    view = survey(
        request.share,
        request.version,
        state,
        has_base=request.base is not None,
        reference=reference,
        kept_from=kept.origin.version if kept is not None else None,
        same_content=is_same_content,
        anchor_known=not going_back or state is None or read_table(context.paths, state.anchor_table_name) is not None,
        refused=request.refused,
    )
    plan = make_plan(view)
    return plan if base_entry is None else replace(plan, refreshed=(base_entry,))


def _is_on_base(state: LocalState) -> bool:
    return state.lineage[0].version == 0


def _base_now(context: Context, sources: Sources, state: LocalState) -> LineageEntry | None:
    """Of version 0 no published digest proves the bytes: the base must be the one they came from. None: it is not.

    What cannot be read just now proves nothing either way.
    """
    known = state.lineage[0]
    try:
        base = sources.base()
    except (UsageError, ShareUnreachable):
        return known
    if base.fingerprint == known.fingerprint:
        return known
    table = read_table(context.paths, state.anchor_table_name)
    same = table is not None and structure_of(base.identity) == structure_of(known.identity)
    return lineage_entry(base) if same and table is not None and same_content(context, base, table) else None


def run_pass(context: Context, request: Request, sources: Sources, report: Report) -> None:
    """Raises SyncError; LOCAL is then at its old version, or finishes or heals at the next run."""
    recovered = recover(context, sources)
    report.tensors_repaired += recovered.repaired
    report.tensors_changed += recovered.tensors_changed
    local = check_local(context, report, load_local(context.paths))
    try:
        local = _follow_steadily(context, request, sources, report, local)
    except SyncError as problem:
        if problem.code in OF_THE_SHARE:
            _heal_where_it_is(context, sources, report)
        raise
    local = _remember_sources(context, request, sources, report, local)
    remove_stale(context.paths, set(local.table.files))
    if recovered.finished:
        report.healed(recovered.from_version)


def _follow_steadily(
    context: Context, request: Request, sources: Sources, report: Report, local: Local | None
) -> Local:
    """Follow the share; where it changed under the look, look again."""
    for look in range(_LOOKS):
        try:
            return _follow(context, request, sources, report, local)
        except StreamChanged:
            if look == _LOOKS - 1:
                raise
        sources.look_again()
        local = load_local(context.paths)
    raise AssertionError("the last look returns or raises")


def _heal_where_it_is(context: Context, sources: Sources, report: Report) -> None:
    """What is rotten here is mended also where the share leads nowhere: the old version is whole all the same (H5).

    A share that cannot mend it either changes nothing: the marks stay, and the error that is told is the first one.
    """
    local = load_local(context.paths)
    if local is None:
        return
    try:
        local = mend_files(context, sources, report, local)
        if local.state.damaged:
            step_forward(context, sources, report, local, PlannedPass(None, ()))
    except Interrupted:
        raise
    except SyncError:
        return


def check_local(context: Context, report: Report, local: Local | None) -> Local | None:
    """Files whose stats changed are hashed before they are believed; after a power loss, all that was not durable."""
    if local is None:
        return None
    state = local.state
    files = touched_files(context.paths, state)
    if state.boot_id == DISTRUSTED_BOOT:
        forget_cache(context.paths, state)
    if not state.durable and state.boot_id != boot_id():
        files = tuple(sorted(local.table.files))
    if not files:
        return local
    with report.timed("plan"):
        findings = hash_files(context, local.table, files)
        context.tally.add(read=findings.bytes_read)
        state = with_findings(state, findings, files)
        write_state(context.paths, state)
    return Local(state, local.table)


def _follow(context: Context, request: Request, sources: Sources, report: Report, local: Local | None) -> Local:
    if local is None:
        local = identify(context, request, sources, report)
        if local is None and request.version != 0 and holds_ours(context.paths) and sources.shows_nothing():
            raise ShareUnreachable(
                f"{request.share} shows no version at all, while {context.paths.root} holds bytes of a version that "
                "cannot be made out: it looks unmounted"
            )
    with report.timed("plan"):
        plan = _plan_or_damaged(context, request, sources, local)
    if plan.new_stream and request.refuse_new_stream:
        assert local is not None, "a stream is new beside the one that local bytes came from"
        raise NewStream(
            f"{request.share} shows another stream than the one that version {local.state.version} in "
            f"{context.paths.root} came from: the trainer began anew",
            version=plan.target,
        )
    report.fill(local, plan)
    if local is not None and any(entry not in local.state.lineage for entry in plan.refreshed):
        fresh = {entry.version: entry for entry in plan.refreshed}
        lineage = tuple(fresh.get(entry.version, entry) for entry in local.state.lineage)
        local = Local(replace(local.state, lineage=lineage), local.table)
        write_state(context.paths, local.state)
    for planned in plan.passes:
        local = _execute(context, request, sources, report, local, planned)
    assert local is not None, "a plan without passes starts from local bytes"
    return local


def _plan_or_damaged(context: Context, request: Request, sources: Sources, local: Local | None) -> Plan:
    """Where bytes of ours lie here that nothing can make out, a missing way is not wrong usage: they are damaged."""
    try:
        return plan_for(context, request, sources, local)
    except (UsageError, LineageGap) as problem:
        if local is not None or not holds_ours(context.paths):
            raise
        missing = problem.version if problem.version is not None else 0
        raise Damaged(
            f"the bytes in {context.paths.root} are of no version that is known here, and {problem.message}",
            hint=f"Make version {missing} reachable (0 is the base: --base), or publish a full version.",
            version=missing,
        ) from None


def _execute(
    context: Context, request: Request, sources: Sources, report: Report, local: Local | None, planned: PlannedPass
) -> Local:
    if planned.anchor is not None:
        with report.timed("seed"), SourceFiles() as files:
            chain = planned_chain(sources, planned, files)
            if local is None or not must_overwrite(context, chain, local):
                return seed(context, request, report, chain, local)
            local = overwrite(context, report, chain, local)
        # The other files of the version have not been touched yet: their stats say so.
        checked = check_local(context, report, local)
        assert checked is not None
        return mend_files(context, sources, report, checked)
    assert local is not None, "a pass without an anchor starts from local bytes"
    local = mend_files(context, sources, report, local)
    if planned.back_to is not None:
        return step_back(context, sources, report, local, planned)
    if not planned.deltas and not local.state.damaged:
        return local  # only files were to be mended
    try:
        return step_forward(context, sources, report, local, planned)
    except NoRoom:
        if len(planned.deltas) < 2:
            raise
    # Fewer deltas at a time stage less at a time.
    half = len(planned.deltas) // 2
    for deltas in (planned.deltas[:half], planned.deltas[half:]):
        local = _execute(context, request, sources, report, local, PlannedPass(None, deltas))
    return local


def _remember_sources(context: Context, request: Request, sources: Sources, report: Report, local: Local) -> Local:
    """LOCAL remembers its share and base; a base that is none, a mistyped one, takes no other's place."""
    state = local.state
    base = text(request.base) or state.base
    if base != state.base:
        try:
            sources.base()
        except (UsageError, ShareUnreachable) as problem:
            base = state.base
            report.warnings.append(
                f"{problem.message}; it is not remembered, and going back below its anchor needs one"
            )
    remembered = (text(request.share) or state.share, base)
    if remembered == (state.share, state.base):
        return local
    state = replace(state, share=remembered[0], base=remembered[1])
    write_state(context.paths, state)
    return Local(state, local.table)
