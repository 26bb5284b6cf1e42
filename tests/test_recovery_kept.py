"""What the last pass kept is a short cut backwards, never the only way: it is not synced, and can be spoilt.

FIELD_GUIDE V1, H3. Base and share are at hand here, so another way down exists whatever happens to `kept/`.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host import Host
from tests.kill_jobs import expect_settled, models
from tests.kill_points import PULL_THREADS, kill, no_disk_waits, reboot, shard_writes
from tests.toolkit import STATE_DIRECTORY


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _bring(root: Path, encoding: str) -> Host:
    """LOCAL at version 2, one version above what it can go back to."""
    host = Host.create(root, model=models(1200))
    for version in (1, 2):
        host.publish(encoding=encoding)
        host.pulled(*PULL_THREADS, version=version)
    return host


def _spoil(kept: Path, change: Callable[[bytes], bytes]) -> None:
    for path in kept.iterdir():
        if path.suffix in (".frames", ".old"):
            path.write_bytes(change(path.read_bytes()))


SPOILT: dict[str, Callable[[Path], None]] = {
    "zeros": lambda kept: _spoil(kept, lambda content: bytes(len(content))),
    "cut": lambda kept: _spoil(kept, lambda content: content[: len(content) // 2]),
    "empty": lambda kept: _spoil(kept, lambda content: b""),
    "gone": shutil.rmtree,
}


@pytest.mark.parametrize("fate", SPOILT)
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_v01_h03_a_spoilt_short_cut_does_not_bar_the_way_back(encoding: str, fate: str, tmp_path: Path) -> None:
    host = _bring(tmp_path, encoding)
    SPOILT[fate](host.local / STATE_DIRECTORY / "kept")
    result = host.pull(*PULL_THREADS, version=1)
    assert result.code == 0, result.stderr
    assert result.document["result"] == "rolled_back"
    expect_settled(host, 1)


@pytest.mark.parametrize("fate", SPOILT)
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_h03_power_lost_in_the_middle_of_going_back_by_it(
    encoding: str, fate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = _bring(tmp_path, encoding)
    kill(lambda: host.pull(*PULL_THREADS, version=1), 1, shard_writes(host.local))
    SPOILT[fate](host.local / STATE_DIRECTORY / "kept")
    reboot(monkeypatch)
    result = host.pull(*PULL_THREADS, version=1)
    assert result.code == 0, result.stderr
    expect_settled(host, 1)
