"""What the service manager is told, seen by a real datagram socket in its place."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime_sync.daemon.notify import Notifier


class Manager:
    """A service manager's end of the socket."""

    def __init__(self, place: str, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(place)
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        """All that came since the last question. A datagram is there when its sender's call returns."""
        messages: list[str] = []
        try:
            while True:
                messages.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    place = str(tmp_path / "notify")
    manager = Manager(place, place)
    yield manager
    manager.close()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_each_state_is_one_datagram(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    notifier.ready()
    notifier.status("version 7, 2 engines")
    notifier.stopping()
    assert manager.heard() == ["READY=1", "STATUS=version 7, 2 engines", "STOPPING=1"]
    notifier.close()


def test_an_abstract_socket_is_found_too(tmp_path: Path) -> None:
    name = f"vime-sync-test-{os.getpid()}-{tmp_path.name}"
    manager = Manager(f"\0{name}", f"@{name}")
    environ = {"NOTIFY_SOCKET": f"@{name}"}
    notifier = Notifier.from_environment(environ)
    notifier.ready()
    assert manager.heard() == ["READY=1"]
    notifier.close()
    manager.close()


def test_a_reload_says_when_it_began(manager: Manager) -> None:
    """sd_notify(3) wants the monotonic clock, to tell this reload's READY from an older one's."""
    before_usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier = Notifier(manager.address)
    notifier.reloading()
    notifier.ready()
    reloading, ready = manager.heard()
    first, second = reloading.split("\n")
    assert (first, ready) == ("RELOADING=1", "READY=1")
    name, _, usec = second.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before_usec <= int(usec) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.close()


def test_a_status_is_one_line_of_bounded_length_and_said_once(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    notifier.status("applying\nREADY=1\tversion 8")
    notifier.status("applying READY=1 version 8")
    notifier.status("x" * 100_000)
    notifier.status("a tensor \udc80")
    applying, long, odd = manager.heard()
    assert applying == "STATUS=applying READY=1 version 8"
    assert long.startswith("STATUS=xxx") and len(long) < 1000
    assert odd == "STATUS=a tensor ?"
    notifier.close()


def test_the_watchdog_is_pinged_by_progress_and_at_most_four_times_per_timeout(manager: Manager) -> None:
    clock = Clock()
    notifier = Notifier(manager.address, watchdog_timeout_s=100, clock=clock)
    assert manager.heard() == []
    for _ in range(5):  # tensors, one right after the other
        notifier.progress()
    assert manager.heard() == ["WATCHDOG=1"]
    clock.now_s += 24.9
    notifier.progress()
    assert manager.heard() == []
    clock.now_s += 0.1
    notifier.progress()
    assert manager.heard() == ["WATCHDOG=1"]
    notifier.close()


def test_nothing_pings_by_itself(manager: Manager) -> None:
    """A loop that hangs is to be killed: however much time goes by, only a call pings."""
    clock = Clock()
    notifier = Notifier(manager.address, watchdog_timeout_s=100, clock=clock)
    clock.now_s += 1e6
    notifier.ready()
    assert manager.heard() == ["READY=1"]
    notifier.close()


def _environ(manager: Manager, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.address, "PATH": "/bin", **more}


def test_children_do_not_inherit_the_socket(manager: Manager) -> None:
    environ = _environ(manager, WATCHDOG_USEC="300000000", WATCHDOG_PID=str(os.getpid()))
    notifier = Notifier.from_environment(environ)
    assert environ == {"PATH": "/bin"}
    notifier.progress()
    assert manager.heard() == ["WATCHDOG=1"]
    notifier.close()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WATCHDOG_USEC": "300000000"}, ["WATCHDOG=1"]),
        ({"WATCHDOG_USEC": "300000000", "WATCHDOG_PID": "1"}, []),  # meant for our parent
        ({"WATCHDOG_USEC": "300000000", "WATCHDOG_PID": "nonsense"}, []),
        ({"WATCHDOG_USEC": "0"}, []),
        ({"WATCHDOG_USEC": "soon"}, []),
        ({"WATCHDOG_USEC": "-1"}, []),
        ({"WATCHDOG_USEC": ""}, []),
        ({}, []),
    ],
    ids=str,
)
def test_the_watchdog_is_only_pinged_where_it_waits_for_us(
    manager: Manager, variables: dict[str, str], expected: list[str]
) -> None:
    environ = _environ(manager, **variables)
    notifier = Notifier.from_environment(environ)
    notifier.progress()
    assert manager.heard() == expected
    assert environ == {"PATH": "/bin"}
    notifier.close()


def test_every_interval_comes_from_the_managers_timeout(manager: Manager) -> None:
    notifier = Notifier.from_environment(_environ(manager, WATCHDOG_USEC="1"))
    notifier.progress()
    notifier.progress()  # more than a quarter of a microsecond later
    assert manager.heard() == ["WATCHDOG=1", "WATCHDOG=1"]
    notifier.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/absent/notify", "WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "relative", "WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"NOTIFY_SOCKET": "/" + "x" * 500},
    ],
    ids=str,
)
def test_without_a_listener_nothing_happens(environ: dict[str, str]) -> None:
    notifier = Notifier.from_environment(environ)
    notifier.ready()
    notifier.status("on")
    notifier.reloading()
    notifier.progress()
    notifier.stopping()
    notifier.close()
    notifier.stopping()
    assert environ == {}


def test_a_manager_that_went_away_is_no_trouble(manager: Manager) -> None:
    notifier = Notifier(manager.address, watchdog_timeout_s=1)
    notifier.ready()
    manager.close()
    notifier.status("on")
    notifier.progress()
    notifier.stopping()
    notifier.close()
