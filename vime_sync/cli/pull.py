"""`pull` and `verify`: the commands that hold the lock."""

from __future__ import annotations

import time
from typing import Annotated

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
    words,
)
from vime_sync.cli.engine_options import (
    EngineCaFile,
    EngineKeyFile,
    Engines,
    EngineTimeout,
    Pause,
    Probe,
    VllmExtension,
    a_number,
    engine_documents,
    engine_lines,
    engine_settings,
    engine_specs,
    worst_trouble,
)
from vime_sync.cli.output import Output, human_bytes
from vime_sync.cli.process import allow_many_files, stoppable
from vime_sync.cli.pulled import pull_details, pull_document, pull_lines, rate
from vime_sync.engines.spec import ExtensionUse, PauseMode
from vime_sync.local.paths import local_paths
from vime_sync.local.state import read_state
from vime_sync.materialize.context import Context, default_threads
from vime_sync.reconcile import Request, reconcile, verify_local, wait_and_reconcile
from vime_sync.reconcile.serving import make_fleet

_PULL_EPILOG = epilog(
    (
        "vime-sync pull --shared /mnt/pub --local /nvme/ckpt --base /models/qwen3-4b",
        "vime-sync pull --local /nvme/ckpt --version 41 --dry-run",
    ),
    (0, 1, 2, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32),
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
        str,
        typer.Option(
            "--version",
            envvar="VIME_SYNC_VERSION",
            metavar="N|latest",
            autocompletion=words("latest"),
            help="A number, or the newest ready one.",
        ),
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
            metavar="SECONDS",
            min=0,
            callback=a_number,
            help="How long to wait for the lock and for a version not ready yet.",
        ),
    ] = 0,
    engine: Engines = None,
    engine_api_key_file: EngineKeyFile = None,
    engine_ca_file: EngineCaFile = None,
    engine_timeout: EngineTimeout = 1800,
    pause_mode: Pause = PauseMode.WAIT,
    probe: Probe = False,
    vllm_extension: VllmExtension = ExtensionUse.AUTO,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Bring LOCAL to a published version and prove it.

    Heals what an earlier run left, plans, seeds or applies, holds every tensor against its digest, commits; then has
    the engines load what they do not hold yet.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    request = Request(shared, base, parse_version(version), adopt, dry_run, wait)
    settings = engine_settings(engine_api_key_file, engine_ca_file, engine_timeout, pause_mode, probe, vllm_extension)
    fleet = make_fleet(engine_specs(engine), settings)
    allow_many_files()
    with stoppable() as stop, output.tally() as tally:
        context = Context(local_paths(local), threads or default_threads(), stop, tally, durable)
        report = wait_and_reconcile(context, request, fleet) if wait else reconcile(context, request, fleet)
    for warning in report.warnings:
        output.warning(warning)
    if output.verbose:
        for detail in pull_details(report, read_state(context.paths).state, context.threads):
            output.info(detail)
    output.document(
        {**pull_document(report), "engines": engine_documents(fleet.reports)},
        [*pull_lines(report), *engine_lines(fleet.reports)],
    )
    trouble = worst_trouble(fleet.reports)
    if trouble is not None:  # LOCAL is right all the same: that is told first
        raise trouble


@application.command(epilog=_VERIFY_EPILOG)
def verify(
    local: Local,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Hash every byte of LOCAL against its digest table.

    What is wrong is named and marked, so that the next pull heals it.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    allow_many_files()
    started = time.monotonic()
    with stoppable() as stop, output.tally() as tally:
        context = Context(local_paths(local), threads or default_threads(), stop, tally)
        verified = verify_local(context)
    seconds = time.monotonic() - started
    document = {
        "schema": "vime-sync/verify/1",
        "version": verified.version,
        "tensors": verified.tensors,
        "files": verified.files,
        "bytes_read": verified.bytes_read,
        "seconds": round(seconds, 6),
    }
    output.info(f"hashed with {context.threads} threads at {rate(verified.bytes_read, seconds)}")
    output.document(
        document,
        [
            f"version {verified.version}: {verified.tensors} tensors in {verified.files} files are right "
            f"({human_bytes(verified.bytes_read)} in {seconds:.2f} s)"
        ],
    )
