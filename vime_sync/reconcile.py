"""One level-triggered pass: recover, look, plan, materialize, and say what was done. Used by every command that pulls.

The lock is held over all of it. Files that changed under us while they were read mean: look and plan again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from vime_sync.errors import (
    Damaged,
    LocalIOError,
    NotReady,
    ShareUnreachable,
    StreamChanged,
    UsageError,
    VersionMissing,
    name_some,
)
from vime_sync.local.journal import Side
from vime_sync.local.layout import read_layout, touched_files
from vime_sync.local.lock import hold
from vime_sync.local.ownership import check_ownership, foreign_files, mark
from vime_sync.local.paths import LocalPaths, check_apart
from vime_sync.local.state import boot_id, read_state, read_table, write_state
from vime_sync.materialize.aside import build_aside
from vime_sync.materialize.commit import make_durable
from vime_sync.materialize.context import Context
from vime_sync.materialize.inplace import apply_pass, prepare_apply
from vime_sync.materialize.install import install, install_repaired
from vime_sync.materialize.rebuild import Chain
from vime_sync.materialize.verify import hash_files, with_findings
from vime_sync.model import DeltaVersion, DigestTable, LocalState, lineage_entry
from vime_sync.plan import Plan, PlannedPass, Result, make_plan
from vime_sync.recover import recover
from vime_sync.sources import Sources, open_chain
from vime_sync.stream.payloads import SourceFiles
from vime_sync.survey import survey

_LOOKS = 4
_RETRY_S = 0.5


@dataclass(frozen=True)
class Request:
    """What is wanted of LOCAL. `version` None means the newest ready one."""

    share: Path | None
    base: Path | None
    version: int | None = None
    adopt: bool = False
    dry_run: bool = False
    wait_s: float = 0.0


@dataclass
class Report:
    """What a pass did, for people and programs; sizes in bytes, times in seconds."""

    result: Result = Result.ALREADY_CURRENT
    version: int = 0
    from_version: int | None = None
    seeded_from: int | None = None
    new_stream: bool = False
    tensors_changed: int = 0
    tensors_repaired: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    plan: Plan | None = None
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("plan", "seed", "apply", "reload"), 0.0))


@dataclass(frozen=True)
class Local:
    """The committed version with its digest table, as far as both are there."""

    state: LocalState
    table: DigestTable


def reconcile(context: Context, request: Request) -> Report:
    """Bring LOCAL to the wanted version. Raises SyncError; LOCAL is then at its old version, whole."""
    started = time.monotonic()
    request = _remembered(context.paths, request)
    check_apart(context.paths, request.share, request.base)
    check_ownership(context.paths, adopt=request.adopt)
    sources = Sources(request.share, request.base)
    report = Report()
    try:
        if request.dry_run:
            local = _load(context.paths)
            report.plan = _make_plan(context, request, sources, local)
            _check_first(sources, report.plan)
            report.result = Result.PLANNED
            _fill(report, local, report.plan)
        else:
            if not context.paths.owner.exists():
                _check_first(sources, _make_plan(context, request, sources, _load(context.paths)))
            mark(context.paths)
            with hold(context.paths, wait_s=request.wait_s, check_stop=context.stop.check):
                check_ownership(context.paths, adopt=request.adopt)
                _Pass(context, request, sources, report).run()
    except OSError as problem:
        raise LocalIOError(f"{problem.filename or context.paths.root}: {problem.strerror or problem}") from problem
    except EOFError as problem:
        raise Damaged(f"a local file is shorter than it was: {problem}") from problem
    report.bytes_read, report.bytes_written = context.tally.bytes_read, context.tally.bytes_written
    report.seconds["total"] = time.monotonic() - started
    return report


def _remembered(paths: LocalPaths, request: Request) -> Request:
    """LOCAL remembers its share and base: what is not given is what was given last."""
    state = read_state(paths).state if paths.root.is_dir() else None
    share = request.share or (Path(state.share) if state is not None and state.share else None)
    base = request.base or (Path(state.base) if state is not None and state.base else None)
    if share is None and request.version != 0:
        raise UsageError("no --shared is given, and LOCAL does not remember one")
    if request.version is not None and request.version < 0:
        raise UsageError(f"--version {request.version}, expected a number from 0 up, or latest")
    return replace(request, share=share.absolute() if share else None, base=base.absolute() if base else None)


def _load(paths: LocalPaths) -> Local | None:
    state = read_state(paths).state
    table = read_table(paths, state.table_name, state.table_digest) if state is not None else None
    return Local(state, table) if state is not None and table is not None else None


def _make_plan(context: Context, request: Request, sources: Sources, local: Local | None) -> Plan:
    reference = None
    if local is not None:
        reference = read_layout(context.paths, local.table).signature
    elif request.base is not None:
        try:
            reference = sources.base().signature()
        except UsageError:
            reference = None
    state = local.state if local is not None else None
    view = survey(request.share, request.version, state, request.base is not None, reference)
    return make_plan(view)


def _check_first(sources: Sources, plan: Plan) -> None:
    """What can be refused before anything is written to LOCAL, its mark included."""
    if any(planned.anchor == 0 for planned in plan.passes):
        sources.base()


def _fill(report: Report, local: Local | None, plan: Plan) -> None:
    report.version = plan.target
    report.from_version = local.state.version if local is not None else None
    report.new_stream = plan.new_stream
    anchors = [planned.anchor for planned in plan.passes if planned.anchor is not None]
    report.seeded_from = anchors[0] if anchors else None
    report.warnings.extend(plan.warnings)


class _Pass:
    """One pass under the lock."""

    def __init__(self, context: Context, request: Request, sources: Sources, report: Report) -> None:
        self.context = context
        self.paths = context.paths
        self.request = request
        self.sources = sources
        self.report = report

    def run(self) -> None:
        self.report.tensors_repaired += recover(self.context, self.sources)
        local = self._checked(_load(self.paths))
        for look in range(_LOOKS):
            try:
                self._follow(local)
                return
            except StreamChanged:
                if look == _LOOKS - 1:
                    raise
            self.sources.look_again()
            local = _load(self.paths)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.report.seconds[phase] += time.monotonic() - started

    def _checked(self, local: Local | None) -> Local | None:
        """Files whose stats changed are hashed before they are believed; after a reboot, all that was not durable."""
        if local is None:
            return None
        state = local.state
        files: tuple[str, ...] = touched_files(self.paths, state)
        if not state.durable and state.boot_id != boot_id():
            files = tuple(sorted(state.stats))
        if not files:
            return local
        with self._timed("plan"):
            findings = hash_files(self.context, local.table, files)
            self.context.tally.add(read=findings.bytes_read)
            state = with_findings(state, findings, files)
            write_state(self.paths, state)
        return Local(state, local.table)

    def _follow(self, local: Local | None) -> None:
        with self._timed("plan"):
            plan = _make_plan(self.context, self.request, self.sources, local)
        self.report.plan = plan
        self.report.result = plan.result
        _fill(self.report, local, plan)
        for planned in plan.passes:
            if planned.anchor is not None:
                local = self._seed(local, planned)
            else:
                assert local is not None, "a plan without an anchor starts from local bytes"
                local = self._apply(local, planned)
        assert local is not None
        self._finish(local)

    def _finish(self, local: Local) -> None:
        """The version is committed; remember where it came from, and make it durable off the critical path."""
        state = local.state
        remembered = (self._text(self.request.share) or state.share, self._text(self.request.base) or state.base)
        if remembered != (state.share, state.base):
            state = replace(state, share=remembered[0], base=remembered[1])
            write_state(self.paths, state)
        make_durable(self.context, state)

    @staticmethod
    def _text(path: Path | None) -> str | None:
        return str(path) if path is not None else None

    # ---- the two kinds of pass

    def _seed(self, local: Local | None, planned: PlannedPass) -> Local:
        assert planned.anchor is not None
        with self._timed("seed"), SourceFiles() as files:
            anchor = self.sources.anchor(planned.anchor)
            deltas = [self._delta(version) for version in planned.deltas]
            chain = open_chain(anchor, deltas, files)
            built = build_aside(self.context, chain)
            lineage = (lineage_entry(anchor), *(lineage_entry(delta) for delta in deltas))
            replaceable, removable = self._ours(local)
            share, base = self._text(self.request.share), self._text(self.request.base)
            origin = local.state if local is not None else None
            state = install(self.context, built, lineage, origin, replaceable, removable, share, base)
        self.report.tensors_changed = len(built.table.tensors)
        self._warn_of_others(set(built.table.files), anchor.skipped)
        return Local(state, built.table)

    def _ours(self, local: Local | None) -> tuple[set[str], set[str]]:
        """The files that may be replaced by name, and those that may be removed (promise 5).

        Ours both ways are those we wrote, and in the peers' directory their checkpoint. What the operator handed over
        may be replaced; it is not removed.
        """
        ours = set(local.table.files) if local is not None else set()
        if local is None and read_state(self.paths).present:
            ours = {path.name for path in self.paths.root.glob("*.safetensors*")}
        if self.request.adopt or (local is None and ours):
            return {*ours, *foreign_files(self.paths, ours)}, ours
        return ours, ours

    def _warn_of_others(self, ours: set[str], skipped: tuple[str, ...]) -> None:
        others = foreign_files(self.paths, ours)
        if others:
            self.report.warnings.append(f"{self.paths.root} also holds files that are not part of it: {name_some(others)}")
        if skipped:
            self.report.warnings.append(f"not copied, because the index does not name them: {name_some(skipped)}")

    def _apply(self, local: Local, planned: PlannedPass) -> Local:
        local = self._mend_files(local)
        with self._timed("apply"), SourceFiles() as files:
            deltas = [self._delta(version) for version in planned.deltas]
            layout = read_layout(self.paths, local.table)
            repairs = frozenset(local.state.damaged)

            def chain_to(side: Side) -> Chain:
                lineage = intent.lineage if side is Side.NEW else intent.origin.lineage
                return self.sources.lineage_chain(lineage, files)

            intent = prepare_apply(self.context, local.state, local.table, layout.spans, deltas, repairs, files)
            state, repaired = apply_pass(self.context, intent, local.table, deltas, files, repairs, chain_to)
        self.report.tensors_repaired += repaired
        self.report.tensors_changed += len({name for delta in deltas for name in delta.payloads})
        table = read_table(self.paths, state.table_name, state.table_digest)
        assert table is not None
        return Local(state, table)

    def _mend_files(self, local: Local) -> Local:
        """Files that are gone, cut or wrong outside their tensors are built anew from the anchor along the chain."""
        layout = read_layout(self.paths, local.table)
        wrong = frozenset(name for name in (*local.state.damaged, *layout.broken) if name in local.table.files)
        if not wrong:
            return local
        with self._timed("seed"), SourceFiles() as files:
            chain = self.sources.lineage_chain(local.state.lineage, files)
            built = build_aside(self.context, chain, wrong)
            for name in wrong:
                if built.table.files.get(name) != local.table.files[name]:
                    raise Damaged(
                        f"{self.paths.file(name)} is damaged, and {chain.anchor.directory} has no such file to mend it by",
                        version=local.state.version,
                    )
            different = [name for name, digest in built.table.tensors.items() if local.table.tensors[name] != digest]
            if different:
                raise Damaged(
                    f"{chain.anchor.directory} is not the anchor that version {local.state.version} was built from: "
                    f"{name_some(different)} come out differently",
                    version=local.state.version,
                    tensors=different,
                )
            state = install_repaired(self.context, built, local.state)
        self.report.tensors_repaired += len(built.table.tensors) or len(wrong)
        return Local(state, local.table)

    def _delta(self, version: int) -> DeltaVersion:
        found = self.sources.published(version)
        if not isinstance(found, DeltaVersion):
            raise StreamChanged(f"version {version} is another kind of version than a moment ago", version=version)
        return found


def wait_and_reconcile(context: Context, request: Request) -> Report:
    """`reconcile`, again and again until `request.wait_s` is over while a version or the share is to wait for."""
    deadline = time.monotonic() + request.wait_s
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            return reconcile(context, replace(request, wait_s=left))
        except (NotReady, VersionMissing, ShareUnreachable):
            if time.monotonic() >= deadline:
                raise
        context.stop.check()
        time.sleep(min(_RETRY_S, max(0.0, deadline - time.monotonic())))


@dataclass(frozen=True)
class Verified:
    """What was found right."""

    version: int
    tensors: int
    files: int
    bytes_read: int


def verify_local(context: Context) -> Verified:
    """Hash every byte of LOCAL. Raises Damaged naming what is wrong, after marking it for the next pass."""
    paths = context.paths
    if not paths.root.is_dir() or not paths.sync.is_dir():
        raise UsageError(f"{paths.root} holds no checkpoint of ours to verify", hint="Pull into it first.")
    try:
        with hold(paths, wait_s=0, check_stop=context.stop.check):
            if paths.intent.exists() and not paths.state.exists():
                raise Damaged(f"{paths.root} is between two versions: the last run was cut short", hint="Pull: it heals.")
            local = _load(paths)
            if local is None:
                raise UsageError(f"{paths.root} has no digest table to verify against", hint="Pull into it first.")
            files = tuple(local.table.files)
            findings = hash_files(context, local.table, files)
            state = with_findings(local.state, findings, files)
            if state != local.state:
                write_state(paths, state)
    except OSError as problem:
        raise LocalIOError(f"{problem.filename or paths.root}: {problem.strerror or problem}") from problem
    if findings.wrong:
        raise Damaged(
            f"version {state.version} in {paths.root} is damaged: {name_some(findings.wrong)}",
            hint="Pull again: it rebuilds them from the nearest anchor along the chain.",
            version=state.version,
            tensors=findings.wrong,
        )
    return Verified(state.version, len(local.table.tensors), len(files), findings.bytes_read)
