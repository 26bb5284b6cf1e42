"""Hints: what wakes a loop that would sleep for an hour, and what does not."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests import toolkit
from tests.daemon_story import eventually, running
from tests.host import Host
from tests.watch_story import watching


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path, model=toolkit.make_model(seed=3, kib=16))


def test_a_rename_on_a_local_filesystem_wakes_it_at_once(host: Host) -> None:
    """With a poll every hour, only the hint can be why it comes."""
    with watching(host, poll_interval_s=3600) as watch:
        watch.wait_for_version(0, durable=True)
        for version in range(1, 4):
            host.publish()
            watch.wait_for_version(version)
        assert watch.end() == 0


def test_our_own_reading_does_not_wake_us(host: Host) -> None:
    host.publish()
    with watching(host, poll_interval_s=3600) as watch:
        watch.wait_for_version(1, durable=True)
        host.publish()
        watch.wait_for_version(2, durable=True)
        eventually(lambda: watch.get("/healthz")[0] == 200, "ready")
        before = watch.metrics()
        for path in host.shared.rglob("*"):
            if path.is_file():
                path.read_bytes()
        os.utime(toolkit.version_path(host.shared, 1))
        # USR1 is answered by the loop at its next turn: all hints that came before it are then through.
        watch.send(signal.SIGUSR1)
        watch.wait_for_line("at rest")
        after = watch.metrics()
        assert after["vime_sync_polls_total"] <= before["vime_sync_polls_total"] + 3
        assert after["vime_sync_passes_total{result=already_current}"] <= (
            before["vime_sync_passes_total{result=already_current}"] + 1
        )
        assert watch.end() == 0


def test_a_share_that_appears_later_is_followed_with_hints(host: Host) -> None:
    away = host.root / "away"
    host.shared.rename(away)
    with watching(host, poll_interval_s=0.5) as watch:
        watch.wait_for_line("share_unreachable")
        away.rename(host.shared)
        watch.wait_for_version(0)
        host.publish()
        watch.wait_for_version(1)
        assert watch.end() == 0


def test_hints_follow_a_share_that_is_replaced_goes_and_comes_back(host: Host) -> None:
    with running(host, poll_interval_s=3600) as daemon:
        daemon.wait_for_version(0)
        fresh, old = host.root / "fresh", host.root / "old"
        fresh.mkdir()
        host.shared.rename(old)
        fresh.rename(host.shared)
        daemon.wake.poke()
        daemon.wait_for(lambda: len(daemon.looks) > 2, "a look")
        # From here on nobody pokes.
        host.publish()
        daemon.wait_for_version(1)
        away = host.root / "away"
        host.shared.rename(away)
        daemon.wake.poke()
        daemon.wait_for_error("share_unreachable")
        away.rename(host.shared)
        daemon.wake.poke()
        daemon.wait_for(lambda: daemon.messages("passes go well again"), "all well again")
        host.publish()
        daemon.wait_for_version(2)


def test_hints_follow_a_share_that_is_removed_and_made_anew(host: Host) -> None:
    """As a trainer does that begins anew; a filesystem gives the new directory the old one's inode number."""
    with running(host, poll_interval_s=3600) as daemon:
        daemon.wait_for_version(0)
        for round_number in range(1, 6):
            shutil.rmtree(host.shared)
            host.shared.mkdir()
            fresh = toolkit.step(host.models[0], 100 + round_number)
            passes = len(daemon.passes)
            toolkit.publish_delta(host.shared, 1, host.models[0], fresh)
            daemon.wait_for(
                lambda seen=passes: [item for item in daemon.reports[seen:] if item.version == 1],  # type: ignore[misc]
                f"version 1 of stream {round_number}",
            )
