"""From what is wanted to proven, committed bytes: one level-triggered pass, used by every command that pulls.

The lock is held over all of it. What is there is looked at anew in each pass; nothing is assumed from the last one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import (
    Damaged,
    LocalIOError,
    NotReady,
    ShareUnreachable,
    SyncError,
    UsageError,
    VersionMissing,
    name_some,
)
from vime_sync.local.intent import remembered_state
from vime_sync.local.lock import hold
from vime_sync.local.ownership import check_ownership, mark, sweep
from vime_sync.local.paths import LocalPaths, check_apart
from vime_sync.local.state import write_state
from vime_sync.materialize.commit import make_durable
from vime_sync.materialize.context import Context
from vime_sync.materialize.verify import hash_files, with_findings
from vime_sync.plan import Plan, Result
from vime_sync.reconcile.passes import OF_THE_SHARE, check_local, plan_for, run_pass
from vime_sync.reconcile.request import Report, Request, load_local
from vime_sync.reconcile.serving import Fleet, serve
from vime_sync.reconcile.sources import Sources

__all__ = [
    "Fleet",
    "Report",
    "Request",
    "Verified",
    "reconcile",
    "serve_local",
    "verify_local",
    "wait_and_reconcile",
]

_RETRY_S = 0.5


def reconcile(context: Context, request: Request, fleet: Fleet | None = None) -> Report:
    """Bring LOCAL to the wanted version, and the engines of `fleet` to LOCAL's.

    Raises SyncError; LOCAL is then at its old version, whole. Engine trouble is not raised: `fleet.reports` have it.
    """
    started = time.monotonic()
    paths = context.paths
    report = Report()
    try:
        request = _remembered(paths, request)
        check_apart(paths, request.share, request.base)
        check_ownership(paths, adopt=request.adopt)
        sources = Sources(request.share, request.base)
        if request.dry_run:
            local = load_local(paths)
            plan = _plan_only(context, request, sources)
            report.fill(local, plan)
            report.result = Result.PLANNED
        else:
            if not paths.owner.exists():
                _plan_only(context, request, sources)
            fsio.make_directory(paths.sync, durable=True)
            with hold(paths, wait_s=request.wait_s, check_stop=context.stop.check):
                sweep(paths)
                if not paths.owner.exists():  # a kill may have come between making LOCAL and making its name last
                    fsio.sync_names(paths.root.parent)
                    fsio.sync_directory(paths.root)
                mark(paths)
                _pass_and_serve(context, request, sources, report, fleet or Fleet())
    except OSError as problem:
        raise LocalIOError(f"{problem.filename or paths.root}: {problem.strerror or problem}") from problem
    except EOFError as problem:
        raise Damaged(f"a local file is shorter than it was: {problem}") from problem
    report.bytes_read, report.bytes_written = context.tally.bytes_read, context.tally.bytes_written
    report.seconds["total"] = time.monotonic() - started
    return report


def _pass_and_serve(context: Context, request: Request, sources: Sources, report: Report, fleet: Fleet) -> None:
    try:
        run_pass(context, request, sources, report)
    except SyncError as problem:
        if problem.code in OF_THE_SHARE:  # the engines are to hold what LOCAL holds all the same
            serve(context, fleet)
        raise
    if fleet.engines:
        with report.timed("reload"):
            serve(context, fleet)
    # Behind the reload: no engine waits for a disk.
    local = load_local(context.paths)
    if local is not None and not request.sync_later:
        make_durable(context, local.state)


def serve_local(context: Context, fleet: Fleet, *, wait_s: float) -> int:
    """Have the engines load the committed version; returns its number. Raises SyncError where there is none."""
    paths = context.paths
    if not paths.sync.is_dir():
        raise UsageError(f"{paths.root} holds no checkpoint of ours to load", hint="Pull into it first.")
    try:
        check_ownership(paths, adopt=False)
        with hold(paths, wait_s=wait_s, check_stop=context.stop.check):
            if paths.intent.exists() and not paths.state.exists():
                raise Damaged(f"{paths.root} is between two versions: a run was cut short", hint="Pull: it heals.")
            local = check_local(context, Report(), load_local(paths))
            if local is None:
                raise UsageError(f"{paths.root} holds no committed version to load", hint="Pull into it first.")
            if local.state.damaged:
                raise Damaged(
                    f"version {local.state.version} in {paths.root} is damaged: {name_some(local.state.damaged)}",
                    hint="Pull: it rebuilds them from the nearest anchor along the chain.",
                    version=local.state.version,
                    tensors=local.state.damaged,
                )
            serve(context, fleet)
            return local.state.version
    except OSError as problem:
        raise LocalIOError(f"{problem.filename or paths.root}: {problem.strerror or problem}") from problem


def _remembered(paths: LocalPaths, request: Request) -> Request:
    """LOCAL remembers its share and base: what is not given is what was given last."""
    state = remembered_state(paths)
    share = request.share or (Path(state.share) if state is not None and state.share else None)
    base = request.base or (Path(state.base) if state is not None and state.base else None)
    if share is None and request.version != 0:
        raise UsageError(
            "no --shared is given, and LOCAL does not remember one",
            hint="Give --shared DIR (or VIME_SYNC_SHARED) once: LOCAL remembers it.",
        )
    return replace(request, share=share.absolute() if share else None, base=base.absolute() if base else None)


def _plan_only(context: Context, request: Request, sources: Sources) -> Plan:
    """What can be refused before anything is written to LOCAL, its mark included."""
    plan = plan_for(context, request, sources, load_local(context.paths))
    if any(planned.anchor == 0 for planned in plan.passes):
        sources.base()
    return plan


def wait_and_reconcile(context: Context, request: Request, fleet: Fleet | None = None) -> Report:
    """`reconcile`, again and again until `request.wait_s` is over while a version or the share is to wait for."""
    deadline = time.monotonic() + request.wait_s
    while True:
        left = max(0.0, deadline - time.monotonic())
        try:
            return reconcile(context, replace(request, wait_s=left), fleet)
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
    if not paths.sync.is_dir() and not paths.sync.is_symlink():
        raise UsageError(f"{paths.root} holds no checkpoint of ours to verify", hint="Pull into it first.")
    try:
        check_ownership(paths, adopt=False)
        with hold(paths, wait_s=0, check_stop=context.stop.check):
            if paths.intent.exists() and not paths.state.exists():
                raise Damaged(
                    f"{paths.root} is between two versions: the last run was cut short", hint="Pull: it heals."
                )
            local = load_local(paths)
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
