"""The safe reload: this rank loads exactly the wanted weights from LOCAL, or says what it may hold instead.

The bytes are proven and untouched before (promise 1), and must still be the same after: vLLM maps the files, so a
file that is patched meanwhile gives tensors that are half old and half new, and no error.

The lock: on the leader's host the leader holds it over the whole reload. On every other host this takes a share of
it, with all the other ranks, so that no pull can begin meanwhile. Neither is waited for: where somebody else holds
it, what he changes is seen afterwards, in the state that is gone or another one, and in the files' stats.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vime_sync.errors import EngineNotReady, EngineRefused, EngineUncertain, UsageError, name_some
from vime_sync.local.layout import read_layout
from vime_sync.local.paths import LocalPaths
from vime_sync.model import VersionKind
from vime_sync.reconcile.request import load_local
from vime_sync.reconcile.sources import Sources
from vime_sync.vllm_extension.answers import Outcome
from vime_sync.vllm_extension.engine_model import base_beside, ties_embeddings
from vime_sync.vllm_extension.holding import read_holding

# Is the embedding itself where the model ties them.
_EMBEDDING_TWIN = "lm_head.weight"


def load(worker: Any, paths: LocalPaths, version: int | None, lineage: str | None) -> Outcome:
    """Never raises for what vLLM raises: the rank is then half loaded, and the answer says so."""
    with _still(paths):
        held = read_holding(paths)
        if held.weights is None:
            return _refused(held.outcome(), f"nothing is loaded: {held.reason}")
        if not held.is_of(version, lineage):
            wanted = f"version {version}" + (f" of lineage {lineage}" if lineage is not None else "")
            here = f"version {held.version} of lineage {held.lineage}"
            return _refused(held.outcome(), f"nothing is loaded: {here} is in {paths.root}, expected {wanted}")
        unfit = _unfit(worker, paths)
        if unfit is not None:
            return _refused(held.outcome(), f"nothing is loaded: version {held.version} {unfit}")
        reload_weights = getattr(worker, "reload_weights", None)
        if not callable(reload_weights):
            return _refused(held.outcome(), "nothing is loaded: this worker has no reload_weights")
        try:
            reload_weights(weights_path=str(paths.root))
        except Exception as problem:
            message = f"loading {paths.root} failed half way: {type(problem).__name__}: {problem}"
            return replace(held.outcome(), success=False, message=message, error=EngineRefused.id, touched=True)
        after = read_holding(paths)
    if after != held:
        message = (
            f"{paths.root} changed while it was loaded: now {after.reason}; some tensors may be half old, half new"
        )
        return replace(after.outcome(), success=False, message=message, error=EngineUncertain.id, touched=True)
    return replace(held.outcome(), message=f"loaded version {held.version}", touched=True)


def _refused(outcome: Outcome, message: str) -> Outcome:
    return replace(outcome, success=False, message=message, error=EngineNotReady.id, retryable=EngineNotReady.retryable)


@contextmanager
def _still(paths: LocalPaths) -> Iterator[None]:
    """A share of LOCAL's lock while the body runs, if it is to be had now. The kernel takes it back from the dead."""
    try:
        file = paths.lock.open("rb")
    except OSError:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            yield
            return
        yield


def _unfit(worker: Any, paths: LocalPaths) -> str | None:
    """Why the engine could not take all of LOCAL's tensors, or None.

    It would keep the old values of a tensor that is missing and say nothing (FIELD_GUIDE E4), and no later load mends
    what one of another shape leaves behind. One that it does not know it refuses by itself. Bytes that began with the
    base have its tensors; a base that cannot be read now proves nothing.
    """
    local = load_local(paths)
    if local is None or local.state.lineage[0].kind is VersionKind.BASE:
        return None
    base_path = base_beside(worker, paths) or (Path(local.state.base) if local.state.base else None)
    try:
        base = Sources(None, base_path).base()
    except UsageError:
        return None
    expected, found = base.signature(), read_layout(paths, local.table).signature
    missing = expected.keys() - found.keys()
    if ties_embeddings(worker):
        missing.discard(_EMBEDDING_TWIN)
    if missing:
        return f"lacks {name_some(missing)}, which {base.directory} has: the engine would keep the old values"
    reshaped = {name for name in expected.keys() & found.keys() if expected[name][1] != found[name][1]}
    if reshaped:
        return f"has {name_some(reshaped)} in another shape than {base.directory}"
    return None
