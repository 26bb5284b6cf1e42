"""`wait`: for a trainer that goes on only when its hosts hold a version. Reads acks; writes nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from vime_sync.acks import Held, Question, newest_ready, parse_hosts, wait_for_hosts
from vime_sync.acks.waiting import Listener
from vime_sync.cli.application import Json, LogFormat, Quiet, Verbose, application, epilog, parse_version, words
from vime_sync.cli.output import Output
from vime_sync.cli.process import stoppable
from vime_sync.errors import UsageError

_EPILOG = epilog(
    (
        "vime-sync wait --ack-dir /mnt/acks --version 41 --hosts 32 --timeout 600",
        "vime-sync wait --ack-dir /mnt/acks --version 41 --hosts a1,a2 --shared /pub",
    ),
    (0, 1, 2, 10, 13, 21),
)


def _a_number(seconds: float | None) -> float | None:
    if seconds is not None and math.isnan(seconds):  # the parser takes `nan`, which no wait ever reaches
        raise typer.BadParameter(f"{seconds} is not a number of seconds")
    return seconds


@application.command(epilog=_EPILOG)
def wait(
    ack_dir: Annotated[
        Path,
        typer.Option(
            "--ack-dir",
            envvar="VIME_SYNC_ACK_DIR",
            metavar="DIR",
            readable=False,
            help="Where the hosts' daemons put their records.",
        ),
    ],
    version: Annotated[
        str,
        typer.Option(
            "--version",
            envvar="VIME_SYNC_VERSION",
            metavar="N|latest",
            autocompletion=words("latest"),
            help="A number, or (with --shared) the newest ready one at the start. A host at a later one holds it too.",
        ),
    ],
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts",
            envvar="VIME_SYNC_HOSTS",
            metavar="K|h1,h2",
            help="How many records must hold it, or the hosts of which every record must.",
        ),
    ],
    shared: Annotated[
        Path | None,
        typer.Option(
            "--shared",
            envvar="VIME_SYNC_SHARED",
            metavar="DIR",
            readable=False,
            help="Count only hosts of the stream that stands here: after a restart old ones have the same numbers.",
        ),
    ] = None,
    served: Annotated[
        bool,
        typer.Option(
            "--served", envvar="VIME_SYNC_SERVED", help="Wait until the engines of those hosts serve it, too."
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            envvar="VIME_SYNC_TIMEOUT",
            metavar="SECONDS",
            min=0,
            callback=_a_number,
            help="Give up after that, naming who lacks what (exit 10); 0: one look. Without it: wait for ever.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Wait until hosts hold a version, by the records of their daemons.

    Two hosts with other weights under one version end it with 13.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    wanted, number = parse_hosts(hosts), parse_version(version)
    if number is None:
        if shared is None:
            raise UsageError("--version latest needs --shared, to see what the newest one is")
        number = newest_ready(shared, output.warning)
    question = Question(ack_dir, number, wanted, shared, served, timeout)
    with stoppable() as stop:
        held = wait_for_hosts(question, Listener(output.warning, output.info), stop.check)
    output.info(f"looked {held.looks} times in {held.seconds:.3f} s")
    output.document(_document(number, held), _lines(number, held, served=served))


def _document(version: int, held: Held) -> dict[str, Any]:
    return {
        "schema": "vime-sync/wait/1",
        "version": version,
        "hosts": [
            {"host": ack.host, "local": ack.local, "version": ack.version, "lineage": ack.lineage}
            for ack in held.holders
        ],
        "seconds": round(held.seconds, 6),
    }


def _lines(version: int, held: Held, *, served: bool) -> list[str]:
    how = "held and served by" if served else "held by"
    return [
        f"version {version}: {how} {len(held.holders)} of what --ack-dir shows",
        *(f"  {ack.host} ({ack.local}): version {ack.version}" for ack in held.holders),
    ]
