"""Making versions durable behind the loop: when a version may be called durable, and what follows from a failure."""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import SAFETY_S, RunningDaemon, running, small_host, state_of
from tests.host import Host, flip_byte
from vime_sync import fsio
from vime_sync.local.lock import hold
from vime_sync.local.paths import local_paths
from vime_sync.local.state import DISTRUSTED_BOOT


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


class Gate:
    """Holds the first sync of a shard until it is opened; then that sync fails, if a number is given."""

    def __init__(self, host: Host, fails: int | None = None) -> None:
        self._host = host
        self._fails = fails
        self.reached, self.opened = threading.Event(), threading.Event()
        self.synced: list[str] = []

    def __call__(self, operation: str, path: Path) -> None:
        if operation != "sync" or path.parent != self._host.local or path.suffix != ".safetensors":
            return
        if threading.current_thread().name != "sync":
            return
        if not self.reached.is_set():
            self.reached.set()
            assert self.opened.wait(SAFETY_S)
            if self._fails is not None:
                raise OSError(self._fails, "injected", str(path))
        self.synced.append(path.name)


@contextmanager
def gated(host: Host, monkeypatch: pytest.MonkeyPatch, fails: int | None = None) -> Iterator[Gate]:
    gate = Gate(host, fails)
    monkeypatch.setattr(fsio, "observer", gate)
    try:
        yield gate
    finally:
        gate.opened.set()


def wait_durable(daemon: RunningDaemon, host: Host, version: int) -> None:
    def durable() -> bool:
        document = daemon.teller.board.snapshot.document
        return document.get("local_version") == version and bool(document.get("durable"))

    daemon.wait_for(durable, f"version {version} durable")
    state = state_of(host)
    assert (state["version"], state["durable"]) == (version, True)


