"""`status`: where LOCAL stands. Takes no lock and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from vime_sync.cli.application import Json, Local, LogFormat, Quiet, Shared, Verbose, application, epilog
from vime_sync.cli.output import Output
from vime_sync.cli.style import Line, Text, Tone
from vime_sync.local.paths import local_paths
from vime_sync.local.records import read_last_error
from vime_sync.status import Status, read_status, remembered_engines, status_document

_BEHIND = 3
_EPILOG = epilog(
    ("vime-sync status --local /nvme/ckpt", "vime-sync status --local /nvme/ckpt --shared /mnt/pub --check"),
    (0, 1, 2, 3, 10, 21),
)


@application.command(epilog=_EPILOG)
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
    for detail in _details(found):
        output.info(detail)
    engines = remembered_engines(paths)
    last_error = read_last_error(paths)
    output.document(status_document(found, engines, last_error), _lines(found, engines, last_error))
    if check and unreachable is not None:
        raise unreachable
    if check and not found.is_current:
        raise typer.Exit(_BEHIND)


_TONES = {"ready": Tone.GOOD, "updating": Tone.CAUTION, "damaged": Tone.BAD, "absent": Tone.CAUTION}
_ENGINE_TONES = {"at_version": Tone.GOOD, "failed": Tone.BAD, "unreachable": Tone.BAD, "unknown": Tone.CAUTION}


def _lines(found: Status, engines: Sequence[Mapping[str, Any]], last_error: Mapping[str, Any] | None) -> list[Line]:
    what = "no version" if found.local_version is None else f"version {found.local_version}"
    if found.view.new_stream and found.local_version is not None:
        what += " of another stream"
    newest = "unknown" if found.view.latest_version is None else str(found.view.latest_version)
    first: list[str | Text] = [Text(found.standing.state, _TONES.get(found.standing.state)), ": "]
    first += [found.standing.remark or what, f" (newest on the share: {newest}"]
    first += [", ", Text(f"{found.behind} behind", Tone.CAUTION)] if found.behind else []
    lines: list[Line] = [[*first, ")"]]
    damaged = found.committed.damaged if found.committed is not None else ()
    lines += [["  ", Text("damaged", Tone.BAD), f": {name}"] for name in damaged]
    lines += [_engine_line(engine) for engine in engines]
    if last_error is not None:
        lines.append(["  ", Text(f"last error [{last_error.get('id')}]", Tone.BAD), f": {last_error.get('message')}"])
        if last_error.get("hint"):
            lines.append(["  ", Text("hint", Tone.STRONG), f": {last_error['hint']}"])
    return lines


def _engine_line(engine: Mapping[str, Any]) -> Line:
    version = "" if engine["version"] is None else f" {engine['version']}"
    reason = f": {engine['error']}" if engine["error"] else ""
    state = Text(f"{engine['state'].replace('_', ' ')}{version}", _ENGINE_TONES.get(engine["state"]))
    return [f"  {engine['kind']}={engine['url']}: ", state, reason]


def _details(found: Status) -> list[str]:
    base = found.remembered.base if found.remembered is not None else None
    details = [f"share: {found.share or 'none is given or remembered'}", f"base: {base or 'none is remembered'}"]
    if found.committed is not None:
        steps = [f"{entry.kind.value} {entry.version}" for entry in found.committed.lineage]
        details.append(f"built from: {', '.join(steps)}")
        details.append(f"{'' if found.committed.durable else 'not yet '}known to be on the disk")
    return details
