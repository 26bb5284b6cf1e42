"""Every way a pass can end badly, rooted by whose move it is.

A class carries the exit code of the command line contract, a stable `id` for programs, whether trying
again by itself can help (`retryable`) and one thing to do (`hint`). An error's message says what was
tried on what, what was expected and what was found. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

# In a message, and in an error document: a wrong base can concern 100k tensors.
_MAX_NAMED = 8
_MAX_LISTED = 1000


class SyncError(Exception):
    """Root of all expected failures; anything else that escapes is a bug of ours (exit 1).

    `version` is the published version concerned, `tensors` the tensor names concerned.
    """

    code: ClassVar[int] = 1
    id: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    hint: str = "Report this as a bug."

    def __init__(
        self, message: str, *, hint: str | None = None, version: int | None = None, tensors: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.version = version
        self.tensors = tuple(tensors)
        if hint is not None:
            self.hint = hint


# ---- operator: usage


class UsageError(SyncError):
    code, id = 2, "usage"
    hint = "See `vime-sync COMMAND --help`."


# ---- wait


class ShareUnreachable(SyncError):
    """The shared directory cannot be read, or shows nothing although something was published before."""

    code, id, retryable = 10, "share_unreachable", True
    hint = "Check that the shared filesystem is mounted and readable on this host; nothing local was changed."


class VersionMissing(SyncError):
    code, id, retryable = 10, "version_missing", True
    hint = "Wait for the trainer to publish it (`--wait SECONDS`), or ask for another version."


class NotReady(SyncError):
    """A version is there, but not yet complete (FIELD_GUIDE S1-S5)."""

    code, id, retryable = 10, "not_ready", True
    hint = "Wait for the publisher to finish (`--wait SECONDS`)."


class StreamChanged(NotReady):
    """Published files vanished or changed while they were read: look and plan again (FIELD_GUIDE S15)."""

    id = "stream_changed"
    hint = "The publisher is replacing or pruning files; try again."


class SourceNotReady(SyncError):
    """The checkpoint to publish is not whole, or changed while it was read: its trainer still saves it."""

    code, id, retryable = 10, "source_not_ready", True
    hint = "Publish once the trainer has finished saving; nothing was published."


class HostsBehind(SyncError):
    """Not all the hosts that `wait` was asked for hold the version when the time is over."""

    code, id, retryable = 10, "hosts_behind", True
    hint = "Look at `vime-sync status` on the hosts it names; remove the record of a host or LOCAL that is gone."


class HostsDisagree(SyncError):
    """Two hosts hold different weights under one version of one stream."""

    code, id = 13, "hosts_disagree"
    hint = "Run `vime-sync verify` on both hosts and compare their --base: one of them serves other weights."


# ---- publisher


class Malformed(SyncError):
    """Structure, metadata, frames or counts of published files are wrong; known before decoding."""

    code, id = 11, "malformed"
    hint = "Have the publisher write this version again; the local checkpoint is unchanged."


class ChecksumMismatch(SyncError):
    """A delta applied to the right old bytes does not give the published digest."""

    code, id = 12, "checksum_mismatch"
    hint = "Have the publisher write this version again; the local checkpoint is at its old version."


class CorruptPayload(SyncError):
    """A delta's payload does not decode, or decodes to something that cannot be applied."""

    code, id = 12, "corrupt_payload"
    hint = "Have the publisher write this version again; the local checkpoint is at its old version."


class LineageGap(SyncError):
    code, id = 13, "lineage_gap"
    hint = "Publish the missing version again, or a full version above the gap."


class LineageMismatch(SyncError):
    """A delta does not fit: base_version is not N-1, or tensors or sizes the local checkpoint lacks."""

    code, id = 13, "lineage_mismatch"
    hint = "Check that --base is the checkpoint the trainer started from, or publish a full version."


class WrongBase(SyncError):
    """Most tensors do not give their published digests although the local bytes are as they were."""

    code, id = 13, "wrong_base"
    hint = "Point --base at the checkpoint the trainer started from, and pull into a fresh LOCAL."


class NewStream(SyncError):
    """The trainer began anew, and `--on-new-stream fail` says to stop there."""

    code, id = 13, "new_stream"
    hint = "Start again without `--on-new-stream fail` (or with `reseed`) to follow the new stream."