def test_a_version_is_served_before_it_is_durable_and_durable_soon(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.publish()
    with gated(host, monkeypatch) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        assert gate.reached.wait(SAFETY_S)
        daemon.wait_for_looks(3)
        assert state_of(host)["durable"] is False
        snapshot = daemon.teller.board.snapshot
        assert snapshot.is_ready and snapshot.document["durable"] is False
        gate.opened.set()
        wait_durable(daemon, host, 1)


def test_durable_means_that_every_file_was_synced(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()

    def note(operation: str, path: Path) -> None:
        if operation == "sync":
            synced.add(path.name)

    monkeypatch.setattr(fsio, "observer", note)
    host.publish()
    with running(host) as daemon:
        wait_durable(daemon, host, 1)
    assert synced >= {path.name for path in host.local.iterdir() if path.is_file()}


def test_with_durable_nothing_is_left_for_behind(host: Host) -> None:
    host.publish()
    with running(host, durable=True) as daemon:
        daemon.wait_for_version(1)
        assert state_of(host)["durable"] is True


def test_what_was_committed_meanwhile_is_not_called_durable_by_an_older_sync(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is synced in turn, without waiting for anything to happen."""
    host.publish()
    with gated(host, monkeypatch) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        assert gate.reached.wait(SAFETY_S)
        host.publish()
        daemon.wait_for_version(2)
        daemon.wait_for_looks(2)
        assert state_of(host)["durable"] is False
        before = len(gate.synced)
        gate.opened.set()
        wait_durable(daemon, host, 2)
        assert len(gate.synced) >= before + 4, "the two shards of version 1, and then those of version 2"


def test_a_sync_whose_files_a_newer_version_removed_is_no_trouble(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full version with other shards came while the old ones were being synced: that they are gone is right."""
    host.publish()
    with gated(host, monkeypatch) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        assert gate.reached.wait(SAFETY_S)
        host.publish_full(shards=3)
        daemon.wait_for_version(2)
        gate.opened.set()
        wait_durable(daemon, host, 2)
        assert daemon.ending is None
    host.expect_local(2)


def test_a_sync_that_ends_while_another_holds_the_lock_is_made_up_for(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.publish()
    with gated(host, monkeypatch) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        assert gate.reached.wait(SAFETY_S)
        with hold(local_paths(host.local), wait_s=SAFETY_S, check_stop=lambda: None):
            gate.opened.set()
            daemon.wait_for_looks(5)
            assert state_of(host)["durable"] is False
        wait_durable(daemon, host, 1)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_h06_a_sync_that_fails_ends_it_and_nothing_is_believed(
    host: Host, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel tells of a lost write once: what is on the disk now is not known."""
    host.publish()
    with gated(host, monkeypatch, fails=number) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        gate.opened.set()
        problem = daemon.ended()
        assert problem.code == 21 and "injected" in problem.message
        state = state_of(host)
        assert (state["boot_id"], state["durable"]) == (DISTRUSTED_BOOT, False)
    status = toolkit.vime("status", "--local", host.local)
    assert status.document["last_error"] is not None and status.document["last_error"]["code"] == 21


def test_after_a_failed_sync_the_next_start_hashes_and_mends(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.publish()
    with gated(host, monkeypatch, fails=errno.EIO) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        gate.opened.set()
        daemon.ended()
    monkeypatch.setattr(fsio, "observer", lambda operation, path: None)
    flip_byte(host.local, "lm_head.weight")  # the write that was lost
    with running(host) as daemon:
        daemon.wait_for(lambda: any(item.tensors_repaired for item in daemon.reports), "a repair")
        wait_durable(daemon, host, 1)
    host.expect_local(1)


def test_a_failed_sync_is_not_forgotten_because_another_holds_the_lock(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync would succeed, and prove nothing."""
    host.publish()
    with gated(host, monkeypatch, fails=errno.EIO) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        assert gate.reached.wait(SAFETY_S)
        with hold(local_paths(host.local), wait_s=SAFETY_S, check_stop=lambda: None):
            gate.opened.set()
            daemon.wait_for_looks(10)
        host.publish()  # something happens: without the failure it would be a version like any other
        assert daemon.ended().code == 21
    assert state_of(host)["durable"] is False
    assert state_of(host)["boot_id"] == DISTRUSTED_BOOT


def test_a_stop_does_not_wait_for_a_slow_sync(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may take minutes; the state says that it is not durable."""
    host.publish()
    with gated(host, monkeypatch) as gate:
        with running(host) as daemon:
            daemon.wait_for_version(1)
            assert gate.reached.wait(SAFETY_S)
            daemon.ask_to_stop()
            daemon.join()
            assert not gate.opened.is_set()
        assert state_of(host)["durable"] is False


@pytest.mark.parametrize("operation", ["write", "create", "rename"])
def test_h06_a_full_disk_during_a_pass_ends_it_with_21(
    host: Host, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """And LOCAL is healed at the next start."""
    host.publish()
    with running(host) as daemon:
        wait_durable(daemon, host, 1)

        def full(done: str, path: Path) -> None:
            if done == operation and path.is_relative_to(host.local) and path.name != "holder.json.new":
                raise OSError(errno.ENOSPC, "injected", str(path))

        monkeypatch.setattr(fsio, "observer", full)
        host.publish()
        assert daemon.ended().code == 21
    monkeypatch.setattr(fsio, "observer", lambda done, path: None)
    with running(host) as daemon:
        daemon.wait_for_version(2)
    host.expect_local(2)


def test_a_file_that_is_gone_and_cannot_be_had_now_makes_no_busy_loop(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sync cannot be whole, and a pass cannot heal while the share is away: both wait, and heal when it is back."""
    host.publish()
    with gated(host, monkeypatch) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        assert gate.reached.wait(SAFETY_S)
        away = host.root / "away"
        host.shared.rename(away)
        (host.local / "model-00002-of-00002.safetensors").unlink()
        daemon.wait_for_error("share_unreachable")
        gate.opened.set()
        daemon.wait_for_turns(60)
        assert len(daemon.errors) < 8, "it does not wait between its tries"
        away.rename(host.shared)
        wait_durable(daemon, host, 1)
    host.expect_local(1)


def test_a_config_file_that_is_gone_is_healed_and_synced(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.publish()
    with gated(host, monkeypatch) as gate, running(host) as daemon:
        daemon.wait_for_version(1)
        assert gate.reached.wait(SAFETY_S)
        (host.local / "tokenizer.json").unlink()
        gate.opened.set()
        wait_durable(daemon, host, 1)
        daemon.wait_for(lambda: (host.local / "tokenizer.json").is_file(), "the file")
