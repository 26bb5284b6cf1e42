"""After a delta failed its proof: which delta it was, and whether the base is to blame. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vime_sync.errors import ChecksumMismatch, SyncError, WrongBase

_SAMPLE = 8
_ENOUGH = 3


def diagnose(
    failure: ChecksumMismatch,
    candidates: Iterable[str],
    first_bad_version: Callable[[str], int | None],
    target: int,
) -> SyncError:
    """The error to report for a tensor whose old bytes were right and whose new ones are not.

    `first_bad_version` replays one tensor version by version and names the first whose digest does not come out
    (None: all do; SyncError: it cannot be told). A bad payload concerns few tensors; when most of a sample fail, the
    bytes that the deltas were made for are others than ours.
    """
    (name,) = failure.tensors
    tested, failed = 1, [name]
    for candidate in candidates:
        if tested > _SAMPLE:
            break
        if candidate == name:
            continue
        try:
            bad = first_bad_version(candidate)
        except SyncError:
            continue
        tested += 1
        if bad is not None:
            failed.append(candidate)
    if tested >= _ENOUGH and len(failed) * 2 > tested:
        return WrongBase(
            f"version {target}: {len(failed)} of {tested} tensors tried do not come to their published digests, "
            "although the bytes here are as they were when they were proven: the deltas were made for another base",
            version=target,
            tensors=failed,
        )
    try:
        version = first_bad_version(name)
    except SyncError:
        version = None
    if version is None or version == failure.version:
        return failure
    return ChecksumMismatch(
        f"version {version}: tensor {name!r} does not come to its published digest when the versions up to {target} "
        "are replayed one by one; the bytes before were right",
        version=version,
        tensors=(name,),
    )
