"""A full version written over the old one brings its other files too, however often it is killed on the way."""

from pathlib import Path
from unittest import mock

import pytest

from tests.host import Host
from tests.kill_jobs import SPARE_BYTES, expect_settled, models
from tests.kill_points import PULL_THREADS, count_operations, kill, no_disk_waits, operations, shard_writes
from tests.toolkit import Result
from vime_sync import fsio

OLD = {"config.json": b'{"old": 1}', "tokenizer.json": b"{}"}
NEW = {"config.json": b'{"new": 2}', "generation_config.json": b"{}"}


def _bring(root: Path) -> Host:
    """LOCAL at version 1; version 2 is full, and its config, tokenizer and other files differ."""
    host = Host.create(root, model=models(1200), extra_files=OLD)
    host.publish()
    host.pulled(*PULL_THREADS)
    host.publish_full(extra_files=NEW)
    return host


def _pull_cramped(host: Host) -> Result:
    with mock.patch.object(fsio, "free_bytes", lambda directory: SPARE_BYTES + (1 << 20)):
        return host.pull(*PULL_THREADS)


def _expect_new_files(host: Host) -> None:
    expect_settled(host, 2)
    for name, content in NEW.items():
        assert (host.local / name).read_bytes() == content
    assert not (host.local / "tokenizer.json").exists()  # ours, and the new version lacks it


@pytest.mark.parametrize("moment", ["first_write", "last_write", "state", "removal"])
def test_h01_killed_while_a_full_version_is_written_in_place_its_other_files_come_too(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_disk_waits(monkeypatch)
    writes = shard_writes(tmp_path / "host" / "local")
    before = _bring(tmp_path / "other")
    last = count_operations(lambda: _pull_cramped(before), shard_writes(before.local)) - 1
    _expect_new_files(before)
    host = _bring(tmp_path / "host")
    at, matching = {
        "first_write": (0, writes),
        "last_write": (last, writes),
        "state": (0, operations("rename", "state.json")),
        "removal": (0, operations("unlink", "tokenizer.json")),
    }[moment]
    kill(lambda: _pull_cramped(host), at, matching)
    result = _pull_cramped(host)
    assert result.code == 0, result.stderr
    _expect_new_files(host)
