"""`publish`: the next version from a checkpoint directory, for trainers that only save checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vime_sync.cli.application import Json, LogFormat, Quiet, Threads, Verbose, application, epilog
from vime_sync.cli.output import Output, human_bytes
from vime_sync.cli.process import allow_many_files, stoppable
from vime_sync.cli.pulled import rate
from vime_sync.errors import UsageError
from vime_sync.model import ChecksumFormat, VersionKind
from vime_sync.publish import (
    DEFAULT_LEVEL,
    DEFAULT_SHARD_BYTES,
    MAX_LEVEL,
    Options,
    Publication,
    PublishEncoding,
    publish_directory,
)

_EPILOG = epilog(
    (
        "vime-sync publish --shared /pub --from /ckpt/200 --base /base --cache /cache",
        "vime-sync publish --shared /pub --from /ckpt/300 --encoding full",
    ),
    (0, 1, 2, 10, 11, 12, 13, 20, 21, 22, 23),
)
_NEXT = "next"


def _option(name: str, metavar: str, text: str, **more: Any) -> Any:
    twin = f"VIME_SYNC_{name.removeprefix('--').replace('-', '_').upper()}"
    return typer.Option(name, envvar=twin, metavar=metavar, help=text, **more)


@application.command(epilog=_EPILOG)
def publish(
    shared: Annotated[Path, _option("--shared", "DIR", "Directory to publish to; it must exist.", readable=False)],
    source: Annotated[
        Path, _option("--from", "DIR", "Checkpoint to publish: a directory, or a HF cache entry.", readable=False)
    ],
    base: Annotated[
        Path | None,
        _option("--base", "DIR", "Version 0: what hosts start from; version 1 is made against it.", readable=False),
    ] = None,
    cache: Annotated[
        Path | None,
        _option(
            "--cache",
            "DIR",
            "Kept at the version before, which the next delta is made against: a directory of its own on this "
            "host, with room for one checkpoint.",
            readable=False,
        ),
    ] = None,
    version: Annotated[
        str, _option("--version", "N|next", "Number to publish; only a full version may skip some.")
    ] = _NEXT,
    encoding: Annotated[
        PublishEncoding,
        _option("--encoding", "xor|overwrite|full", "How changes are written; full: the whole checkpoint."),
    ] = PublishEncoding.XOR,
    checksum: Annotated[
        ChecksumFormat,
        _option("--checksum", "xxh3-128|blake3|adler32", "Digest of each changed tensor; adler32 is weak."),
    ] = ChecksumFormat.XXH3_128,
    full_every: Annotated[
        int, _option("--full-every", "N", "Make every version that N divides a full one; 0: none.", min=0)
    ] = 0,
    level: Annotated[
        int, _option("--level", "N", "zstd level; above 1 costs far more time than it saves.", min=1, max=MAX_LEVEL)
    ] = DEFAULT_LEVEL,
    shard_size: Annotated[
        int, _option("--shard-size", "BYTES", "Begin another file once a delta's file has so much.", min=1)
    ] = DEFAULT_SHARD_BYTES,
    threads: Threads = 0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Publish a checkpoint as the next version.

    It is written as a delta against the version before: the base, or what --cache holds. Where names, dtypes or
    shapes changed it is a full version. It appears on the share whole and durable, or not at all; no version is ever
    published over.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    options = Options(shared, base, cache, _number(version), encoding, checksum, full_every, threads, level, shard_size)
    allow_many_files()
    with stoppable() as stop, output.tally() as tally:
        published = publish_directory(source, options, stop, tally)
    for warning in published.warnings:
        output.warning(warning)
    phases = ", ".join(f"{phase} {spent:.3f}" for phase, spent in published.seconds.items())
    output.info(f"seconds: {phases}")
    output.info(f"published as {published.path}")
    output.document(_document(published), _lines(published))


def _number(text: str) -> int | None:
    if text == _NEXT:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UsageError(f"--version {text!r}, expected a number from 1 up, or {_NEXT}")
    return int(text)


def _document(published: Publication) -> dict[str, Any]:
    return {
        "schema": "vime-sync/publish/1",
        "result": "published",
        "version": published.version,
        "kind": published.kind.value,
        "encoding": published.encoding,
        "checksum": published.checksum,
        "tensors_changed": published.tensors_changed,
        "tensors_total": published.tensors_total,
        "changed_bytes": published.changed_bytes,
        "total_bytes": published.total_bytes,
        "wire_bytes": published.wire_bytes,
        "density": published.density,
        "seconds": {phase: round(spent, 6) for phase, spent in published.seconds.items()},
        "path": str(published.path),
        "warnings": list(published.warnings),
    }


def _lines(published: Publication) -> list[str]:
    wire, total = human_bytes(published.wire_bytes), human_bytes(published.total_bytes)
    spent = f"{published.seconds['total']:.2f} s"
    if published.kind is VersionKind.FULL:
        speed = rate(published.wire_bytes, published.seconds["write"])
        return [
            f"version {published.version}: published as a full version, {published.tensors_total} tensors",
            f"  {wire} written in {spent} ({speed})",
        ]
    changed = published.changed_bytes or 0
    per_change = f", {published.wire_bytes / changed:.2f} bytes for each changed one" if changed else ""
    share = (
        f" ({published.wire_bytes / published.total_bytes:.2%} of {total}{per_change})" if published.total_bytes else ""
    )
    speed = rate(published.total_bytes, published.seconds["diff"])
    return [
        f"version {published.version}: published as a delta ({published.encoding}), "
        f"{published.tensors_changed} of {published.tensors_total} tensors changed",
        f"  {human_bytes(changed)} changed ({published.density or 0.0:.3%}); {wire} written{share}",
        f"  in {spent}, compared at {speed}",
    ]
