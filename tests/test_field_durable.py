"""FIELD_GUIDE H3: what nobody has synced is not called durable, however right its bytes are now."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.disk_model import DiskModel, Loss
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, models
from tests.kill_points import PULL_THREADS, kill, tracing
from tests.sealed import change_sealed
from vime_sync.local.paths import local_paths


def _state(local: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(local_paths(local).state.read_bytes())["vime_sync"]
    return document


def _copy_anew(shard: Path) -> None:
    """As a run does that renamed a mended file into place and was killed before its record; or an operator's cp."""
    aside = shard.with_name("copy")
    shutil.copy(shard, aside)
    aside.replace(shard)


def _touch(shard: Path) -> None:
    shard.touch()


@pytest.mark.parametrize("change", [_copy_anew, _touch])
def test_h03_a_file_that_was_put_back_is_synced_before_it_is_durable(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    host = Host.create(tmp_path)
    assert toolkit.pull(host.shared, host.local, base=host.base).code == 0
    assert _state(host.local)["durable"] is True
    change(next(iter(sorted(host.local.glob("*.safetensors")))))
    assert toolkit.vime("verify", "--local", host.local).code == 0
    assert _state(host.local)["durable"] is False
    assert toolkit.pull(host.shared, host.local).code == 0
    assert _state(host.local)["durable"] is True


def test_h03_status_does_not_call_ready_what_a_power_loss_made_doubtful(tmp_path: Path) -> None:
    host = Host.create(tmp_path)
    assert toolkit.pull(host.shared, host.local, base=host.base).code == 0
    path = local_paths(host.local).state
    change_sealed(path, lambda document: document["vime_sync"].update(durable=False, boot_id="another boot"))
    found = toolkit.vime("status", "--local", host.local, "--check")
    assert (found.code, found.document["state"]) == (3, "damaged")
    assert toolkit.pull(host.shared, host.local).code == 0
    assert toolkit.vime("status", "--local", host.local, "--check").code == 0


def test_h03_the_name_of_a_table_of_a_killed_run_lasts_too(tmp_path: Path) -> None:
    """Killed between its rename and the sync of its directory: the next run finds it there, and must not rely on it."""
    host = Host.create(tmp_path / "host", model=models(256))
    host.publish()
    host.pulled(*PULL_THREADS, version=0)
    tables = local_paths(host.local).tables
    with DiskModel(host.local, tmp_path / "limbo") as disk:
        kill(
            lambda: host.pull(*PULL_THREADS),
            0,
            lambda operation, path: operation == "sync_directory" and path == tables,
        )
        host.pulled(*PULL_THREADS)
        disk.crash(Loss.DROPPED, random.Random(1))
        with tracing() as trace:
            assert host.pulled(*PULL_THREADS)["result"] == "already_current"
    assert trace.bytes_from(host.local, ".safetensors") < HEADER_BYTES


@pytest.mark.parametrize("job", ["rollback", "replacement"])
def test_h03_the_withdrawal_of_a_killed_run_lasts_before_its_work_is_taken_up(job: str, tmp_path: Path) -> None:
    """Killed between the removal of the state and its sync, power lost later: the old number is not back."""
    host = Host.create(tmp_path / "host", model=models(256))
    host.publish()
    if job == "replacement":
        host.publish_full()
    host.pulled(*PULL_THREADS, version=1)
    target = 0 if job == "rollback" else 2
    sync = local_paths(host.local).sync
    removed: list[str] = []

    def after_removal(operation: str, path: Path) -> bool:
        removed.extend([operation] if operation == "unlink" and path.name == "state.json" else [])
        return bool(removed) and operation == "sync_directory" and path == sync

    def new_state(operation: str, path: Path) -> bool:
        return operation == "create" and path.name == "state.json.new"

    with DiskModel(host.local, tmp_path / "limbo") as disk:
        kill(lambda: host.pull("--durable", *PULL_THREADS, version=target), 0, after_removal)
        kill(lambda: host.pull("--durable", *PULL_THREADS, version=target), 0, new_state)
        disk.crash(Loss.DROPPED, random.Random(1))
        assert not local_paths(host.local).state.exists()
        host.pulled(*PULL_THREADS, version=target)
        host.expect_local(target)
