"""Taking versions out of a stream, the oldest first, so that a kill at any point leaves no half version.

A version is renamed to a name that no receiver knows, that name is made to last, and only then its files go. What a
kill leaves under such a name the next prune removes; a name that is taken, by whatever, is passed over. Before and
after the rename the files must be those that were looked at: a trainer that begins anew writes other versions under
the same names.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import LocalIOError, StreamChanged
from vime_sync.pruning.look import PRUNED_PREFIX, Version, measure

_GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
# A reader on this host has a file open, and the network filesystem keeps it under another name until it is closed.
_IN_USE = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY)


def remove(
    versions: Iterable[Version], anchor: Version, warn: Callable[[str], None], check_stop: Callable[[], None]
) -> None:
    """Remove the versions below the anchor that were decided on; one that is gone already is fine.

    Raises StreamChanged where something was published anew meanwhile, LocalIOError, and what `check_stop` raises. What
    was removed until then needs no other step.
    """
    for version in sorted(versions, key=lambda version: version.number):
        check_stop()
        _check_same(anchor, anchor.path)
        _remove(version, warn)


def finish(leftovers: Iterable[Path], warn: Callable[[str], None]) -> None:
    """Remove what an earlier prune had taken out of the stream. Raises LocalIOError."""
    for path in leftovers:
        _remove_tree(path, warn)


def _remove(version: Version, warn: Callable[[str], None]) -> None:
    path = version.path
    aside = _free_name(path)
    try:
        if _fingerprint(path) is None:
            return
        _check_same(version, path)
        fsio.rename(path, aside)
        if _fingerprint(aside) != version.fingerprint:
            fsio.rename(aside, path)
            raise _changed(version)
        fsio.sync_directory(path.parent)
    except OSError as problem:
        raise LocalIOError(
            f"removing version {version.number} at {path}: {problem.strerror}",
            hint="Let this user rename and remove in --shared, then run the same command again.",
            version=version.number,
        ) from problem
    _remove_tree(aside, warn)


def _free_name(path: Path) -> Path:
    """Where it can be put aside: not over a user's file, nor into what is left of an earlier version of its number."""
    plain = f"{PRUNED_PREFIX}{path.name}"
    names = itertools.chain([plain], (f"{plain}-{count}" for count in itertools.count(2)))
    return next(place for place in map(path.with_name, names) if not os.path.lexists(place))


def _remove_tree(path: Path, warn: Callable[[str], None]) -> None:
    try:
        fsio.remove_tree(path)
    except OSError as problem:
        if problem.errno not in _IN_USE:
            raise LocalIOError(
                f"removing {path}: {problem.strerror}",
                hint="Let this user remove in --shared, then run the same command again.",
            ) from problem
        warn(f"{path} is still in use ({problem.strerror}); the next prune removes it")


def _check_same(version: Version, path: Path) -> None:
    try:
        if _fingerprint(path) == version.fingerprint:
            return
    except OSError:
        pass
    raise _changed(version)


def _fingerprint(path: Path) -> str | None:
    """None where it is gone."""
    try:
        return measure(path)[0]
    except OSError as problem:
        if problem.errno in _GONE:
            return None
        raise


def _changed(version: Version) -> StreamChanged:
    return StreamChanged(
        f"version {version.number} at {version.path} changed while older versions were removed", version=version.number
    )
