"""`status` and `inspect`: the commands that only look. They take no lock and write nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from vime_sync.cli.application import Json, Local, LogFormat, Quiet, Shared, Verbose, application, epilog
from vime_sync.cli.output import Output, human_bytes
from vime_sync.inspection import inspect_path
from vime_sync.local.paths import local_paths
from vime_sync.local.records import read_last_error
from vime_sync.status import Status, read_status, remembered_engines, status_document

_BEHIND = 3
_STATUS_EPILOG = epilog(
    ("vime-sync status --local /nvme/ckpt", "vime-sync status --local /nvme/ckpt --shared /mnt/pub --check"),
    (0, 1, 2, 3, 10, 21),
)
_INSPECT_EPILOG = epilog(
    ("vime-sync inspect /mnt/pub", "vime-sync inspect /mnt/pub/weight_v000041 --json"),
    (0, 1, 2, 10, 11, 13, 21),
)


@application.command(epilog=_STATUS_EPILOG)
def status(
    local: Local,
    shared: Shared = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            envvar="VIME_SYNC_CHECK",
            help="Exit 3 unless LOCAL is ready and at the newest ready version, 10 when the share cannot tell.",
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Say where LOCAL stands, and how far behind the share."""
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    paths = local_paths(local)
    found = read_status(paths, shared)
    for warning in found.view.warnings:
        output.warning(warning)
    unreachable = found.view.unreachable
    if unreachable is not None and not check:
        output.warning(unreachable.message)
    if check and found.share is None:
        output.warning("no --shared is given, and LOCAL does not remember one: what is newest is not known")
    for detail in _status_details(found):
        output.info(detail)
    engines = remembered_engines(paths)
    last_error = read_last_error(paths)
    output.document(status_document(found, engines, last_error), _status_lines(found, engines, last_error))
    if check and unreachable is not None:
        raise unreachable
    if check and not found.is_current:
        raise typer.Exit(_BEHIND)


def _status_lines(
    found: Status, engines: Sequence[Mapping[str, Any]], last_error: Mapping[str, Any] | None
) -> list[str]:
    what = "no version" if found.local_version is None else f"version {found.local_version}"
    if found.view.new_stream and found.local_version is not None:
        what += " of another stream"
    newest = "unknown" if found.view.latest_version is None else str(found.view.latest_version)
    behind = f", {found.behind} behind" if found.behind else ""
    lines = [f"{found.standing.state}: {found.standing.remark or what} (newest on the share: {newest}{behind})"]
    lines += [f"  damaged: {name}" for name in (found.committed.damaged if found.committed is not None else ())]
    for engine in engines:
        version = "" if engine["version"] is None else f" {engine['version']}"
        reason = f": {engine['error']}" if engine["error"] else ""
        lines.append(f"  {engine['kind']}={engine['url']}: {engine['state'].replace('_', ' ')}{version}{reason}")
    if last_error is not None:
        lines.append(f"  last error [{last_error.get('id')}]: {last_error.get('message')}")
    return lines


def _status_details(found: Status) -> list[str]:
    base = found.remembered.base if found.remembered is not None else None
    details = [f"share: {found.share or 'none is given or remembered'}", f"base: {base or 'none is remembered'}"]
    if found.committed is not None:
        steps = [f"{entry.kind.value} {entry.version}" for entry in found.committed.lineage]
        details.append(f"built from: {', '.join(steps)}")
        details.append(f"{'' if found.committed.durable else 'not yet '}known to be on the disk")
    return details


@application.command(epilog=_INSPECT_EPILOG)
def inspect(
    # Hidden: told in the text below; the parser's own line would name its Python type.
    path: Annotated[Path, typer.Argument(metavar="PATH", hidden=True, readable=False)],
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Explain PATH: a stream, a version directory or a checkpoint.

    One that is malformed exits 11 with the reason.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    started = time.monotonic()
    found = inspect_path(path)
    output.info(f"looked at in {time.monotonic() - started:.3f} s: indexes and headers, no weights")
    output.document(found, _inspect_lines(found))


# Told in lines of their own, or in the first one.
_NOT_FACTS = ("schema", "kind", "path", "versions", "tensors", "changed")


def _inspect_lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['kind']}: {found['path']}", *(_version_line(version) for version in found.get("versions", ()))]
    for key, value in found.items():
        if key not in _NOT_FACTS and value is not None:
            lines.append(f"  {key.replace('_', ' ')}: {human_bytes(value) if key.endswith('bytes') else value}")
    return lines + [f"  {line}" for line in _tensor_lines(found)]


def _version_line(version: dict[str, Any]) -> str:
    if version["ready"]:
        kind = version["encoding"] or version["version_kind"]
        return (
            f"  {version['version']:06d}  {kind:<9}  {version['tensor_count']:>7} tensors  "
            f"{human_bytes(version['wire_bytes']):>10}  ready"
        )
    return f"  {version['version']:06d}  {version['reason']}"


def _tensor_lines(found: dict[str, Any]) -> list[str]:
    lines = []
    for name, spec in found.get("tensors", {}).items():
        lines.append(f"{name}  {spec['dtype']} {spec['shape']}  {human_bytes(spec['size_bytes'])}  {spec['file']}")
    for name, payload in found.get("changed", {}).items():
        lines.append(f"{name}  {human_bytes(payload['wire_bytes'])}  {payload['digest']}")
    return lines
