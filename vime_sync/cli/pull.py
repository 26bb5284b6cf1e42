"""`pull` and `verify`: the commands that hold the lock."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from vime_sync.cli.application import (
    Base,
    Json,
    Local,
    LogFormat,
    Quiet,
    Shared,
    Threads,
    Verbose,
    application,
    epilog,
    parse_version,
)
from vime_sync.cli.output import Output, human_bytes
from vime_sync.cli.process import allow_many_files, stoppable
from vime_sync.local.paths import local_paths
from vime_sync.materialize.context import Context, default_threads
from vime_sync.plan import Plan, Result
from vime_sync.reconcile import Report, Request, reconcile, verify_local, wait_and_reconcile

_PULL_EPILOG = epilog(
    (
        "vime-sync pull --shared /mnt/pub --local /nvme/ckpt --base /models/qwen3-4b",
        "vime-sync pull --local /nvme/ckpt --version 41 --dry-run",
    ),
    (0, 1, 2, 10, 11, 12, 13, 20, 21, 22, 23),
)
_VERIFY_EPILOG = epilog(
    ("vime-sync verify --local /nvme/ckpt", "vime-sync verify --local /nvme/ckpt --json --threads 8"),
    (0, 1, 2, 20, 21, 22, 23),
)


@application.command(epilog=_PULL_EPILOG)
def pull(
    local: Local,
    shared: Shared = None,
    base: Base = None,
    version: Annotated[
        str, typer.Option("--version", envvar="VIME_SYNC_VERSION", help="A number, or latest: the newest ready one.")
    ] = "latest",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", envvar="VIME_SYNC_DRY_RUN", help="Print the plan, change nothing.")
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", envvar="VIME_SYNC_ADOPT", help="Take over a LOCAL that holds files of others."),
    ] = False,
    durable: Annotated[
        bool,
        typer.Option("--durable", envvar="VIME_SYNC_DURABLE", help="Sync the data before the version is committed."),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            envvar="VIME_SYNC_WAIT",
            min=0,
            help="Seconds to wait for the lock and for a version not ready yet.",
        ),
    ] = 0.0,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Bring LOCAL to a published version: heal, plan, seed or apply, prove, commit."""
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    request = Request(shared, base, parse_version(version), adopt, dry_run, wait)
    allow_many_files()
    with stoppable() as stop, output.tally() as tally:
        context = Context(local_paths(local), threads or default_threads(), stop, tally, durable)
        report = wait_and_reconcile(context, request) if wait else reconcile(context, request)
    for warning in report.warnings:
        output.warning(warning)
    output.document(_pull_document(report), _pull_lines(report))


def _pull_document(report: Report) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": "vime-sync/pull/1",
        "result": report.result.value,
        "version": report.version,
        "from_version": report.from_version,
        "seeded_from": report.seeded_from,
        "new_stream": report.new_stream,
        "tensors_changed": report.tensors_changed,
        "tensors_repaired": report.tensors_repaired,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "engines": [],
        "seconds": {phase: round(seconds, 6) for phase, seconds in report.seconds.items()},
        "warnings": report.warnings,
    }
    if report.plan is not None and report.result is Result.PLANNED:
        document["passes"] = [
            {"anchor": planned.anchor, "deltas": list(planned.deltas)} for planned in report.plan.passes
        ]
    return document


def _pull_lines(report: Report) -> list[str]:
    if report.plan is not None and report.result is Result.PLANNED:
        return _plan_lines(report, report.plan)
    lines = [f"version {report.version}: {report.result.value.replace('_', ' ')}{_came_from(report)}"]
    if report.result is not Result.ALREADY_CURRENT:
        repaired = f", {report.tensors_repaired} repaired" if report.tensors_repaired else ""
        lines.append(
            f"  {report.tensors_changed} tensors changed{repaired}; {human_bytes(report.bytes_read)} read, "
            f"{human_bytes(report.bytes_written)} written in {report.seconds['total']:.2f} s"
        )
    return lines


def _came_from(report: Report) -> str:
    origin = "" if report.from_version is None else f" from version {report.from_version}"
    seeded = {None: "", 0: ", seeded from the base"}.get(
        report.seeded_from, f", seeded from version {report.seeded_from}"
    )
    return origin + seeded + (", the trainer began a new stream" if report.new_stream else "")


def _plan_lines(report: Report, plan: Plan) -> list[str]:
    lines = [f"version {plan.target}: planned{_came_from(report)}"]
    for number, planned in enumerate(plan.passes, start=1):
        start = {None: "in place", 0: "seed from the base"}.get(planned.anchor, f"seed from version {planned.anchor}")
        if planned.back_to is not None:
            start = f"back to version {planned.back_to}"
        deltas = _delta_words(planned.deltas)
        lines.append(f"  pass {number}: {start}{deltas}")
    return lines if plan.passes else [*lines, "  nothing to do"]


def _delta_words(deltas: tuple[int, ...]) -> str:
    if len(deltas) < 2:
        return f", delta {deltas[0]}" if deltas else ""
    return f", deltas {deltas[0]} to {deltas[-1]} folded"


@application.command(epilog=_VERIFY_EPILOG)
def verify(
    local: Local,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Hash every byte of LOCAL against its digest table; mark what is wrong, so that the next pull heals it."""
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    allow_many_files()
    started = time.monotonic()
    with stoppable() as stop, output.tally() as tally:
        verified = verify_local(Context(local_paths(local), threads or default_threads(), stop, tally))
    seconds = time.monotonic() - started
    document = {
        "schema": "vime-sync/verify/1",
        "version": verified.version,
        "tensors": verified.tensors,
        "files": verified.files,
        "bytes_read": verified.bytes_read,
        "seconds": round(seconds, 6),
    }
    output.document(
        document,
        [
            f"version {verified.version}: {verified.tensors} tensors in {verified.files} files are right "
            f"({human_bytes(verified.bytes_read)} in {seconds:.2f} s)"
        ],
    )
