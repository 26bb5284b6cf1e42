"""`watch`: the daemon's command line. Composes the process, and reads its settings again when it is asked to."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from vime_sync.acks import check_host_name, default_host_name
from vime_sync.cli.application import (
    Base,
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
    engine_settings,
    engine_specs,
)
from vime_sync.cli.output import Output
from vime_sync.cli.process import allow_many_files, on_signal, stoppable
from vime_sync.daemon.board import STALE_S, Board
from vime_sync.daemon.hooks import load_function, parse_command
from vime_sync.daemon.http import serve
from vime_sync.daemon.loop import Daemon
from vime_sync.daemon.metrics import Metrics
from vime_sync.daemon.notify import Notifier
from vime_sync.daemon.progress import Progress
from vime_sync.daemon.settings import WatchSettings
from vime_sync.daemon.telling import Teller
from vime_sync.daemon.wake import Wake
from vime_sync.engines.spec import ExtensionUse, PauseMode
from vime_sync.errors import Interrupted, SyncError, UsageError
from vime_sync.local.paths import check_aside, local_paths
from vime_sync.materialize.context import default_threads

_EPILOG = epilog(
    (
        "vime-sync watch --shared /mnt/pub --local /nvme/ckpt --base /models/qwen3-4b",
        "vime-sync watch --local /nvme/ckpt --engine vllm=http://127.0.0.1:8000",
    ),
    (0, 1, 2, 13, 21, 22, 23),
)


def _parse_new_stream(text: str) -> bool:
    if text not in ("reseed", "fail"):
        raise UsageError(f"--on-new-stream {text!r}, expected reseed or fail")
    return text == "fail"


@application.command(epilog=_EPILOG)
def watch(
    context: typer.Context,
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
            help="Follow the newest ready version, or stay at this one.",
        ),
    ] = "latest",
    poll_interval: Annotated[
        float,
        typer.Option(
            "--poll-interval",
            envvar="VIME_SYNC_POLL_INTERVAL",
            metavar="SECONDS",
            min=0.05,
            max=3600,
            callback=a_number,
            help="How often the share is looked at; on local filesystems changes are noticed at once.",
        ),
    ] = 1.0,
    on_new_stream: Annotated[
        str,
        typer.Option(
            "--on-new-stream",
            envvar="VIME_SYNC_ON_NEW_STREAM",
            metavar="reseed|fail",
            autocompletion=words("reseed", "fail"),
            help="When the trainer has begun anew: follow it, or end with exit code 13.",
        ),
    ] = "reseed",
    pre_read_hook: Annotated[
        str | None,
        typer.Option(
            "--pre-read-hook",
            envvar="VIME_SYNC_PRE_READ_HOOK",
            metavar="MODULE.FUNCTION",
            help="Called as function(source_dir, target_version) before a look at the share; None stands for latest.",
        ),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", envvar="VIME_SYNC_ADOPT", help="Take over a LOCAL that holds files of others."),
    ] = False,
    durable: Annotated[
        bool,
        typer.Option("--durable", envvar="VIME_SYNC_DURABLE", help="Sync the data before a version is committed."),
    ] = False,
    engine: Engines = None,
    engine_interval: Annotated[
        float,
        typer.Option(
            "--engine-interval",
            envvar="VIME_SYNC_ENGINE_INTERVAL",
            metavar="SECONDS",
            min=0.1,
            max=3600,
            callback=a_number,
            help="How often engines are asked whether they have restarted.",
        ),
    ] = 5.0,
    engine_api_key_file: EngineKeyFile = None,
    engine_ca_file: EngineCaFile = None,
    engine_timeout: EngineTimeout = 1800,
    pause_mode: Pause = PauseMode.WAIT,
    probe: Probe = False,
    vllm_extension: VllmExtension = ExtensionUse.AUTO,
    on_engine_failure: Annotated[
        str | None,
        typer.Option(
            "--on-engine-failure",
            envvar="VIME_SYNC_ON_ENGINE_FAILURE",
            metavar="COMMAND",
            help="Run when an engine's load failed for good; VIME_SYNC_FAILED_ENGINE names it. No shell.",
        ),
    ] = None,
    ack_dir: Annotated[
        Path | None,
        typer.Option(
            "--ack-dir",
            envvar="VIME_SYNC_ACK_DIR",
            metavar="DIR",
            readable=False,
            help="Where this host says what it holds, in one small file.",
        ),
    ] = None,
    host_name: Annotated[
        str | None,
        typer.Option(
            "--host-name", envvar="VIME_SYNC_HOST_NAME", metavar="NAME", help="This host in --ack-dir; default its own."
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            envvar="VIME_SYNC_HTTP",
            metavar="ADDR:PORT",
            help="Serve /healthz, /status and /metrics there; without ADDR on loopback.",
        ),
    ] = None,
    threads: Threads = 0,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Follow the share, and have engines load each new version.

    TERM or INT end it at a safe point, HUP reads the settings again, USR1 logs how far it is.
    """
    output = Output(quiet=quiet, verbose=verbose, log_format=log_format)
    settings = watch_settings(context.params)
    allow_many_files()
    wake = Wake()
    rereading = Rereading(context, settings, output, wake)
    board = Board(max(STALE_S, 3 * settings.poll_interval_s))
    teller = Teller(output, board, Metrics(), Notifier.from_environment(os.environ))
    with contextlib.ExitStack() as stack:
        stack.callback(wake.close)
        stack.callback(teller.notifier.close)
        stop = stack.enter_context(stoppable(wake.poke))
        progress = Progress(teller.notifier, lambda text: output.event("info", text), stop, teller.board.beat)

        def ask_progress() -> None:
            progress.asked = True
            wake.poke()

        stack.enter_context(on_signal(signal.SIGHUP, rereading.ask))
        stack.enter_context(on_signal(signal.SIGUSR1, ask_progress))
        if settings.http is not None:
            server = stack.enter_context(serve(settings.http, teller.board, teller.metrics))
            output.event("info", f"http on port {server.port}", {"port": server.port})
        output.event("info", f"watching {settings.share or 'the share that LOCAL remembers'} for {settings.paths.root}")
        try:
            Daemon(settings, stop, wake, teller, progress, rereading.take).run()
        except Interrupted as ending:
            teller.notifier.stopping()
            output.event("info", ending.message)


