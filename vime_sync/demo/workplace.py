"""The demo's directory: made for it, or a given empty one; what the demo put there is gone afterwards."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import UsageError

# What is kept with --keep-files, and all that the demo ever makes.
KEPT = ("base", "share", "local")
_NAMES = (*KEPT, "trainer", "download", "vllm")


@contextmanager
def workplace(given: Path | None, *, keep: bool) -> Iterator[Path]:
    """An absolute path. Raises UsageError for a given directory that holds something already."""
    root = (
        given
        if given is not None
        else Path(os.environ.get("TMPDIR") or "/tmp") / f"vime-sync-demo-{uuid.uuid4().hex[:12]}"
    )
    root = Path(os.path.realpath(root))
    was_there = root.exists()
    if was_there and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(
            f"--directory {root} is not empty, expected an absent or empty directory",
            hint="Give another one, or leave --directory out.",
        )
    fsio.make_directory(root)
    is_well = False
    try:
        fsio.make_directory(root / "share")
        yield root
        is_well = True
    finally:
        with nullcontext() if is_well else suppress(OSError):  # a failure of the demo is not hidden by one of this
            for name in _NAMES:
                if not (keep and name in KEPT):
                    fsio.remove_tree(root / name)
            if not keep and not was_there:
                fsio.remove_directory_if_empty(root)
