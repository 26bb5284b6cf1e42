"""The command line: composes a process, prints, exits, takes signals. Decides nothing about weights.

Data goes to stdout, everything else to stderr. Every expected failure is one line and a hint (with --json one JSON
object as the last line of stderr) and the exit code of its class; anything else is a bug of ours: traceback, exit 1.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import typer

from vime_sync.cli import pull as _pull
from vime_sync.cli import show as _show
from vime_sync.cli.application import application
from vime_sync.cli.output import Output, wants_json
from vime_sync.errors import SyncError, UsageError, exit_code

__all__ = ["main", "run"]

_COMMANDS = (_pull, _show)  # importing them registered their commands


def main() -> None:
    """The `vime-sync` entry point."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code; never raises."""
    json = wants_json(argv)
    try:
        code = application(args=list(argv), prog_name="vime-sync", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SyncError as problem:
        Output(json=json).error(problem)
        return exit_code(problem)
    except typer.Abort:
        return 130
    except BrokenPipeError:  # a reader like `head` has enough
        return 141
    except Exception as problem:
        message = getattr(problem, "format_message", None)
        if message is not None:  # the option parser's own errors, whatever package they come from
            usage = UsageError(str(message()))
            Output(json=json).error(usage)
            return exit_code(usage)
        traceback.print_exc()
        Output(json=json).error(SyncError(f"unexpected {type(problem).__name__}: {problem}"))
        return 1
