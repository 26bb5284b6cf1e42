"""The command line: composes a process, prints, exits, takes signals. Decides nothing about weights.

Data goes to stdout, everything else to stderr. Every expected failure is one line and a hint (with --json or
--log-format json one JSON object as the last line of stderr) and the exit code of its class; anything else is a bug of
ours: traceback, exit 1.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence

import typer

from vime_sync.cli import demo as _demo
from vime_sync.cli import inspect as _inspect
from vime_sync.cli import prune as _prune
from vime_sync.cli import publish as _publish
from vime_sync.cli import pull as _pull
from vime_sync.cli import reload as _reload
from vime_sync.cli import status as _status_command
from vime_sync.cli import wait as _wait
from vime_sync.cli import watch as _watch
from vime_sync.cli.application import Invocation, application
from vime_sync.cli.output import Output, wants_json_errors
from vime_sync.errors import LocalIOError, SyncError, UsageError, exit_code

__all__ = ["main", "run"]

# Importing them registered their commands.
_COMMANDS = (_pull, _watch, _reload, _status_command, _inspect, _publish, _prune, _wait, _demo)
_BROKEN_PIPE = 128 + signal.SIGPIPE
_MEND = "Mend what it says (permissions, room, the filesystem), then run the same command again."


def main() -> None:
    """The `vime-sync` entry point."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # said already; the interpreter's own try at exit would end in another code
        os._exit(code)
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code; never raises."""
    output = Output(json=wants_json_errors(argv))
    invocation = Invocation(tuple(argv))
    try:
        code = application(args=list(argv), prog_name="vime-sync", standalone_mode=False, obj=invocation)
        sys.stdout.flush()  # what is only buffered has not been said
        return code if isinstance(code, int) else 0
    except SystemExit as ending:
        # The option parser's way with a reader that has enough (`| head`), and with requests for completion.
        return _BROKEN_PIPE if isinstance(ending.__context__, BrokenPipeError) else _status(ending)
    except typer.Abort:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return _BROKEN_PIPE
    except Exception as problem:
        expected = _expected(problem)
        with contextlib.suppress(OSError):  # nobody listens to stderr any more: the exit code still tells
            if expected is None:
                traceback.print_exception(problem)
                expected = SyncError(f"unexpected {type(problem).__name__}: {problem}")
            expected.hint = expected.hint.replace("`vime-sync COMMAND ", f"`vime-sync {_command(argv)} ")
            output.error(expected)
        return exit_code(expected) if expected is not None else SyncError.code
    finally:
        invocation.source.give_back()


def _command(argv: Sequence[str]) -> str:
    """The command that was meant, for a hint that can be pasted."""
    names = {command.name or getattr(command.callback, "__name__", "") for command in application.registered_commands}
    return next((word for word in argv if word in names), "COMMAND")


def _expected(problem: Exception) -> SyncError | None:
    """What a failure is to the user; None for a bug."""
    if isinstance(problem, SyncError):
        return problem
    if isinstance(problem, OSError):
        place = f"{problem.filename}: " if problem.filename is not None else ""
        return LocalIOError(f"{place}{problem.strerror or problem}", hint=_MEND)
    message = getattr(problem, "format_message", None)
    if message is not None:  # the option parser's own errors, whatever package they come from
        return UsageError(str(message()))
    return None


def _status(ending: SystemExit) -> int:
    return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
