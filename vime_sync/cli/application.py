"""The typer application, the options that several commands share, and what every help text ends with."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from vime_sync import __version__
from vime_sync.cli.settings_file import SettingsSource
from vime_sync.errors import UsageError

# As the help lists them: what a host does first, then what looks, then what is for whoever publishes.
_ORDER = ("pull", "watch", "status", "verify", "reload", "inspect", "wait", "publish", "prune", "demo")


class _Commands(TyperGroup):
    """The commands in an order of use, not of import."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


_EXAMPLES = (
    "vime-sync pull --shared /mnt/pub --local /nvme/ckpt --base /models/qwen3-4b",
    "vime-sync --settings /etc/vime-sync.env status",
)

application = typer.Typer(
    name="vime-sync",
    cls=_Commands,
    help="Brings a host's local checkpoint to the weights a trainer just published, and proves every byte.",
    epilog="\n".join(("\b", "Examples:", *(f"  {example}" for example in _EXAMPLES)))
    + "\n\n`vime-sync COMMAND --help` tells a command's options, examples and exit codes.",
    rich_markup_mode=None,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

# Whether a directory can be read is not asked by the parser (`readable=False`): it depends on which one it is whose
# move that is. A share that cannot be read is unreachable (10), a LOCAL is 21, neither is wrong usage.


def _no_loop(path: Path | None) -> Path | None:
    """Links that lead round in a circle are a mistake of whoever gave them: said before anything is looked at."""
    if path is not None:
        try:
            path.stat()
        except OSError as problem:
            if problem.errno == errno.ELOOP:
                raise typer.BadParameter(f"{path} is a link that leads back to itself, expected a directory") from None
    return path


def words(*values: str) -> Callable[[str], list[str]]:
    """What a shell completes a value to. Nothing is looked up: a TAB must touch neither LOCAL nor the share."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


Shared = Annotated[
    Path | None,
    typer.Option(
        "--shared",
        envvar="VIME_SYNC_SHARED",
        metavar="DIR",
        readable=False,
        callback=_no_loop,
        help="Directory the trainer publishes to (weight_v*); LOCAL remembers it.",
    ),
]
# For commands that write there, or have no LOCAL that remembers it.
SharedToChange = Annotated[
    Path,
    typer.Option(
        "--shared",
        envvar="VIME_SYNC_SHARED",
        metavar="DIR",
        readable=False,
        callback=_no_loop,
        help="Directory the trainer publishes to (weight_v*); this command writes there.",
    ),
]
Local = Annotated[
    Path,
    typer.Option(
        "--local",
        envvar="VIME_SYNC_LOCAL",
        metavar="DIR",
        readable=False,
        callback=_no_loop,
        help="This host's checkpoint directory.",
    ),
]
Base = Annotated[
    Path | None,
    typer.Option(
        "--base",
        envvar="VIME_SYNC_BASE",
        metavar="DIR",
        readable=False,
        callback=_no_loop,
        help="Version 0: the checkpoint training started from, or a HF cache entry; LOCAL remembers it.",
    ),
]
# Each has blocks and decoders of its own; more than any host has cores to run them on only costs memory.
_MAX_THREADS = 256
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        envvar="VIME_SYNC_THREADS",
        metavar="COUNT",
        min=0,
        max=_MAX_THREADS,
        help="Threads at work; 0: one per core this process may use, at most 16.",
    ),
]
Json = Annotated[bool, typer.Option("--json", envvar="VIME_SYNC_JSON", help="One JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", envvar="VIME_SYNC_QUIET", help="Errors only.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", envvar="VIME_SYNC_VERBOSE", help="Say on stderr, too, what was done and how long it took."
    ),
]
LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        envvar="VIME_SYNC_LOG_FORMAT",
        metavar="text|json",
        autocompletion=words("text", "json"),
        help="Messages and errors on stderr.",
    ),
]


@dataclass
class Invocation:
    """What one call of the command line was given: its arguments, and the file that its settings come from."""

    argv: tuple[str, ...]
    source: SettingsSource = field(default_factory=SettingsSource)


EXIT_CODES = {
    0: "done, or already so",
    1: "a bug of ours (traceback)",
    2: "wrong usage or settings",
    3: "behind, or not ready (--check)",
    10: "share unreachable, version missing or not ready yet: wait",
    11: "published version malformed",
    12: "published bytes do not give the published digest, or do not decode",
    13: "lineage: a gap, another base, tensors or sizes that do not fit",
    20: "another process holds the lock",
    21: "disk full, permissions, read-only",
    22: "local bytes damaged, and no path to heal",
    23: "directory not ours, refusing to touch it",
    30: "engine unreachable",
    31: "engine refused the reload",
    32: "engine state uncertain: restart it",
}
_BY_SIGNAL = ("128+n", "ended by signal n")


def epilog(examples: tuple[str, str], codes: tuple[int, ...]) -> str:
    """What each command's help ends with: two examples and its exit codes."""
    rows = [*((str(code), EXIT_CODES[code]) for code in codes), _BY_SIGNAL]
    width = max(len(code) for code, _ in rows)
    lines = ["\b", "Examples:", *(f"  {example}" for example in examples)]
    lines += ["", "\b", "Exit codes:", *(f"  {code:<{width}}  {meaning}" for code, meaning in rows)]
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


@application.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    settings: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            envvar="VIME_SYNC_SETTINGS",
            metavar="FILE",
            readable=False,
            help="VIME_SYNC_<OPTION>=value lines, as in the service's environment file; they win over the environment.",
        ),
    ] = None,
) -> None:
    """The options before the command; without a command, how to use it."""
    if settings is not None and isinstance(context.obj, Invocation):
        context.obj.source.use(settings)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(UsageError.code)
