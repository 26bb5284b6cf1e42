"""Errors where the operating system gives them: the n-th call that reads or writes below a directory goes wrong.

`FaultyCalls` stands between this process and `os` while it is entered. Reads are opens, stats, listings and positioned
reads; writes are everything that changes the disk. It counts what it sees, so a first run tells how many n there are.
What a call says that goes wrong is a `Fault`: an error number, or fewer bytes than asked for.
"""

import enum
import errno
import io
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock


class Fault(enum.Enum):
    """The value is the error number, or a word for what comes back instead of all bytes."""

    ENOSPC = errno.ENOSPC
    EIO = errno.EIO
    EACCES = errno.EACCES
    EROFS = errno.EROFS
    ESTALE = errno.ESTALE
    SHORT_READ = "some bytes, the rest when asked again"
    ENDED = "nothing: the file ends here"
    SHORT_WRITE = "some bytes taken, the rest when asked again"
    FULL_WRITE = "some bytes taken, then the disk is full"


READ_FAULTS = (Fault.EIO, Fault.ESTALE, Fault.EACCES, Fault.SHORT_READ, Fault.ENDED)
WRITE_FAULTS = (
    Fault.ENOSPC, Fault.EIO, Fault.EROFS, Fault.EACCES, Fault.ESTALE, Fault.SHORT_WRITE, Fault.FULL_WRITE,
)  # fmt: skip
_OF_READS_ONLY = (Fault.SHORT_READ, Fault.ENDED)
_OF_WRITES_ONLY = (Fault.SHORT_WRITE, Fault.FULL_WRITE)
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NAMES_CHANGED = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir")


@dataclass(frozen=True)
class Struck:
    """The first call that went wrong."""

    call: str
    path: Path


class FaultyCalls:
    """Use as a context manager. `at` is the n-th call of the kind (0 is the first); None only counts."""

    def __init__(
        self, root: Path, *, writes: bool, at: int | None = None, fault: Fault = Fault.EIO, for_good: bool = False
    ) -> None:
        self._prefix = str(root) + os.sep
        self._writes, self._at, self._fault, self._for_good = writes, at, fault, for_good
        self._guard = threading.Lock()
        self._stack = ExitStack()
        self.seen = 0
        self.struck: Struck | None = None

    def __enter__(self) -> "FaultyCalls":
        for name, replacement in {
            "open": self._opening(os.open),
            "preadv": self._reading_into(os.preadv),
            "pread": self._reading(os.pread),
            "pwrite": self._writing(os.pwrite),
            **{name: self._of_descriptor(getattr(os, name), name, writes=True) for name in ("fsync", "ftruncate")},
            "fstat": self._of_descriptor(os.fstat, "fstat", writes=False),
            **{name: self._of_path(getattr(os, name), name, writes=True) for name in _NAMES_CHANGED},
            **{
                name: self._of_path(getattr(os, name), name, writes=False)
                for name in ("stat", "lstat", "listdir", "scandir", "statvfs")
            },
        }.items():
            self._stack.enter_context(mock.patch.object(os, name, replacement))
        self._stack.enter_context(mock.patch.object(io, "open", self._opening_by_name(io.open)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _strikes(self, call: str, path: object, *, writes: bool) -> bool:
        """Counts the call, and says whether it is one that goes wrong."""
        if not isinstance(path, str | os.PathLike) or writes is not self._writes:
            return False
        name = os.fspath(path)
        if not isinstance(name, str) or not name.startswith(self._prefix):
            return False
        with self._guard:
            here, self.seen = self.seen, self.seen + 1
            if self._at is None or here < self._at or (here > self._at and not self._for_good):
                return False
            self.struck = self.struck or Struck(call, Path(name))
            return True

    def _raise(self, path: object) -> None:
        """What is no error of this call stays without effect."""
        fault = self._fault
        if fault is Fault.FULL_WRITE:
            fault = Fault.ENOSPC
        if isinstance(fault.value, int):
            raise OSError(fault.value, os.strerror(fault.value), str(path))

    def _opening(self, original: Callable[..., int]) -> Callable[..., int]:
        def opening(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if self._strikes("open", path, writes=bool(flags & _WRITING_FLAGS)):
                self._raise(path)
            return original(path, flags, *arguments, **options)

        return opening

    def _opening_by_name(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def opening(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if self._strikes("open", path, writes=mode.strip("bt") != "r"):
                self._raise(path)
            return original(path, mode, *arguments, **options)

        return opening

    def _of_path(self, original: Callable[..., Any], name: str, *, writes: bool) -> Callable[..., Any]:
        def calling(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if self._strikes(name, path, writes=writes):
                self._raise(path)
            return original(path, *arguments, **options)

        return calling

    def _of_descriptor(self, original: Callable[..., Any], name: str, *, writes: bool) -> Callable[..., Any]:
        def calling(descriptor: int, *arguments: Any) -> Any:
            path = _path_of(descriptor)
            if self._strikes(name, path, writes=writes):
                self._raise(path)
            return original(descriptor, *arguments)

        return calling

    def _reading_into(self, original: Callable[..., int]) -> Callable[..., int]:
        def reading(descriptor: int, views: list[memoryview], offset: int) -> int:
            path = _path_of(descriptor)
            if self._strikes("preadv", path, writes=False):
                self._raise(path)
                view = views[0]
                return 0 if self._fault is Fault.ENDED else original(descriptor, [view[: -(-len(view) // 2)]], offset)
            return original(descriptor, views, offset)

        return reading

    def _reading(self, original: Callable[..., bytes]) -> Callable[..., bytes]:
        def reading(descriptor: int, size_bytes: int, offset: int) -> bytes:
            path = _path_of(descriptor)
            if self._strikes("pread", path, writes=False):
                self._raise(path)
                whole = original(descriptor, size_bytes, offset)
                return b"" if self._fault is Fault.ENDED else whole[: -(-len(whole) // 2)]
            return original(descriptor, size_bytes, offset)

        return reading

    def _writing(self, original: Callable[..., int]) -> Callable[..., int]:
        """A disk that fills up takes a part of the first write that it cannot take whole."""

        def writing(descriptor: int, view: memoryview, offset: int) -> int:
            path = _path_of(descriptor)
            if self._strikes("pwrite", path, writes=True):
                if self._fault in _OF_WRITES_ONLY and len(view) > 1:
                    put = original(descriptor, view[: len(view) // 2], offset)
                    if self._fault is Fault.SHORT_WRITE:
                        return put
                self._raise(path)
            return original(descriptor, view, offset)

        return writing


def _path_of(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""
