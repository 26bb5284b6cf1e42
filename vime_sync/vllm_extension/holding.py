"""What LOCAL holds at this moment, seen without its lock. Writes nothing; cheap enough for every poll.

A version is held only while every file is as it was when its bytes were proven (promise 1), and only since this boot
or where the bytes were known durable (promise 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from vime_sync.errors import name_some
from vime_sync.local.layout import touched_files
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import boot_id, read_state, read_table, weights_digest
from vime_sync.model import FileStat, Weights
from vime_sync.vllm_extension.answers import Outcome

_LOOKS = 3


@dataclass(frozen=True)
class Holding:
    """The weights, with the files' stats that prove them; or None and the reason. Equal ones: nothing has changed."""

    weights: Weights | None
    reason: str
    stats: Mapping[str, FileStat] = field(default_factory=dict)

    @property
    def version(self) -> int | None:
        return None if self.weights is None else self.weights.version

    @property
    def lineage(self) -> str | None:
        return None if self.weights is None else self.weights.lineage

    def is_of(self, version: int | None, lineage: str | None) -> bool:
        """Whether exactly these weights are held; what is None is not asked for."""
        if self.weights is None:
            return False
        return self.version == (version if version is not None else self.version) and self.lineage == (
            lineage if lineage is not None else self.lineage
        )

    def outcome(self) -> Outcome:
        return Outcome(True, self.reason, self.version, self.lineage)


def read_holding(paths: LocalPaths) -> Holding:
    """Raises OSError where LOCAL cannot be read at all."""
    found = _read(paths)
    for _ in range(_LOOKS - 1):
        # Its digest table goes once a later version is committed: then there is another state to read.
        if found is not None:
            break
        found = _read(paths)
    return found or Holding(None, f"the digest table of the version in {paths.root} is gone")


def _read(paths: LocalPaths) -> Holding | None:
    """None where the digest table that the state names is not there."""
    reading = read_state(paths)
    state = reading.state
    if state is None:
        if reading.present:
            return Holding(None, f"{paths.state} is not ours: bytes that were not proven are not loaded")
        between = paths.intent.exists()
        return Holding(None, f"{paths.root} " + ("is between two versions" if between else "holds no version"))
    named = f"version {state.version} in {paths.root}"
    if state.damaged:
        return Holding(None, f"{named} is damaged: {name_some(state.damaged)}")
    if not state.durable and state.boot_id != boot_id():
        return Holding(None, f"{named} was not durable before this host was booted: a pull hashes it")
    touched = touched_files(paths, state)
    if touched:
        return Holding(None, f"{named} was changed since its bytes were proven: {name_some(touched)}")
    if not (paths.tables / state.table_name).is_file():
        return None
    lineage = _lineage(paths, state.table_name)
    if lineage is None:
        return None
    return Holding(Weights(state.version, lineage, state.repairs), f"{named} is whole", state.stats)


def _lineage(paths: LocalPaths, table_name: str) -> str | None:
    try:
        return _known_lineage(paths, table_name)
    except LookupError:
        return None


@lru_cache(maxsize=8)
def _known_lineage(paths: LocalPaths, table_name: str) -> str:
    """A table is immutable, and its name carries the digest of its contents: each is read once."""
    table = read_table(paths, table_name)
    if table is None:
        raise LookupError(table_name)
    return weights_digest(table)
