"""Hosts as a trainer sees them: by the records in an ack directory alone."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.toolkit import Result
from vime_sync.acks import Ack, AckEngine, write_ack
from vime_sync.cli import wait as _wait

LOCAL = "/nvme/ckpt"
_COMMANDS = (_wait,)  # importing it registered it


def record(
    host: str,
    version: int,
    *,
    local: str = LOCAL,
    stream: str = "run1",
    lineage: str | None = None,
    first: int = 0,
    engines: Sequence[AckEngine] = (),
) -> Ack:
    """A host at `version` of a stream: the same weights on every host, unless `lineage` says otherwise."""
    chain = tuple((number, f"{stream}-{number}") for number in range(first, version + 1))
    weights = lineage or toolkit.digest(f"{stream}-{version}".encode(), "xxh3-128")
    return Ack(host, local, version, weights, chain, tuple(engines), True)


def serving(ack: Ack, version: int | None = None, state: str = "at_version", port: int = 8000) -> Ack:
    """The same host with one more engine, at its own version or another."""
    loaded = ack.version if version is None else version
    return replace(ack, engines=(*ack.engines, AckEngine(f"http://127.0.0.1:{port}", state, loaded)))


def put(directory: Path, *acks: Ack) -> Path:
    """The daemons write their records; returns the last one's path."""
    for ack in acks:
        write_ack(directory, ack)
    return directory / acks[-1].file_name


def wait(directory: Path, version: int | str, hosts: int | str, *options: str | Path) -> Result:
    """`vime-sync wait`, with one look only unless a timeout is given."""
    if "--timeout" not in options:
        options = (*options, "--timeout", "0")
    return toolkit.vime("wait", "--ack-dir", directory, "--version", str(version), "--hosts", str(hosts), *options)


class Clock:
    """Time passes only while the command sleeps; what is planned happens in the first sleep after its moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []
        self._plan: list[tuple[float, Callable[[], Any]]] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def at(self, moment_s: float, act: Callable[[], Any]) -> None:
        self._plan.append((moment_s, act))

    def _sleep(self, seconds: float) -> None:
        assert self.now_s < 1000, "it waits for ever"
        self.now_s += seconds
        self.slept_s.append(seconds)
        due = [act for moment_s, act in self._plan if moment_s <= self.now_s]
        self._plan = [(moment_s, act) for moment_s, act in self._plan if moment_s > self.now_s]
        for act in due:
            act()
