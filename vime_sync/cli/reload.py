"""`reload`: the engines of this host load the committed local version, whatever they are known to hold."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from vime_sync.cli.application import Json, Local, LogFormat, Quiet, Threads, Verbose, application, epilog
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
from vime_sync.cli.output import Output
from vime_sync.cli.process import allow_many_files, stoppable
from vime_sync.engines.spec import ExtensionUse, PauseMode
from vime_sync.errors import UsageError
from vime_sync.local.paths import local_paths
from vime_sync.materialize.context import Context, default_threads
from vime_sync.reconcile import serve_local
from vime_sync.reconcile.serving import make_fleet

_EPILOG = epilog(
    (
        "vime-sync reload --local /nvme/ckpt --engine vllm=http://127.0.0.1:8000",
        "vime-sync reload --local /nvme/ckpt --engine sglang=http://127.0.0.1:30000",
    ),
    (0, 1, 2, 20, 21, 22, 23, 30, 31, 32),
)


@application.command(epilog=_EPILOG)
def reload(
    local: Local,
    engine: Engines = None,
    engine_api_key_file: EngineKeyFile = None,
    engine_ca_file: EngineCaFile = None,
    engine_timeout: EngineTimeout = 1800,
    pause_mode: Pause = PauseMode.WAIT,
    probe: Probe = False,
    vllm_extension: VllmExtension = ExtensionUse.AUTO,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            envvar="VIME_SYNC_WAIT",
            metavar="SECONDS",
            min=0,
            callback=a_number,
            help="How long to wait for the lock.",
        ),
    ] = 0,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Have engines load the version that LOCAL holds.

    Files that were touched since they were proven are hashed first. An engine that failed before is tried again.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    specs = engine_specs(engine)
    if not specs:
        raise UsageError("reload needs an engine, and no --engine is given")
    settings = engine_settings(engine_api_key_file, engine_ca_file, engine_timeout, pause_mode, probe, vllm_extension)
    allow_many_files()
    fleet = make_fleet(specs, settings, is_forced=True)
    started = time.monotonic()
    with stoppable() as stop, output.tally() as tally:
        context = Context(local_paths(local), threads or default_threads(), stop, tally)
        version = serve_local(context, fleet, wait_s=wait)
    document = {
        "schema": "vime-sync/reload-result/1",
        "version": version,
        "engines": engine_documents(fleet.reports),
        "seconds": round(time.monotonic() - started, 6),
    }
    output.document(document, [f"version {version}", *engine_lines(fleet.reports)])
    trouble = worst_trouble(fleet.reports)
    if trouble is not None:
        raise trouble
