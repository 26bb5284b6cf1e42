"""What a pull did, as the document for programs, as lines for people, and in detail for `--verbose`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vime_sync.cli.output import human_bytes
from vime_sync.model import LocalState
from vime_sync.plan import Plan, PlannedPass, Result
from vime_sync.reconcile import Report


def pull_document(report: Report) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": "vime-sync/pull/1",
        "result": report.result.value,
        "version": report.version,
        "from_version": report.from_version,
        "seeded_from": report.seeded_from,
        "new_stream": report.new_stream,
        "tensors_changed": report.tensors_changed,
        "tensors_repaired": report.tensors_repaired,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "engines": [],  # filled in by who speaks to them
        "seconds": {phase: round(seconds, 6) for phase, seconds in report.seconds.items()},
        "warnings": report.warnings,
    }
    if report.plan is not None and report.result is Result.PLANNED:
        document["passes"] = [
            {"anchor": planned.anchor, "deltas": list(planned.deltas)} for planned in report.plan.passes
        ]
    return document


def pull_lines(report: Report) -> list[str]:
    if report.plan is not None and report.result is Result.PLANNED:
        lines = [f"version {report.version}: planned{_came_from(report)}", *_pass_lines(report.plan)]
        return lines if report.plan.passes else [*lines, "  nothing to do"]
    if report.result is Result.ALREADY_CURRENT:
        return [f"version {report.version}: already current"]
    repaired = f", {report.tensors_repaired} repaired" if report.tensors_repaired else ""
    return [
        f"version {report.version}: {report.result.value.replace('_', ' ')}{_came_from(report)}",
        f"  {report.tensors_changed} tensors changed{repaired}; {human_bytes(report.bytes_read)} read, "
        f"{human_bytes(report.bytes_written)} written in {report.seconds['total']:.2f} s",
    ]


def pull_details(report: Report, state: LocalState | None, threads: int) -> Iterator[str]:
    """What `--verbose` adds; `state` is what is committed now."""
    if report.result is not Result.PLANNED and report.plan is not None:
        yield from (line.strip() for line in _pass_lines(report.plan))
    seconds = dict(report.seconds)
    total = seconds.pop("total")
    phases = ", ".join(f"{phase} {spent:.3f}" for phase, spent in seconds.items() if spent)
    yield f"seconds: total {total:.3f}" + (f", of which {phases}" if phases else "") + f"; {threads} threads"
    yield f"bytes: {report.bytes_read} read, {report.bytes_written} written"
    if state is not None and report.result is not Result.PLANNED:
        yield f"version {state.version} is {'' if state.durable else 'not yet '}known to be on the disk"


def rate(size_bytes: int, seconds: float) -> str:
    return f"{human_bytes(round(size_bytes / seconds))}/s" if seconds else "no time at all"


def _came_from(report: Report) -> str:
    origin = "" if report.from_version is None else f" from version {report.from_version}"
    seeded = {None: "", 0: ", seeded from the base"}.get(
        report.seeded_from, f", seeded from version {report.seeded_from}"
    )
    return origin + seeded + (", the trainer began a new stream" if report.new_stream else "")


def _pass_lines(plan: Plan) -> list[str]:
    return [f"  pass {number}: {_pass_words(planned)}" for number, planned in enumerate(plan.passes, start=1)]


def _pass_words(planned: PlannedPass) -> str:
    if planned.back_to is not None:
        start = f"back to version {planned.back_to}"
    elif planned.anchor is not None:
        start = "seed from the base" if planned.anchor == 0 else f"seed from version {planned.anchor}"
    else:
        start = "in place"
    if not planned.deltas:
        return start
    if len(planned.deltas) == 1:
        return f"{start}, delta {planned.deltas[0]}"
    return f"{start}, deltas {planned.deltas[0]} to {planned.deltas[-1]} folded"
