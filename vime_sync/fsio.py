"""Every file operation that must last: the only module that writes, renames, syncs, truncates or unlinks.

Guarantees, and where they end: a write is complete or raises; `write_atomic` leaves the old or the new content
under its name whatever happens, and with `durable` also after power loss. Contents written by `File.write_at`
last only after `File.sync`. Names last only after `sync_directory`. Every failure is an OSError that carries
the path. `observer` sees each operation before it is done; fault tests hook in there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat as stat_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from vime_sync.model import FileStat

Observer = Callable[[str, Path], None]


def _ignore(operation: str, path: Path) -> None:
    """The observer of ordinary runs."""


observer: Observer = _ignore


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give an OSError of a descriptor call the path that it lacks."""
    try:
        yield
    except OSError as problem:
        if problem.filename is None:
            problem.filename = str(path)
        raise


def to_stat(result: os.stat_result) -> FileStat:
    return FileStat(result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino)


def stat(path: Path) -> FileStat:
    """Follows links. Raises FileNotFoundError."""
    return to_stat(path.stat())


class File:
    """A regular file opened for positioned I/O; safe to share between threads. Never follows a link to write."""

    def __init__(self, path: Path, *, write: bool = False, create: bool = False) -> None:
        self.path = path
        flags = os.O_CLOEXEC | (os.O_RDWR | os.O_NOFOLLOW if write else os.O_RDONLY)
        if create:
            observer("create", path)
            flags |= os.O_CREAT | os.O_TRUNC
        # O_NONBLOCK: opening a pipe that somebody put there must not hang.
        self._fd = os.open(path, flags | os.O_NONBLOCK, 0o644)
        if not stat_module.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise OSError(errno.EINVAL, "not a regular file", str(path))

    def __enter__(self) -> File:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def stat(self) -> FileStat:
        with _named(self.path):
            return to_stat(os.fstat(self._fd))

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill the whole view. Raises EOFError where the file ends before."""
        left = len(view)
        while left:
            try:
                got = os.preadv(self._fd, (view,), offset)
            except OSError as problem:
                raise self._naming(problem) from None
            if got == left:
                return
            if not got:
                raise EOFError(f"{self.path} ends at byte {offset}, {left} bytes early")
            offset += got
            left -= got
            view = view[got:]

    def read_at(self, size_bytes: int, offset: int) -> bytes:
        """Exactly `size_bytes`. Raises EOFError where the file ends before."""
        piece = self.read_up_to(size_bytes, offset)
        if len(piece) != size_bytes:
            raise EOFError(f"{self.path} ends at byte {offset + len(piece)}, {size_bytes - len(piece)} bytes early")
        return piece

    def read_up_to(self, size_bytes: int, offset: int) -> bytes:
        """At most `size_bytes`; fewer only at the end of the file. One read may give less before it (FUSE, NFS)."""
        pieces: list[bytes] = []
        while size_bytes:
            try:
                piece = os.pread(self._fd, size_bytes, offset)
            except OSError as problem:
                raise self._naming(problem) from None
            if len(piece) == size_bytes and not pieces:
                return piece
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            size_bytes -= len(piece)
        return b"".join(pieces)

    def write_at(self, view: memoryview, offset: int) -> None:
        observer("write", self.path)
        left = len(view)
        while left:
            try:
                put = os.pwrite(self._fd, view, offset)
            except OSError as problem:
                raise self._naming(problem) from None
            if put == left:
                return
            offset += put
            left -= put
            view = view[put:]

    def _naming(self, problem: OSError) -> OSError:
        """The OSError with the path that it lacks; on the hot way a context manager costs more than the call."""
        if problem.filename is None:
            problem.filename = str(self.path)
        return problem

    def truncate(self, size_bytes: int) -> None:
        observer("truncate", self.path)
        with _named(self.path):
            os.ftruncate(self._fd, size_bytes)

    def sync(self) -> None:
        observer("sync", self.path)
        with _named(self.path):
            os.fsync(self._fd)

    def try_lock(self) -> bool:
        """Take `flock(LOCK_EX)`, until the file is closed; False while another process has it."""
        with _named(self.path):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory last. Only EINVAL is forgiven: a filesystem without such a notion."""
    observer("sync_directory", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise OSError(problem.errno, problem.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def sync_names(path: Path) -> None:
    """As `sync_directory`, of a directory that may belong to somebody else: one that may not be listed is let be."""
    with suppress(PermissionError):
        sync_directory(path)


def forget_cache(path: Path) -> None:
    """Drop the clean pages of a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    with File(path) as file:
        file.sync()


def write_atomic(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace `path` by `data`; with `durable` content and name last when this returns.

    The temp name is always the same, so a kill leaves at most one, and the next write takes it over.
    """
    temporary = path.with_name(path.name + ".new")
    with File(temporary, write=True, create=True) as file:
        file.write_at(memoryview(data), 0)
        if durable:
            file.sync()
    rename(temporary, path)
    if durable:
        sync_directory(path.parent)


def rename(source: Path, target: Path) -> None:
    observer("rename", target)
    source.replace(target)


def unlink(path: Path) -> bool:
    """Remove a name; False if it was not there."""
    observer("unlink", path)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def make_directory(path: Path, *, durable: bool = False) -> None:
    """Make a directory, and those above it; with `durable` each new name lasts when this returns."""
    if not path.is_dir():
        observer("make_directory", path)
        for folder in (*reversed(path.parents), path):  # outermost first: Path.mkdir(parents=True) recurses
            if not folder.is_dir():
                try:
                    folder.mkdir(exist_ok=True)
                except FileExistsError:
                    raise NotADirectoryError(errno.ENOTDIR, f"{folder} is a file", str(path)) from None
                if durable:
                    sync_names(folder.parent)


def remove_directory_if_empty(path: Path) -> None:
    observer("remove_directory", path)
    try:
        path.rmdir()
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def remove_tree(path: Path) -> None:
    """Remove a directory of ours with all in it; absent is fine."""
    observer("remove_tree", path)
    if path.is_symlink():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return


def walk(directory: Path, *, follow_links: bool, skip: frozenset[str]) -> Iterator[tuple[str, Path]]:
    """Everything below `directory` that is no directory, by relative name, sorted; `skip` names are not entered.

    With `follow_links` linked directories are entered too, none twice. Depth costs no stack. Raises OSError.
    """
    entered: set[tuple[int, int]] = set()
    waiting = [("", directory)]
    while waiting:
        prefix, folder = waiting.pop()
        figures = folder.stat()
        if (figures.st_dev, figures.st_ino) in entered:  # a link back up
            continue
        entered.add((figures.st_dev, figures.st_ino))
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name, reverse=True)
        for entry in listed:
            if entry.name in skip:
                continue
            path = folder / entry.name
            if _is_directory(entry, follow_links=follow_links):
                waiting.append((f"{prefix}{entry.name}/", path))
            else:
                yield f"{prefix}{entry.name}", path


def _is_directory(entry: os.DirEntry[str], *, follow_links: bool) -> bool:
    try:
        return entry.is_dir(follow_symlinks=follow_links)
    except OSError:  # a link to itself
        return False


def free_bytes(directory: Path) -> int:
    """What an unprivileged writer may still allocate on the filesystem that holds `directory`."""
    figures = os.statvfs(directory)
    return figures.f_bavail * figures.f_frsize
