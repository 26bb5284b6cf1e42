"""The typer application and the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vime_sync import __version__
from vime_sync.errors import UsageError

application = typer.Typer(
    name="vime-sync",
    help="Brings a host's local checkpoint to the weights a trainer just published, and proves every byte.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

Shared = Annotated[
    Path | None,
    typer.Option("--shared", envvar="VIME_SYNC_SHARED", help="Directory the trainer publishes to (weight_v*)."),
]
Local = Annotated[Path, typer.Option("--local", envvar="VIME_SYNC_LOCAL", help="This host's checkpoint directory.")]
Base = Annotated[
    Path | None,
    typer.Option(
        "--base", envvar="VIME_SYNC_BASE", help="Version 0: the checkpoint training started from, or a HF cache entry."
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        envvar="VIME_SYNC_THREADS",
        min=0,
        help="Threads at work; 0: one per core this process may use, at most 16.",
    ),
]
Json = Annotated[bool, typer.Option("--json", envvar="VIME_SYNC_JSON", help="One JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", envvar="VIME_SYNC_QUIET", help="Errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", envvar="VIME_SYNC_VERBOSE", help="Say more on stderr.")]
LogFormat = Annotated[
    str, typer.Option("--log-format", envvar="VIME_SYNC_LOG_FORMAT", help="Messages on stderr: text or json.")
]

EXIT_CODES = {
    0: "done, or already so",
    1: "a bug of ours (traceback)",
    2: "wrong usage or settings",
    3: "behind (--check)",
    10: "share unreachable, version missing or not ready yet: wait",
    11: "published version malformed",
    12: "published bytes do not give the published digest, or do not decode",
    13: "lineage: a gap, another base, tensors or sizes that do not fit",
    20: "another process holds the lock",
    21: "disk full, permissions, read-only",
    22: "local bytes damaged, and no path to heal",
    23: "directory not ours, refusing to touch it",
}


def epilog(examples: tuple[str, str], codes: tuple[int, ...]) -> str:
    """What each command's help ends with: two examples and its exit codes."""
    lines = ["\b", "Examples:", *(f"  {example}" for example in examples)]
    lines += ["", "\b", "Exit codes:", *(f"  {code:<4} {EXIT_CODES[code]}" for code in codes)]
    lines.append("  128+n ended by signal n")
    return "\n".join(lines)


def parse_version(text: str) -> int | None:
    """`latest` is None. Raises UsageError."""
    if text == "latest":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UsageError(f"--version {text!r}, expected a number from 0 up, or latest")
    return int(text)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"vime-sync {__version__}")
        raise typer.Exit


@application.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options before the command."""
