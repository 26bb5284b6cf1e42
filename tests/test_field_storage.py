"""FIELD_GUIDE S15, S16: trouble of the share's or the base's storage, at any read, is nobody's damage.

It is told as 10 (wait), never as wrong usage, damaged bytes or a bad local disk: those end the daemon.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fault_calls import Fault, FaultyCalls
from tests.host import Host, flip_byte
from tests.kill_jobs import models
from tests.kill_points import PULL_THREADS, no_disk_waits
from tests.toolkit import vime

_FAULTS = (Fault.EIO, Fault.ESTALE, Fault.SHORT_READ)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    no_disk_waits(monkeypatch)
    host = Host.create(tmp_path / "host", model=models(40))
    host.publish()
    host.publish()
    return host


def _seed(host: Host) -> None:
    """Nothing to prepare: LOCAL is absent."""


def _rot(host: Host) -> None:
    host.pulled(*PULL_THREADS)
    flip_byte(host.local, "lm_head.weight")
    assert vime("verify", "--local", host.local).code == 22


def _lost_state(host: Host) -> None:
    host.pulled(*PULL_THREADS)
    (host.local / ".weight_sync" / "state.json").unlink()


@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("prepare", [_seed, _rot, _lost_state], ids=["seed", "repair", "identify"])
def test_s16_trouble_at_any_read_of_share_or_base_is_to_wait(
    prepare: Callable[[Host], None], fault: Fault, for_good: bool, host: Host
) -> None:
    for part in (host.base, host.shared):
        _bring(host, prepare)
        with FaultyCalls(part, writes=False) as calls:
            host.pulled(*PULL_THREADS)
        for at in range(int(for_good), calls.seen, 6 if for_good else 5):
            _bring(host, prepare)
            with FaultyCalls(part, writes=False, at=at, fault=fault, for_good=for_good):
                result = host.pull(*PULL_THREADS)
            assert result.code in (0, 10), (part.name, at, result.stderr)
            if fault is Fault.SHORT_READ:
                assert result.code == 0, (part.name, at, result.stderr)
            host.pulled(*PULL_THREADS)
            host.expect_local(2)


def _bring(host: Host, prepare: Callable[[Host], None]) -> None:
    shutil.rmtree(host.local, ignore_errors=True)
    prepare(host)
