"""`pull --wait`: for a version that is not ready, that is missing, and for the share; and when it is over."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, expect_error


def _on_first_sleep(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """The world changes while the pull sleeps; nothing here sleeps for real."""
    acted: list[object] = []

    def sleep(seconds: float) -> None:
        if not acted:
            acted.append(act())

    monkeypatch.setattr(time, "sleep", sleep)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host.create(tmp_path)
    host.publish()
    host.publish(encoding="overwrite")
    return host


def test_it_waits_for_an_index_that_is_still_to_come(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    index = toolkit.version_path(host.shared, 2) / toolkit.INDEX_NAME
    away = index.rename(host.root / "index")
    expect_error(host.pull(version=2), 10, "not_ready")
    _on_first_sleep(monkeypatch, lambda: away.rename(index))
    result = host.pull("--wait", "60", version=2)
    assert (result.code, result.document["version"]) == (0, 2), result.stderr
    host.expect_local(2)


def test_it_waits_for_a_version_that_is_not_there_yet(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_error(host.pull(version=3), 10, "version_missing")
    _on_first_sleep(monkeypatch, host.publish)
    result = host.pull("--wait", "60", version=3)
    assert (result.code, result.document["version"]) == (0, 3), result.stderr
    host.expect_local(3)


def test_it_waits_for_the_share_to_be_mounted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    away = host.shared.rename(host.root / "away")
    _on_first_sleep(monkeypatch, lambda: away.rename(host.shared))
    assert host.pull("--wait", "60").code == 0
    host.expect_local(2)


def test_what_waiting_cannot_change_is_refused_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit.rewrite_index(
        toolkit.version_path(host.shared, 2), lambda index: index["metadata"].update(version="000009")
    )

    def sleep(seconds: float) -> None:
        raise AssertionError("nothing to wait for")

    monkeypatch.setattr(time, "sleep", sleep)
    expect_error(host.pull("--wait", "60", version=2), 11, "malformed")


def test_when_the_time_is_over_the_reason_is_the_one_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    expect_error(host.pull("--wait", "3", version=9), 10, "version_missing")
    assert clock[0] >= 3
