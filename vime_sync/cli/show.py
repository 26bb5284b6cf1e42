"""`status` and `inspect`: the commands that only look. They take no lock and write nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vime_sync.cli.application import Json, Local, LogFormat, Quiet, Shared, Verbose, application, epilog
from vime_sync.cli.output import Output, human_bytes
from vime_sync.inspection import inspect_path
from vime_sync.local.paths import local_paths
from vime_sync.status import read_status

_BEHIND = 3
_STATUS_EPILOG = epilog(
    ("vime-sync status --local /nvme/ckpt", "vime-sync status --local /nvme/ckpt --shared /mnt/pub --check"),
    (0, 1, 2, 3),
)
_INSPECT_EPILOG = epilog(
    ("vime-sync inspect /mnt/pub", "vime-sync inspect /mnt/pub/weight_v000041 --json"),
    (0, 1, 2, 10, 11, 13),
)


@application.command(epilog=_STATUS_EPILOG)
def status(
    local: Local,
    shared: Shared = None,
    check: Annotated[
        bool, typer.Option("--check", envvar="VIME_SYNC_CHECK", help="Exit 3 when behind the newest ready version.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Say where LOCAL stands, and how far behind the share."""
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    found = read_status(local_paths(local), shared)
    for warning in found.warnings:
        output.warning(warning)
    lineage = [
        {"version": entry.version, "kind": entry.kind.value, "identity": entry.identity} for entry in found.lineage
    ]
    document: dict[str, Any] = {
        "schema": "vime-sync/status/1",
        "local_version": found.local_version,
        "state": found.state,
        "latest_version": found.latest_version,
        "behind": found.behind,
        "durable": found.durable,
        "lineage": lineage,
        "engines": [],
        "last_error": None,
        "damaged": list(found.damaged),
        "shared": found.share,
        "base": found.base,
    }
    version = "no version" if found.local_version is None else f"version {found.local_version}"
    newest = "unknown" if found.latest_version is None else str(found.latest_version)
    behind = "" if not found.behind else f", {found.behind} behind"
    lines = [f"{found.state}: {version} (newest on the share: {newest}{behind})"]
    lines += [f"  damaged: {name}" for name in found.damaged]
    output.document(document, lines)
    if check and (found.behind or (found.local_version is None and found.latest_version is not None)):
        raise typer.Exit(_BEHIND)


@application.command(epilog=_INSPECT_EPILOG)
def inspect(
    path: Annotated[Path, typer.Argument(help="A stream, a version directory, or a checkpoint.")],
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Explain a stream, a version directory or a checkpoint; a malformed one exits 11 with the reason."""
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    found = inspect_path(path)
    lines = [f"{found['kind']}: {found['path']}"]
    for version in found.get("versions", ()):
        lines.append(_version_line(version))
    for key, value in found.items():
        if key in ("schema", "kind", "path", "versions", "tensors", "changed"):
            continue
        shown = human_bytes(value) if key.endswith("bytes") else value
        lines.append(f"  {key.replace('_', ' ')}: {shown}")
    lines += [f"  {line}" for line in _tensor_lines(found)] if not quiet else []
    output.document(found, lines)


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
