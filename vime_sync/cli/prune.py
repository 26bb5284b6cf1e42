"""`prune`: takes the versions away that no host can need. One of the few commands that write on the share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vime_sync.acks import Ack
from vime_sync.cli.application import Json, LogFormat, Quiet, SharedToChange, Verbose, application, epilog
from vime_sync.cli.output import Output, human_bytes
from vime_sync.cli.process import stoppable
from vime_sync.cli.style import Line, Text, Tone
from vime_sync.errors import ShareUnreachable
from vime_sync.pruning import (
    BASE,
    Decision,
    Share,
    Version,
    decide,
    finish,
    hold,
    look,
    oldest_holder,
    read_holders,
    remove,
)

_EPILOG = epilog(
    (
        "vime-sync prune --shared /mnt/pub --keep 20 --ack-dir /mnt/acks --dry-run",
        "vime-sync prune --shared /mnt/pub --keep 20 --ack-dir /mnt/acks",
    ),
    (0, 1, 2, 10, 20, 21, 23),
)
_MAX_NAMED = 8


@application.command(epilog=_EPILOG)
def prune(
    shared: SharedToChange,
    keep: Annotated[
        int,
        typer.Option(
            "--keep",
            envvar="VIME_SYNC_KEEP",
            metavar="COUNT",
            min=1,
            help="How many of the newest ready versions stay, with all that they build on.",
        ),
    ],
    ack_dir: Annotated[
        Path | None,
        typer.Option(
            "--ack-dir",
            envvar="VIME_SYNC_ACK_DIR",
            metavar="DIR",
            readable=False,
            help="Where the hosts' daemons put their records; what a host there needs stays, too.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", envvar="VIME_SYNC_DRY_RUN", help="Say what would be removed, change nothing."),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = "text",
) -> None:
    """Remove versions that no host can need from the share.

    The newest --keep versions stay, what the hosts in --ack-dir still have to come, and from the newest full version
    at or below these everything up to them. Without such a full version nothing goes. A version without an index
    stays and counts for nothing: only a host can tell whether it is whole.
    """
    output = Output(json=json, quiet=quiet, verbose=verbose, log_format=log_format)
    plan = _plan(shared, keep, ack_dir)
    if dry_run or not plan.has_work:
        plan.warn(output)
    else:
        with stoppable() as stop, hold(shared, output.warning):
            plan = _plan(shared, keep, ack_dir)  # another prune may have been at work until now
            plan.warn(output)
            finish(plan.share.leftovers, output.warning)
            if plan.decision.anchor:
                remove(plan.removed, plan.share.versions[plan.decision.anchor], output.warning, stop.check)
    share, oldest, decision, removed = plan.share, plan.oldest, plan.decision, plan.removed
    freed_bytes = sum(version.size_bytes for version in removed)
    for version in removed:
        output.info(f"{'would remove' if dry_run else 'removed'} {version.path} ({human_bytes(version.size_bytes)})")
    document = {
        "schema": "vime-sync/prune/1",
        "dry_run": dry_run,
        "removed": list(decision.removed),
        "kept": list(decision.kept),
        "anchor": decision.anchor,
        "freed_bytes": freed_bytes,
        "reason": decision.reason,
        "oldest_held": None if oldest is None else oldest.version,
        "left_by_kills": len(share.leftovers),
    }
    output.document(document, _lines(document))


@dataclass(frozen=True)
class _Plan:
    share: Share
    oldest: Ack | None
    decision: Decision
    warnings: tuple[str, ...]

    @property
    def removed(self) -> list[Version]:
        return [self.share.versions[number] for number in self.decision.removed]

    @property
    def has_work(self) -> bool:
        return bool(self.decision.removed or self.share.leftovers)

    def warn(self, output: Output) -> None:
        for warning in self.warnings:
            output.warning(warning)


def _plan(shared: Path, keep: int, ack_dir: Path | None) -> _Plan:
    """What stands there now and what would go. Changes nothing."""
    share = look(shared)
    oldest, warnings = _oldest(share, ack_dir)
    decision = _decide(share, keep, oldest)
    if decision.single:
        warnings.append(
            f"no index in version {_ranges(list(decision.single))}: whether such a version is a full one only a host "
            "can tell, by its own tensors; it stays, and counts neither for --keep nor as what others build on"
        )
    for number in decision.spared:
        version = share.versions[number]
        why = version.problem or (f"version {number} is a link: {version.path}" if version.is_link else None)
        if why is not None:
            warnings.append(f"{why}; it is left as it is")
    return _Plan(share, oldest, decision, tuple(warnings))


def _oldest(share: Share, ack_dir: Path | None) -> tuple[Ack | None, list[str]]:
    """The record of the host that is furthest behind in this stream, and what is to be said about the others."""
    if ack_dir is None:
        return None, ["no --ack-dir is given: what hosts hold is not known, and --keep alone decides"]
    acks = read_holders(ack_dir)
    highest = max(acks, key=lambda ack: ack.version)
    if not share.versions and highest.version:
        raise ShareUnreachable(
            f"{share.root} shows no version at all while host {highest.host} holds version {highest.version}: it looks "
            "unmounted; nothing was removed"
        )
    holder = oldest_holder(acks, share.identities)
    warnings = [
        f"host {ack.host} ({ack.local}) is at version {ack.version} of another stream; it is not counted"
        for ack in holder.strangers[:_MAX_NAMED]
    ]
    if len(holder.strangers) > _MAX_NAMED:
        warnings.append(f"{len(holder.strangers) - _MAX_NAMED} more hosts are in another stream; they are not counted")
    return holder.oldest, warnings


def _decide(share: Share, keep: int, oldest: Ack | None) -> Decision:
    kinds = {number: version.kind for number, version in share.versions.items()}
    links = [number for number, version in share.versions.items() if version.is_link]
    if oldest is None:
        return decide(kinds, keep, None, fixed=links)
    return decide(kinds, keep, oldest.version, fixed=links, who=f"host {oldest.host} ({oldest.local})")


def _lines(document: dict[str, Any]) -> list[Line]:
    removed, kept = document["removed"], document["kept"]
    verb = "would remove" if document["dry_run"] else "removed"
    lines: list[Line] = []
    if removed:
        what = f"{len(removed)} version{'' if len(removed) == 1 else 's'} ({_ranges(removed)})"
        lines.append([Text(f"{verb} {what}", Tone.STRONG), f", {human_bytes(document['freed_bytes'])}"])
    else:
        lines.append("nothing to remove")
    if kept:
        lines.append(f"  kept: {len(kept)} ({_ranges(kept)})")
    lines.append(f"  because {document['reason']}")
    if document["anchor"] == BASE:
        lines.append("  a full version published now and then lets what is below it go")
    if document["left_by_kills"]:
        lines.append(f"  left by an earlier prune: {document['left_by_kills']}")
    return lines


def _ranges(versions: list[int]) -> str:
    """`1-4, 6`."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and version == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], version]
        else:
            runs.append([version, version])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(shown[:_MAX_NAMED]) + (f" and {len(shown) - _MAX_NAMED} more" if len(shown) > _MAX_NAMED else "")
