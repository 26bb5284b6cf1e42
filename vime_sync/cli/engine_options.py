"""The options about engines, for each command that has them loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vime_sync.engines.interface import EngineReport, EngineState
from vime_sync.engines.spec import API_KEY_VARIABLE, EngineSettings, EngineSpec, ExtensionUse, PauseMode, parse_engines
from vime_sync.errors import EngineNotReady, SyncError, UsageError, exit_code

# Sockets take no time beyond what the platform can count.
MAX_SECONDS = 604800.0


def a_number(seconds: float) -> float:
    if math.isnan(seconds):  # the parser takes `nan`, which no wait ever reaches
        raise typer.BadParameter(f"{seconds} is not a number of seconds")
    return seconds


Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        envvar="VIME_SYNC_ENGINE",
        metavar="KIND=URL",
        help="vllm=URL, sglang=URL or webhook=URL; may be given several times.",
    ),
]
EngineKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--engine-api-key-file",
        envvar="VIME_SYNC_ENGINE_API_KEY_FILE",
        metavar="FILE",
        readable=False,
        help=f"File with the engines' API key; or set {API_KEY_VARIABLE}.",
    ),
]
EngineCaFile = Annotated[
    Path | None,
    typer.Option(
        "--engine-ca-file",
        envvar="VIME_SYNC_ENGINE_CA_FILE",
        metavar="FILE",
        readable=False,
        help="Certificate authorities for https engines, instead of the public ones.",
    ),
]
EngineTimeout = Annotated[
    float,
    typer.Option(
        "--engine-timeout",
        envvar="VIME_SYNC_ENGINE_TIMEOUT",
        metavar="SECONDS",
        min=1,
        max=MAX_SECONDS,
        callback=a_number,
        help="How long one step of a reload may take: ending running requests, or the load itself.",
    ),
]
Pause = Annotated[
    PauseMode,
    typer.Option(
        "--pause-mode",
        envvar="VIME_SYNC_PAUSE_MODE",
        metavar="wait|abort|keep",
        help="Requests that run at a reload: let them end (SGLang cannot, and ends them), end them, or freeze them "
        "(their answers mix weights).",
    ),
]
Probe = Annotated[
    bool,
    typer.Option(
        "--probe", envvar="VIME_SYNC_PROBE", help="Ask for a completion after each reload; it must be finite."
    ),
]
VllmExtension = Annotated[
    ExtensionUse,
    typer.Option(
        "--vllm-extension",
        envvar="VIME_SYNC_VLLM_EXTENSION",
        metavar="auto|always|never",
        help="Whether vLLM is reloaded through our worker extension.",
    ),
]


def engine_specs(texts: Sequence[str] | None) -> tuple[EngineSpec, ...]:
    return parse_engines(texts or ())


def engine_settings(
    key_file: Path | None,
    ca_file: Path | None,
    timeout_s: float,
    pause: PauseMode,
    probe: bool,
    extension: ExtensionUse,
) -> EngineSettings:
    """Raises UsageError."""
    if ca_file is not None and not ca_file.is_file():
        raise UsageError(f"--engine-ca-file {ca_file} is not there, expected a file with PEM certificates")
    return EngineSettings(
        pause_mode=pause,
        timeout_s=timeout_s,
        api_key=_read_key(key_file),
        ca_file=None if ca_file is None else str(ca_file),
        probe=probe,
        extension=extension,
    )


def _read_key(key_file: Path | None) -> str | None:
    """Never shown: not in an error either."""
    if key_file is None:
        key = os.environ.get(API_KEY_VARIABLE, "").strip()
        where = API_KEY_VARIABLE
    else:
        where = f"--engine-api-key-file {key_file}"
        try:
            key = key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise UsageError(
                f"{where} cannot be read: {getattr(problem, 'strerror', None) or 'it is no text'}"
            ) from None
        if not key:
            raise UsageError(f"{where} is empty, expected one line with the key")
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"{where} holds other than one line of printable ASCII, expected a key")
    return key or None


def worst_trouble(reports: Sequence[EngineReport]) -> SyncError | None:
    """The error to end with after a good pull: uncertain before refused before unreachable."""
    errors = [report.error for report in reports if report.error is not None and not report.is_current]
    return max(errors, key=exit_code, default=None)


def engine_documents(reports: Sequence[EngineReport]) -> list[dict[str, object]]:
    """As in the documents of `pull`, `reload` and `status`."""
    return [
        {
            "url": report.spec.shown_url,
            "kind": report.spec.kind.value,
            "state": report.state.value,
            "version": report.version,
            "error": None if report.error is None else report.error.message,
        }
        for report in reports
    ]


def engine_lines(reports: Sequence[EngineReport]) -> list[str]:
    return [f"  {report.spec}: {_words(report)}" for report in reports]


def _words(report: EngineReport) -> str:
    if report.state is EngineState.AT_VERSION:
        how = f", loaded in {report.seconds:.2f} s" if report.was_tried else ""
        paused = ", paused by others and left so" if report.is_paused else ""
        return f"at version {report.version}{how}{paused}" + ("" if report.is_current else ", not the one here")
    is_as_before = isinstance(report.error, EngineNotReady)
    words = {
        EngineState.FAILED: "not loaded, and as it was" if is_as_before else "failed, and is not resumed",
        EngineState.UNREACHABLE: "unreachable",
        EngineState.UNKNOWN: "not known to hold a version",
    }[report.state]
    return f"{words}: {report.error.message}" if report.error is not None else words
