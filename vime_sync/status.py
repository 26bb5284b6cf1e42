"""Where LOCAL stands, read without its lock: what is committed, what the share has. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vime_sync.errors import ShareUnreachable, SyncError
from vime_sync.local.intent import remembered_state
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import read_state
from vime_sync.model import LineageEntry
from vime_sync.stream.catalog import Catalog


@dataclass(frozen=True)
class Status:
    """`state` is ready, updating (between versions), damaged or absent."""

    local_version: int | None
    state: str
    latest_version: int | None
    durable: bool
    lineage: tuple[LineageEntry, ...]
    damaged: tuple[str, ...]
    share: str | None
    base: str | None
    warnings: tuple[str, ...]

    @property
    def behind(self) -> int | None:
        if self.local_version is None or self.latest_version is None:
            return None
        return max(0, self.latest_version - self.local_version)


def read_status(paths: LocalPaths, share: Path | None) -> Status:
    """Never raises for what it finds; what it cannot tell is None, and said in a warning."""
    reading = read_state(paths)
    state = reading.state
    remembered = remembered_state(paths)
    if share is None and remembered is not None and remembered.share is not None:
        share = Path(remembered.share)
    latest, warnings = _latest(share)
    if state is not None:
        word = "damaged" if state.damaged else "ready"
        return Status(
            state.version, word, latest, state.durable, state.lineage, state.damaged, _text(share), state.base, warnings
        )
    word = "damaged" if reading.present else "absent"
    word = "updating" if paths.intent.exists() else word
    return Status(None, word, latest, False, (), (), _text(share), remembered.base if remembered else None, warnings)


def _text(share: Path | None) -> str | None:
    return None if share is None else str(share)


def _latest(share: Path | None) -> tuple[int | None, tuple[str, ...]]:
    if share is None:
        return None, ()
    try:
        catalog = Catalog(share)
    except ShareUnreachable as problem:
        return None, (problem.message,)
    warnings: list[str] = []
    for version in reversed(catalog.versions):
        entry = catalog.entry(version)
        if not isinstance(entry, SyncError):
            return version, tuple(warnings)
        warnings.append(entry.message)
    return 0, tuple(warnings)