# ---- operator: this host


class LockHeld(SyncError):
    code, id, retryable = 20, "lock_held", True
    hint = "Wait for it (`pull` has `--wait SECONDS`), or stop that process."


class PublisherConflict(SyncError):
    """Another process publishes to the same share."""

    code, id, retryable = 20, "publisher_conflict", True
    hint = "Let one process publish to a share; try again once the other has ended. Nothing was published."


class LocalIOError(SyncError):
    """Disk full, permissions, read-only, or an I/O error on this host's own storage."""

    code, id, retryable = 21, "local_io", True
    hint = "Mend what it says (room, permissions, the filesystem), then run the same command again: it carries on."


class NoRoom(LocalIOError):
    """Known before anything was written: the work does not fit on LOCAL's filesystem."""


class Damaged(SyncError):
    """Local bytes are wrong and nothing in reach can rebuild them."""

    code, id = 22, "damaged"
    hint = "Make a full version or the base reachable, then pull again."


class NotOurs(SyncError):
    code, id = 23, "not_ours"
    hint = "Choose an empty or absent directory, or hand this one over with --adopt."


# ---- engines


class EngineUnreachable(SyncError):
    """Nothing answers there; the engine was not touched."""

    code, id, retryable = 30, "engine_unreachable", True
    hint = "Start the engine or mend its URL: it is brought to the local version when it answers."


class EngineBusy(EngineUnreachable):
    """It takes the connection but does not answer a small question: it is loading, or hangs."""

    id = "engine_busy"
    hint = "Wait until the engine has finished what it does; restart it if it never does."


class EngineRefused(SyncError):
    """It said no. Unless it is an EngineNotReady it may be half loaded: it is not resumed before a good load."""

    code, id = 31, "engine_refused"
    hint = "Read the reason in the engine's log, then restart the engine, or publish a version that it can load."


class EngineNotReady(EngineRefused):
    """It said no before anything was changed in it, and serves what it served."""

    id, retryable = "engine_not_ready", True


class EngineUncertain(SyncError):
    """What it holds now cannot be told. It is not resumed before a good load."""

    code, id = 32, "engine_uncertain"
    hint = "Restart the engine: it is then brought to the local version."


class EngineSilent(EngineUncertain):
    """No answer to a load, in time or at all: it may still be at it, so nothing is sent on top (FIELD_GUIDE E9)."""

    id = "engine_silent"


class EngineOutOfStep(EngineUncertain):
    """Its ranks answer another call than the one that was made (FIELD_GUIDE E11): no later answer can be believed."""

    id = "engine_out_of_step"


ENGINE_ERRORS = {
    kind.id: kind
    for kind in (
        EngineUnreachable,
        EngineBusy,
        EngineRefused,
        EngineNotReady,
        EngineUncertain,
        EngineSilent,
        EngineOutOfStep,
    )
}


# ---- ours


class DemoFailed(SyncError):
    """The demo found something else than it should."""

    id = "demo_failed"
    hint = "Look at what it printed, run it once more with --keep-files, and report this as a bug."


# ---- nobody


class Interrupted(SyncError):
    """A signal asked for a stop; raised at a safe point, the next run carries on from there."""

    id, retryable = "interrupted", True
    hint = "Run the same command again: it carries on from where it stopped."

    def __init__(self, signal_number: int, signal_name: str) -> None:
        super().__init__(f"stopped by {signal_name} at a safe point")
        self.signal_number = signal_number


def name_some(names: Iterable[str]) -> str:
    """The first few of many names for a message, and how many more there are."""
    listed = sorted(names)
    shown = ", ".join(repr(name) for name in listed[:_MAX_NAMED])
    more = len(listed) - _MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def exit_code(error: SyncError) -> int:
    """The process exit status for an error: 128+n when a signal ended the run."""
    return 128 + error.signal_number if isinstance(error, Interrupted) else error.code


def to_document(error: SyncError) -> dict[str, object]:
    """The `vime-sync/error/1` document of the command line contract."""
    return {
        "schema": "vime-sync/error/1",
        "code": exit_code(error),
        "id": error.id,
        "message": error.message,
        "hint": error.hint,
        "retryable": error.retryable,
        "version": error.version,
        "tensors": sorted(error.tensors)[:_MAX_LISTED],
    }
