"""Being woken when something happens on the share. A hint only: what is true is looked up (FIELD_GUIDE V7).

Only local filesystems send such events for what other machines do; elsewhere, and where the kernel has no watches
left, polling alone decides.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

# What a publisher does last (a rename, a close after writing), and what begins or removes a version. Not `modified`:
# a shard of many gigabytes being written would never let us sleep.
_WAKING = frozenset(("created", "moved", "closed", "deleted"))
_LOCAL_FILESYSTEMS = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "ramfs", "overlay", "f2fs"))


class Waker(FileSystemEventHandler):
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in _WAKING:
            self._wake()


class Hints:
    """Watches `share` while it can; `follow` is to be called whenever the loop turns."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._observer: object | None = None
        self._watched: tuple[int, int] | None = None

    def follow(self, share: Path | None) -> None:
        """Begin, or begin anew where another directory stands under the name (a fresh mount)."""
        here = _identity(share)
        if here == self._watched:
            return
        self.stop()
        self._watched = here
        if share is None or here is None or filesystem_of(share) not in _LOCAL_FILESYSTEMS:
            return
        observer = Observer()
        observer.daemon = True
        try:
            observer.schedule(Waker(self._wake), str(share), recursive=True)
            observer.start()
        except OSError:  # no watches left: polling finds it
            return
        self._observer = observer

    @property
    def is_watching(self) -> bool:
        return self._observer is not None

    def stop(self) -> None:
        observer, self._observer, self._watched = self._observer, None, None
        if observer is not None:
            observer.stop()  # type: ignore[attr-defined]
            observer.join()  # type: ignore[attr-defined]


def _identity(share: Path | None) -> tuple[int, int] | None:
    try:
        figures = None if share is None else share.stat()
    except OSError:
        return None
    return None if figures is None else (figures.st_dev, figures.st_ino)


def filesystem_of(path: Path) -> str | None:
    """The type of the filesystem that holds `path`, from proc_pid_mountinfo(5): the longest mount point above it."""
    real = os.path.realpath(path)
    best, kind = "", None
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, kinds[0]
    return kind
