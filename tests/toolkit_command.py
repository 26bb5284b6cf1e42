"""The command line, run in this process."""

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """What one run of the command line gave; `document` and `error` are {} when there was none."""

    code: int
    document: dict[str, Any]
    error: dict[str, Any]
    stdout: str
    stderr: str


_JSON_COMMANDS = frozenset({"pull", "status", "verify", "reload", "inspect", "publish", "prune", "wait"})


@contextlib.contextmanager
def _environment(extra: Mapping[str, str] | None) -> Iterator[None]:
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("VIME_SYNC_")]:
        del os.environ[name]
    os.environ.update(extra or {})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def vime_plain(*args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    """Run `vime_sync.cli.run` with exactly these arguments; JSON found in its output is parsed."""
    from vime_sync.cli import run  # here, so that what needs no product code works without it

    output, messages = io.BytesIO(), io.BytesIO()
    stdout = io.TextIOWrapper(output, encoding="utf-8", write_through=True)
    stderr = io.TextIOWrapper(messages, encoding="utf-8", write_through=True)
    with _environment(env), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = run([str(argument) for argument in args])
    return parse_result(code, output.getvalue(), messages.getvalue())


def parse_result(code: int, stdout: bytes, stderr: bytes) -> Result:
    """The outcome of a run as a `Result`, also for runs in a process of their own."""
    output, messages = stdout.decode("utf-8"), stderr.decode("utf-8")
    document: dict[str, Any] = json.loads(output) if output.lstrip().startswith("{") else {}
    lines = messages.rstrip("\n").split("\n")
    error: dict[str, Any] = {}
    if lines[-1].startswith("{"):
        last = json.loads(lines[-1])
        error = last if str(last.get("schema", "")).startswith("vime-sync/error/") else {}
    return Result(code, document, error, output, messages)


def vime(*args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    """Run a command in process, with `--json` where it takes it and no settings from outside."""
    if args and str(args[0]) in _JSON_COMMANDS and not {"--json", "--help"} & {str(argument) for argument in args}:
        args = (*args, "--json")
    return vime_plain(*args, env=env)


def pull(
    shared: Path | str | None,
    local: Path | str | None,
    *args: str | Path,
    base: Path | str | None = None,
    version: int | str | None = None,
) -> Result:
    """`vime-sync pull` over these directories; None leaves an option out."""
    options: list[str | Path] = []
    for name, value in (("shared", shared), ("local", local), ("base", base), ("version", version)):
        if value is not None:
            options += [f"--{name}", str(value)]
    return vime("pull", *options, *args)
