"""Whether engines that started from the base can load what LOCAL holds."""

from __future__ import annotations

import json
from pathlib import Path

from vime_sync.errors import EngineNotReady, ShareUnreachable, UsageError, name_some
from vime_sync.local.layout import read_layout
from vime_sync.materialize.context import Context
from vime_sync.model import VersionKind
from vime_sync.reconcile.request import Local
from vime_sync.reconcile.sources import Sources

_HEAD = "lm_head.weight"


def misfit(context: Context, local: Local) -> EngineNotReady | None:
    """Where LOCAL has other tensors or shapes than the base that the engines started from (E4).

    Of a missing tensor an engine keeps the old value and says nothing; one that is unknown to it, or of another
    shape, leaves it half loaded, and a later load that seems to go well does not mend that. Only a full version can
    differ. A base that cannot be read now proves nothing.
    """
    state = local.state
    if state.lineage[0].kind is not VersionKind.FULL or state.base is None:
        return None
    try:
        base = Sources(None, Path(state.base)).base()
    except (UsageError, ShareUnreachable):
        return None
    before = {name: shape for name, (_, shape) in base.signature().items()}
    now = {name: shape for name, (_, shape) in read_layout(context.paths, local.table).signature.items()}
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    if _ties_embeddings(base.directory / "config.json") and (_HEAD in before) != (_HEAD in now):
        differing -= {_HEAD}
    if not differing:
        return None
    return EngineNotReady(
        f"version {state.version} and the base differ in {name_some(differing)}, missing, unknown or of another "
        "shape: engines that started from the base cannot load it rightly",
        hint="Have the trainer publish a full version with the base's tensors, or start the engines from this one.",
        version=state.version,
        tensors=differing,
    )


def _ties_embeddings(config: Path) -> bool:
    """Then the head is the embedding, and a checkpoint may leave it out."""
    try:
        document = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("tie_word_embeddings") is True
