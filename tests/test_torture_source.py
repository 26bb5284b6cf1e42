"""FIELD_GUIDE S15, promise 1: what is copied is one state of its source, whole, or it is copied again."""

from pathlib import Path

from tests import toolkit
from tests.host import Host, flip_byte
from tests.kill_points import PULL_THREADS, count_operations, observing


def _building(operation: str, path: Path) -> bool:
    return operation == "write" and path.parent.name == "aside" and path.name.startswith("shard-")


def test_s15_a_base_that_changes_behind_the_copy_is_copied_again(tmp_path: Path) -> None:
    """Its first tensor changes when the last block is about to be written: no digest of a publisher covers that."""
    rehearsed = Host.create(tmp_path / "rehearsed")
    last = count_operations(lambda: rehearsed.pull(*PULL_THREADS, version=0), _building) - 1
    host = Host.create(tmp_path / "host")
    name = next(iter(host.models[0]))
    seen = 0

    def change(operation: str, path: Path) -> None:
        nonlocal seen
        if _building(operation, path):
            if seen == last:
                flip_byte(host.base, name)
            seen += 1

    with observing(change):
        host.pulled(*PULL_THREADS, version=0)

    assert seen > last
    assert toolkit.read_checkpoint(host.local) == toolkit.read_checkpoint(host.base)
