"""The committed local version as the loop needs it every second, read again only when its record was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vime_sync import fsio
from vime_sync.local.intent import remembered_state
from vime_sync.local.paths import LocalPaths
from vime_sync.model import FileStat, Weights
from vime_sync.reconcile.request import Local, load_local
from vime_sync.reconcile.serving import weights_of


@dataclass(frozen=True)
class Held:
    """`weights` is None where nothing whole is committed; `share` and `base` are those that LOCAL remembers."""

    local: Local | None = None
    weights: Weights | None = None
    share: Path | None = None
    base: Path | None = None

    @property
    def version(self) -> int:
        return 0 if self.local is None else self.local.state.version


class HeldView:
    def __init__(self, paths: LocalPaths) -> None:
        self._paths = paths
        self._stat: FileStat | None = None
        self._held = Held()

    def get(self) -> Held:
        """Raises OSError where the record cannot be read."""
        try:
            stat = fsio.stat(self._paths.state)
        except (FileNotFoundError, NotADirectoryError):
            stat = None
        if stat is None or stat != self._stat:
            self._held, self._stat = self._read(), stat
        return self._held

    def _read(self) -> Held:
        local = load_local(self._paths)
        whole = local if local is not None and not local.state.damaged else None
        state = remembered_state(self._paths)
        return Held(
            local,
            None if whole is None else weights_of(whole),
            None if state is None or state.share is None else Path(state.share),
            None if state is None or state.base is None else Path(state.base),
        )