def watch_settings(given: dict[str, Any]) -> WatchSettings:
    """From the parsed options. Raises UsageError."""
    host_name = check_host_name(given["host_name"] or default_host_name()) if given["ack_dir"] is not None else ""
    hook = given["pre_read_hook"]
    check_aside(given["ack_dir"], {"--local": given["local"], "--shared": given["shared"], "--base": given["base"]})
    return WatchSettings(
        paths=local_paths(given["local"]),
        share=given["shared"],
        base=given["base"],
        version=parse_version(given["version"]),
        threads=given["threads"] or default_threads(),
        poll_interval_s=given["poll_interval"],
        engine_interval_s=given["engine_interval"],
        adopt=given["adopt"],
        durable=given["durable"],
        refuse_new_stream=_parse_new_stream(given["on_new_stream"]),
        engines=engine_specs(given["engine"]),
        engine_settings=engine_settings(
            given["engine_api_key_file"],
            given["engine_ca_file"],
            given["engine_timeout"],
            given["pause_mode"],
            given["probe"],
            given["vllm_extension"],
        ),
        pre_read=None if hook is None else load_function(hook),
        on_engine_failure=None if given["on_engine_failure"] is None else parse_command(given["on_engine_failure"]),
        ack_dir=given["ack_dir"],
        host_name=host_name,
        http=given["http"],
    )


class Rereading:
    """New settings when a signal asked for them. What cannot change while this runs is said, and stays."""

    def __init__(self, context: typer.Context, settings: WatchSettings, output: Output, wake: Wake) -> None:
        self._context = context
        self._settings = settings
        self._output = output
        self._wake = wake
        self._asked = False

    def ask(self) -> None:
        """From a signal handler."""
        self._asked = True
        self._wake.poke()

    def take(self) -> WatchSettings | None:
        if not self._asked:
            return None
        self._asked = False
        try:
            settings = self._parse()
        except Exception as problem:  # the option parser's classes are its own; the old settings are good ones
            told = getattr(problem, "format_message", None)  # the option parser's own errors name the option
            reason = problem.message if isinstance(problem, SyncError) else told() if told is not None else problem
            self._output.event("error", f"settings were read again, and are not used: {reason}")
            return None
        for name in ("paths", "http"):
            if getattr(settings, name) != getattr(self._settings, name):
                self._output.event("warning", f"another --{'local' if name == 'paths' else name} needs a restart")
                settings = replace(settings, **{name: getattr(self._settings, name)})
        self._output.event("info", "settings were read again")
        self._settings = settings
        return settings

    def _parse(self) -> WatchSettings:
        invocation = self._context.obj
        invocation.source.read_again()
        root = self._context.find_root()
        parsed = root.command.make_context("vime-sync", list(invocation.argv))
        given = self._context.command.make_context("watch", list(parsed.args), parent=parsed).params
        settings = watch_settings(given)
        output = Output(quiet=given["quiet"], verbose=given["verbose"], log_format=given["log_format"])
        self._output.become(output)
        return settings
