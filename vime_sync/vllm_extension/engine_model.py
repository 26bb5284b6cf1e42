"""The checkpoint that the engine was started from: the base where none is given, and what new weights must fit.

It is remembered at the first call: after a reload the worker's configuration names LOCAL. Never read back from there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vime_sync.errors import UsageError
from vime_sync.local.paths import LocalPaths, check_apart
from vime_sync.reconcile.sources import resolve_snapshot

_ATTRIBUTE = "_vime_sync_engine_model"


def engine_model(worker: Any) -> Path | None:
    """None where the engine was started from something that is no directory on this host."""
    if _ATTRIBUTE not in worker.__dict__:
        try:
            found = _find(worker)
        except (OSError, ValueError, RuntimeError):  # not a path at all; no home directory
            found = None
        worker.__dict__[_ATTRIBUTE] = found
    remembered: Path | None = worker.__dict__[_ATTRIBUTE]
    return remembered


def base_beside(worker: Any, paths: LocalPaths) -> Path | None:
    """The engine's model as a base of LOCAL: not where the engine was started from LOCAL itself."""
    model = engine_model(worker)
    try:
        check_apart(paths, None, model)
    except UsageError:
        return None
    return model


def ties_embeddings(worker: Any) -> bool:
    """By the engine's configuration of the model, which a reload does not change."""
    config = getattr(worker, "model_config", None)
    for name in ("hf_text_config", "hf_config"):
        if getattr(getattr(config, name, None), "tie_word_embeddings", None) is True:
            return True
    return False


def _find(worker: Any) -> Path | None:
    config = getattr(worker, "model_config", None)
    model = getattr(config, "model", None)
    if not isinstance(model, str) or not model:
        return None
    directory = Path(model)
    if not directory.is_dir():
        directory = _hub_cache() / f"models--{model.replace('/', '--')}"
        revision = getattr(config, "revision", None)
        if isinstance(revision, str) and revision:
            directory = directory / "snapshots" / _commit(directory, revision)
    return resolve_snapshot(directory.absolute()) if directory.is_dir() else None


def _commit(entry: Path, revision: str) -> str:
    """A branch or tag names its commit in a file; else it is one."""
    try:
        return (entry / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return revision


def _hub_cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
