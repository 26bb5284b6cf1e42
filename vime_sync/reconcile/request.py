"""What is wanted of LOCAL, and what a pass did."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import belong_together, read_state, read_table
from vime_sync.model import DigestTable, LocalState
from vime_sync.plan import Plan, Result
from vime_sync.stream.catalog import Refusal


@dataclass(frozen=True)
class Request:
    """`version` None means the newest ready one; `wait_s` is for the lock.

    With `refuse_new_stream` a restarted trainer is an error, with `sync_later` the caller makes the data durable.
    `refused` are versions that were tried and were no good: not to be tried again before their files change.
    """

    share: Path | None
    base: Path | None
    version: int | None = None
    adopt: bool = False
    dry_run: bool = False
    wait_s: float = 0.0
    refuse_new_stream: bool = False
    sync_later: bool = False
    refused: Mapping[int, Refusal] = field(default_factory=dict)


@dataclass
class Report:
    """What a pass did, for people and programs; sizes in bytes, times in seconds."""

    result: Result = Result.ALREADY_CURRENT
    version: int = 0
    from_version: int | None = None
    seeded_from: int | None = None
    new_stream: bool = False
    tensors_changed: int = 0
    tensors_repaired: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    plan: Plan | None = None
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("plan", "seed", "apply", "reload"), 0.0))

    def fill(self, local: Local | None, plan: Plan) -> None:
        self.plan = plan
        self.result = plan.result
        self.version = plan.target
        self.from_version = local.state.version if local is not None else None
        self.new_stream = plan.new_stream
        anchors = [planned.anchor for planned in plan.passes if planned.anchor is not None]
        self.seeded_from = anchors[0] if anchors else None
        self.warnings.extend(warning for warning in plan.warnings if warning not in self.warnings)

    def healed(self, from_version: int | None) -> None:
        """The pass began with finishing one that was cut short: what changed since that one began is what was done."""
        self.from_version = from_version
        if self.result is Result.ALREADY_CURRENT:
            back = from_version is not None and self.version < from_version
            self.result = Result.ROLLED_BACK if back else Result.UPDATED

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += time.monotonic() - started


@dataclass(frozen=True)
class Local:
    """The committed version with its digest table."""

    state: LocalState
    table: DigestTable


def load_local(paths: LocalPaths) -> Local | None:
    """None where there is no state of ours, or its table is not the one it names: the bytes are then unknown."""
    state = read_state(paths).state
    table = read_table(paths, state.table_name) if state is not None else None
    if state is None or table is None or not belong_together(state, table):
        return None
    return Local(state, table)
