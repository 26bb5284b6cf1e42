"""Where LOCAL stands, read without its lock: what is committed, what the share has. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime_sync.errors import ShareUnreachable, SyncError, UsageError
from vime_sync.local.intent import ApplyIntent, read_intent, remembered_state
from vime_sync.local.ownership import holds_ours
from vime_sync.local.paths import LocalPaths
from vime_sync.local.records import read_engines
from vime_sync.local.state import StateReading, boot_id, read_state
from vime_sync.model import EngineMemory, LocalState
from vime_sync.plan import is_new_stream
from vime_sync.reconcile.survey import survey
from vime_sync.stream.catalog import Catalog


@dataclass(frozen=True)
class ShareView:
    """What the share shows; `unreachable` says why it cannot be told. `new_stream`: it is not the one LOCAL is of."""

    latest_version: int | None = None
    new_stream: bool = False
    unreachable: ShareUnreachable | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standing:
    """`state` is ready, updating (between versions), damaged or absent; `remark` says more of one that is not ready.

    `between` are the versions that an unfinished pass leads from (None: from none) and to.
    """

    state: str
    between: tuple[int | None, int] | None = None
    remark: str | None = None


@dataclass(frozen=True)
class Status:
    """`committed` is the state on the disk, None where no version is; `remembered` also where one is on its way."""

    standing: Standing
    committed: LocalState | None
    remembered: LocalState | None
    share: Path | None
    view: ShareView

    @property
    def local_version(self) -> int | None:
        return None if self.committed is None else self.committed.version

    @property
    def behind(self) -> int | None:
        """How many versions; none of a new stream is here."""
        if self.local_version is None or self.view.latest_version is None:
            return None
        here = 0 if self.view.new_stream else self.local_version
        return max(0, self.view.latest_version - here)

    @property
    def is_current(self) -> bool:
        """Ready, and not behind what the share is known to have."""
        return self.standing.state == "ready" and not self.behind and not self.view.new_stream


def read_status(paths: LocalPaths, share: Path | None, view: ShareView | None = None) -> Status:
    """What cannot be told is None. With `view` the share is not looked at.

    Raises UsageError where LOCAL is a file, OSError where it cannot be read.
    """
    if paths.root.exists() and not paths.root.is_dir():
        raise UsageError(f"--local {paths.root} is a file, expected a directory or nothing")
    reading = read_state(paths)
    standing = _standing(paths, reading)
    remembered = remembered_state(paths)
    if share is None and remembered is not None and remembered.share is not None:
        share = Path(remembered.share)
    known = [remembered.version if remembered is not None else 0, *(standing.between or ())]
    held = max(version for version in known if version is not None)
    return Status(standing, reading.state, remembered, share, view or _look(share, remembered, held))


def _standing(paths: LocalPaths, reading: StateReading) -> Standing:
    if reading.state is not None:
        return _committed(reading.state)
    if reading.peer_version is not None:
        who = f"another receiver left version {reading.peer_version} here"
        return Standing("damaged", None, f"{who}; the next pull hashes it before it believes it")
    if paths.intent.exists():
        return _between(paths)
    if reading.present:
        return Standing("damaged", None, f"{paths.state} cannot be read; the next pull hashes what is here")
    if holds_ours(paths):
        return Standing("damaged", None, f"{paths.state} is gone; the next pull hashes what is here")
    return Standing("absent")


def _committed(state: LocalState) -> Standing:
    if state.damaged:
        return Standing("damaged")
    if not state.durable and state.boot_id != boot_id():
        return Standing("damaged", None, "power was lost before it was on the disk; the next pull hashes it")
    return Standing("ready")


def _between(paths: LocalPaths) -> Standing:
    try:
        intent = read_intent(paths)
    except ValueError:
        intent = None
    if intent is None:
        return Standing("updating", None, "between two versions; the next pull hashes what is here")
    if isinstance(intent, ApplyIntent):
        origin: int | None = intent.origin.version
        target = intent.version
        both_ways = intent.origin_proven and not intent.forward_only
    else:  # new files are only ever renamed forward
        origin, target, both_ways = intent.from_version, intent.state.version, False
    where = f"between versions {origin} and {target}"
    if origin is None:
        where = f"on the way to version {target}"
    elif origin == target:
        where = f"version {target} is being mended"
    end = "the next pull finishes or undoes it" if both_ways else "the next pull finishes it"
    return Standing("updating", (origin, target), f"{where}; {end}")


def _look(share: Path | None, remembered: LocalState | None, held: int) -> ShareView:
    if share is None:
        return ShareView()
    try:
        return _look_at(share, remembered, held)
    except ShareUnreachable as problem:
        return ShareView(unreachable=problem)
    except OSError as problem:
        return ShareView(unreachable=ShareUnreachable(f"reading {problem.filename or share}: {problem.strerror}"))


def _look_at(share: Path, remembered: LocalState | None, held: int) -> ShareView:
    catalog = Catalog(share)
    if not catalog.versions and held > 0:
        raise ShareUnreachable(
            f"{share} shows no version at all while version {held} is here: it looks unmounted", version=held
        )
    new_stream = remembered is not None and _is_another_stream(share, remembered)
    warnings: list[str] = []
    for version in reversed(catalog.versions):
        entry = catalog.entry(version)
        if isinstance(entry, ShareUnreachable):
            raise entry
        if not isinstance(entry, SyncError):
            return ShareView(version, new_stream, None, tuple(warnings))
        warnings.append(entry.message)
    return ShareView(0, new_stream, None, tuple(warnings))


def _is_another_stream(share: Path, state: LocalState) -> bool:
    """As a pull sees it, but for a full version whose stats alone changed: a look does not hash it."""
    view = survey(share, state.version, state, has_base=True, same_content=lambda checkpoint: True)
    return is_new_stream(view)


def status_document(
    found: Status, engines: Sequence[Mapping[str, Any]], last_error: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`vime-sync/status/1`, of the command and of the daemon."""
    committed, standing = found.committed, found.standing
    lineage = committed.lineage if committed is not None else ()
    return {
        "schema": "vime-sync/status/1",
        "local_version": found.local_version,
        "state": standing.state,
        "latest_version": found.view.latest_version,
        "behind": found.behind,
        "durable": committed is not None and committed.durable,
        "lineage": [
            {"version": entry.version, "kind": entry.kind.value, "identity": entry.identity} for entry in lineage
        ],
        "engines": list(engines),
        "last_error": last_error,
        "damaged": list(committed.damaged) if committed is not None else [],
        "shared": None if found.share is None else str(found.share),
        "base": None if found.remembered is None else found.remembered.base,
        "new_stream": found.view.new_stream,
        "between": None if standing.between is None else list(standing.between),
    }


def remembered_engines(paths: LocalPaths) -> list[dict[str, Any]]:
    """What the records say that each engine loaded; none is asked."""
    return [_engine_document(name, memory) for name, memory in sorted(read_engines(paths).items())]


def _engine_document(name: str, memory: EngineMemory) -> dict[str, Any]:
    kind, _, url = name.partition("=")
    state, version = "unknown", None
    if memory.error is not None:
        state = "failed"
    elif memory.weights is not None and not memory.is_open:
        state, version = "at_version", memory.weights.version
    return {"url": url, "kind": kind, "state": state, "version": version, "error": memory.error}
