"""Many hosts on one share: a daemon for each, with a LOCAL of its own, and one directory of acks for all of them.

They are processes of this machine. Every second one sees the share through a mount that cannot be written, where this
machine lets a test mount; the others could write, and the share's own times prove that they do not. MANY_DAEMONS
says how many there are.
"""

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from tests import toolkit
from tests.host import Host
from tests.soak_processes import WatchProcess

DAEMONS = int(os.environ.get("MANY_DAEMONS", "32"))
# Far more than it ever takes: all of them start on the same few cores.
ALL_HOLD_S = 300
# So many of them are told to end together.
AT_ONCE = 8
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
# What happens to a name, and not what is only read.
WRITING = frozenset(("created", "modified", "moved", "deleted", "closed"))

Stats = dict[str, tuple[int, ...]]


def stats_of(directory: Path) -> Stats:
    """All that the kernel knows of a tree but the times of reading. A name that comes or goes changes its directory."""
    found: Stats = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        figures = path.lstat()
        found[str(path)] = (
            figures.st_ino, figures.st_mode, figures.st_nlink, figures.st_uid, figures.st_gid, figures.st_size,
            figures.st_mtime_ns, figures.st_ctime_ns,
        )  # fmt: skip
    return found


class Names(FileSystemEventHandler):
    """Every name below a directory to which something happened."""

    def __init__(self) -> None:
        self.touched: set[str] = set()

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type in WRITING:
            self.touched.update(os.fsdecode(path) for path in (event.src_path, event.dest_path) if path)


@contextmanager
def touched_names(directory: Path) -> Iterator[Names]:
    names = Names()
    observer = Observer()
    observer.schedule(names, str(directory), recursive=True)
    observer.start()
    try:
        yield names
    finally:
        observer.stop()
        observer.join()


@pytest.fixture(scope="module")
def may_mount() -> bool:
    """Whether this machine lets us mount in a namespace of our own: nothing of it is seen outside."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    tried = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(Path(__file__).parent), "true"]
    return subprocess.run(tried, capture_output=True).returncode == 0


@contextmanager
def daemons(host: Host, share: Path, count: int, *, read_only: bool) -> Iterator[list[WatchProcess]]:
    """With LOCALs `local-0`, `local-1` and so on. None outlives the block."""
    started = []
    try:
        for number in range(count):
            wrapper = ("unshare", "--mount", "sh", "-c", READ_ONLY, share) if read_only and number % 2 else ()
            options: list[str | Path] = ["--shared", share, "--base", host.base, "--ack-dir", host.root / "acks"]
            options += ["--local", host.root / f"local-{number}", "--threads", "1"]
            daemon = WatchProcess(options, host.root / f"daemon-{number}.log", wrapper)
            started.append(daemon)
            daemon.start()
        yield started
    finally:
        for daemon in started:
            daemon.end()


def expect_all_hold(host: Host, share: Path, daemons: list[WatchProcess]) -> None:
    """By the records of the daemons alone, as a trainer sees it; then by the bytes."""
    version = max(host.models)
    result = toolkit.vime(
        "wait", "--ack-dir", host.root / "acks", "--version", str(version), "--hosts", str(len(daemons)),
        "--shared", share, "--timeout", str(ALL_HOLD_S),
    )  # fmt: skip
    for daemon in daemons:
        daemon.check_alive()
    assert result.code == 0, result.stderr
    assert {entry["version"] for entry in result.document["hosts"]} == {version}
    assert len({entry["local"] for entry in result.document["hosts"]}) == len(daemons)
    assert len({entry["lineage"] for entry in result.document["hosts"]}) == 1
    for number in range(len(daemons)):
        host.expect_local(version, host.root / f"local-{number}")


def test_all_reach_each_version_and_none_writes_to_the_share(tmp_path: Path, may_mount: bool) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(3, 4, 32))
    share = tmp_path / "share"  # versions are made elsewhere: no name of a publisher's own temporary files is seen here
    share.mkdir()
    with touched_names(share) as names, daemons(host, share, DAEMONS, read_only=may_mount) as running:
        for publications in (("xor",), ("overwrite", "xor"), ("full",), ("xor", "xor", "overwrite")):
            for encoding in publications:
                made = host.publish_full() if encoding == "full" else host.publish(encoding=encoding)
                made.rename(share / made.name)
            before = stats_of(share)
            expect_all_hold(host, share, running)
            assert stats_of(share) == before
        # Not all at once: an interpreter that ends takes a tenth of a second of a core.
        for first in range(0, DAEMONS, AT_ONCE):
            for daemon in running[first : first + AT_ONCE]:
                daemon.ask_to_end()
            for daemon in running[first : first + AT_ONCE]:
                daemon.expect_end(f"the daemon of {daemon.log.name}")
        assert stats_of(share) == before
    assert names.touched >= {str(directory) for directory in share.iterdir()}, "the share was not watched"
    assert names.touched <= set(before), sorted(names.touched - set(before))
    for log in sorted(tmp_path.glob("daemon-*.log")):
        assert "error" not in log.read_text(encoding="utf-8"), log.read_text(encoding="utf-8")
    assert [path.suffix for path in (tmp_path / "acks").iterdir()] == [".json"] * DAEMONS


def test_a_name_that_comes_and_goes_is_seen(tmp_path: Path) -> None:
    """What the proof above stands on: a temporary file leaves its mark in the directory's times, and an event."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"1")
    threading.Event().wait(0.05)  # times of files are as coarse as the kernel's tick
    with touched_names(tmp_path) as names:
        before = stats_of(tmp_path)
        assert stats_of(tmp_path) == before
        (tmp_path / "inner" / "lock.tmp").touch()
        (tmp_path / "inner" / "lock.tmp").unlink()
        after = stats_of(tmp_path)
        assert after.keys() == before.keys()
        assert [name for name in after if after[name] != before[name]] == [str(tmp_path / "inner")]
        for _ in range(1000):
            if str(tmp_path / "inner" / "lock.tmp") in names.touched:
                break
            threading.Event().wait(0.02)
        assert str(tmp_path / "inner" / "lock.tmp") in names.touched


def test_a_share_that_cannot_be_written_is_really_one(tmp_path: Path, may_mount: bool) -> None:
    if not may_mount:
        pytest.skip("this machine does not let us mount: no daemon sees the share through a read-only mount")
    tried = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(tmp_path), "touch", str(tmp_path / "x")]
    result = subprocess.run(tried, capture_output=True, text=True)
    assert result.returncode != 0 and "Read-only" in result.stderr
    assert not list(tmp_path.iterdir())
