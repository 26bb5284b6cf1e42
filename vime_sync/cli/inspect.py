"""`inspect`: what a path is, as tables. Takes no lock and writes nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from vime_sync.cli.application import Json, LogFormat, Quiet, Verbose, application, epilog
from vime_sync.cli.output import Output, human_age, human_bytes, told_moment
from vime_sync.cli.style import Line, Text, Tone, screen_of
from vime_sync.cli.table import Bar, Cell, Column, Table
from vime_sync.inspection import inspect_path

_EPILOG = epilog(
    ("vime-sync inspect /mnt/pub", "vime-sync inspect /mnt/pub/weight_v000041 --json"),
    (0, 1, 2, 10, 11, 13, 21),
)
# Of many tensors a terminal shows the largest: the others would push everything else out of sight.
_MOST_ON_A_TERMINAL = 20
# What is still of use when it is cut, in columns of a terminal.
_LEAST_NAME, _LEAST_DIGEST, _LEAST_FILE = 36, 11, 20


@application.command(epilog=_EPILOG)
def inspect(
    # Hidden: told in the text below; the parser's own line would name its Python type.
    path: Annotated[Path, typer.Argument(metavar="PATH", hidden=True, readable=False)],
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Explain PATH: a stream, a version directory or a checkpoint.

    One that is malformed exits 11 with the reason. A terminal shows the largest tensors only, a file or pipe all.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    started = time.monotonic()
    found = inspect_path(path, told_moment)
    output.info(f"looked at in {time.monotonic() - started:.3f} s: indexes and headers, no weights")
    output.document(found, _lines(found, is_terminal=screen_of(sys.stdout).is_terminal))


def _lines(found: Mapping[str, Any], *, is_terminal: bool) -> list[Line | Table]:
    lines: list[Line | Table] = [[Text(found["kind"], Tone.STRONG), f": {found['path']}"]]
    if found["kind"] == "stream":
        return lines + _stream_lines(found)
    lines += _facts(found)
    if found.get("dtypes"):
        lines.append(_dtypes(found["dtypes"]))
    if found["kind"] == "delta":
        return lines + _changed(found["changed"], is_terminal=is_terminal)
    return lines + _tensors(found["tensors"], is_terminal=is_terminal)


# ---- a stream

_VERSION_COLUMNS = (
    Column("version"),
    Column("kind"),
    Column("encoding", rank=2),
    Column("tensors", right=True, rank=3),
    Column("size", right=True),
    Column(rank=4),
    Column("written", right=True, rank=1),
    Column("state"),
)


def _stream_lines(found: Mapping[str, Any]) -> list[Line | Table]:
    versions = found["versions"]
    most = max((version["wire_bytes"] or 0 for version in versions), default=0)
    lines: list[Line | Table] = []
    if versions:
        lines.append(Table(_VERSION_COLUMNS, [_version_row(version, most) for version in versions]))
    for version in versions:
        if not version["ready"]:
            lines.append(["  ", Text(f"{version['version']:06d}", Tone.CAUTION), f": {version['reason']}"])
    for first, last in found["missing"]:
        what = f"version {first} is" if first == last else f"versions {first} to {last} are"
        lines.append(["  ", Text("missing", Tone.BAD), f": {what} not there"])
    latest = found["latest_ready"]
    lines.append(f"  latest ready: {'none' if latest is None else latest}")
    if latest is not None:
        lines.append(["  a fresh host starts from: ", *_start(found["fresh_host_from"])])
    return lines


def _version_row(version: Mapping[str, Any], most: int) -> list[Cell]:
    age = human_age(version["age_s"])
    number = f"{version['version']:06d}"
    if not version["ready"]:
        return [number, "-", "", "", "", "", age, Text(version["problem"].replace("_", " "), Tone.CAUTION)]
    size = version["wire_bytes"]
    return [
        number,
        version["version_kind"],
        version["encoding"] or "",
        str(version["tensor_count"]),
        human_bytes(size),
        Bar(size / most if most else 0.0),
        age,
        Text("ready", Tone.GOOD),
    ]


def _start(version: int | None) -> list[str | Text]:
    if version is None:
        return [Text("nowhere, versions are missing below it", Tone.BAD)]
    return ["the base" if version == 0 else f"version {version}"]


# ---- a version, a checkpoint

# Told in lines of their own, or in the first one.
_NOT_FACTS = ("schema", "kind", "path", "tensors", "changed", "dtypes", "age_s", "written_at")


def _facts(found: Mapping[str, Any]) -> list[Line]:
    lines: list[Line] = []
    for key, value in found.items():
        if key not in _NOT_FACTS and value is not None:
            lines.append(f"  {key.replace('_', ' ')}: {human_bytes(value) if key.endswith('bytes') else value}")
    if found["written_at"] is not None:
        lines.append(f"  written: {found['written_at']}, {human_age(found['age_s'])}")
    return lines


def _dtypes(dtypes: Mapping[str, Mapping[str, int]]) -> Table:
    total = sum(sums["size_bytes"] for sums in dtypes.values())
    return Table(
        (Column(), Column(right=True), Column(), Column(right=True), Column(rank=1)),
        [
            [
                dtype,
                str(sums["tensor_count"]),
                "tensor" if sums["tensor_count"] == 1 else "tensors",
                human_bytes(sums["size_bytes"]),
                Bar(sums["size_bytes"] / total if total else 0.0),
            ]
            for dtype, sums in dtypes.items()
        ],
    )


def _changed(changed: Mapping[str, Mapping[str, Any]], *, is_terminal: bool) -> list[Line | Table]:
    columns = (Column(least=_LEAST_NAME), Column(right=True), Column(rank=1), Column(least=_LEAST_DIGEST, rank=2))
    names, rest = _chosen({name: payload["wire_bytes"] for name, payload in changed.items()}, is_terminal=is_terminal)
    most = max((payload["wire_bytes"] for payload in changed.values()), default=0)
    rows: list[list[Cell]] = [
        [
            name,
            human_bytes(changed[name]["wire_bytes"]),
            Bar(changed[name]["wire_bytes"] / most if most else 0.0),
            Text(changed[name]["digest"], Tone.FAINT),
        ]
        for name in names
    ]
    return [Table(columns, rows), *rest]


def _tensors(tensors: Mapping[str, Mapping[str, Any]], *, is_terminal: bool) -> list[Line | Table]:
    columns = (
        Column(least=_LEAST_NAME),
        Column(),
        Column(rank=1),
        Column(right=True),
        Column(rank=3),
        Column(least=_LEAST_FILE, rank=2),
    )
    names, rest = _chosen({name: spec["size_bytes"] for name, spec in tensors.items()}, is_terminal=is_terminal)
    most = max((spec["size_bytes"] for spec in tensors.values()), default=0)
    rows: list[list[Cell]] = [
        [
            name,
            tensors[name]["dtype"],
            str(tensors[name]["shape"]),
            human_bytes(tensors[name]["size_bytes"]),
            Bar(tensors[name]["size_bytes"] / most if most else 0.0),
            Text(tensors[name]["file"], Tone.FAINT),
        ]
        for name in names
    ]
    return [Table(columns, rows), *rest]


def _chosen(sizes: Mapping[str, int], *, is_terminal: bool) -> tuple[Sequence[str], list[Line]]:
    """Which tensors are shown in which order, and what is said of the others."""
    if not is_terminal:
        return list(sizes), []
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    left = largest[_MOST_ON_A_TERMINAL:]
    if not left:
        return largest, []
    told = f"  and {len(left)} smaller ones, {human_bytes(sum(sizes[name] for name in left))}"
    return largest[:_MOST_ON_A_TERMINAL], [[Text(told, Tone.FAINT)]]
