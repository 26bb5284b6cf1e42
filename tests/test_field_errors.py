"""FIELD_GUIDE H6: full disks, I/O errors, permissions and read-only filesystems, at any operation of any job.

Whatever operation fails: exit 21, the old version is whole (or the job goes on from where it was), and the next pull
without the fault reaches the target with the right bytes.
"""

import errno
import os
import signal
from pathlib import Path

import pytest

from tests.host import Host, expect_error, flip_byte
from tests.kill_jobs import JOBS, bring_fresh, create, expect_no_lie, expect_settled, hide_touch
from tests.kill_points import PULL_THREADS, count_operations, no_disk_waits, observing
from vime_sync.local.paths import local_paths

_JOBS = ("apply", "folded", "undo", "seed", "replacement", "rollback", "rollback_overwrite", "repair", "repair_shard")
_PARTS = 2


class _Failing:
    """An observer that fails the `at`-th operation, once or from there on for good."""

    def __init__(self, at: int, number: int, *, for_good: bool) -> None:
        self._at = at
        self._number = number
        self._for_good = for_good
        self.seen = 0

    def __call__(self, operation: str, path: Path) -> None:
        here, self.seen = self.seen, self.seen + 1
        if here == self._at or (self._for_good and here > self._at):
            raise OSError(self._number, os.strerror(self._number), str(path))


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("name", _JOBS)
def test_h06_an_error_at_any_operation(
    name: str, for_good: bool, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_disk_waits(monkeypatch)
    job = JOBS[name]
    host = create(tmp_path / "host", job, kib=1200)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    numbers = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES)
    for at in range(part, total, _PARTS):
        bring_fresh(host, job)
        number = numbers[at % len(numbers)]
        try:
            with observing(_Failing(at, number, for_good=for_good)):
                result = job.run(host)
            assert result.code in (job.code, 21), result.stderr
            assert "Traceback" not in result.stderr
            if result.code == 21:
                assert result.error["id"] == "local_io"
            if "repair" not in name:  # those begin with wrong bytes, and marks that say so
                expect_no_lie(host)
            healed = host.pull(*PULL_THREADS, version=job.target)
            assert healed.code == job.code, healed.stderr
            expect_settled(host, job.end)
        except BaseException:
            print(f"{name}: operation {at} of {total} failed with {errno.errorcode[number]}, for good: {for_good}")
            raise


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", ["apply", "folded", "seed", "replacement", "rollback"])
def test_a_signal_stops_at_a_safe_point_and_the_next_run_carries_on(
    name: str, number: signal.Signals, tmp_path: Path
) -> None:
    job = JOBS[name]
    host = create(tmp_path / "host", job)
    bring_fresh(host, job)
    total = count_operations(lambda: job.run(host))
    seen = 0

    def strike(operation: str, path: Path) -> None:
        nonlocal seen
        seen += 1
        if seen == total // 2:
            os.kill(os.getpid(), number)

    with observing(strike):
        result = job.run(host)
    assert result.code in (128 + number, 0), result.stderr
    if result.code:
        assert (result.error["id"], result.error["retryable"]) == ("interrupted", True)
    expect_no_lie(host)
    assert host.pull(*PULL_THREADS, version=job.target).code == 0
    expect_settled(host, job.end)


def test_h06_after_a_failed_sync_nothing_is_believed_that_only_the_page_cache_holds(tmp_path: Path) -> None:
    """The kernel says once that a write was lost, and counts its pages as clean from then on."""
    host = Host.create(tmp_path)
    host.publish(encoding="xor")

    def fail_sync(operation: str, path: Path) -> None:
        if operation == "sync" and path.suffix == ".safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with observing(fail_sync):
        result = host.pull()
    assert (result.code, result.error["id"]) == (21, "local_io"), result.stderr
    name = next(iter(host.models[1]))
    flip_byte(host.local, name)  # what the disk really has, once the cache is gone
    hide_touch(host.local, *(path.name for path in host.local.glob("*.safetensors")))

    healed = host.pulled()

    assert (healed["version"], healed["tensors_repaired"]) == (1, 1)
    expect_settled(host, 1)


def test_a_host_is_what_these_tests_think(tmp_path: Path) -> None:
    """The jobs write what they say: a run without any fault ends as it should."""
    for name in _JOBS:
        job = JOBS[name]
        host: Host = create(tmp_path / name, job, kib=64)
        bring_fresh(host, job)
        assert job.run(host).code == job.code


def test_h06_a_digest_table_that_cannot_be_read_now_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one I/O error would have every byte hashed, or the work that was cut short thrown away."""
    host = Host.create(tmp_path)
    host.publish()
    host.pulled()
    host.publish()
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.parent == local_paths(host.local).tables:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read_bytes)
        expect_error(host.pull(), 21, "local_io")
    pulled = host.pulled()

    host.expect_local(2)
    assert pulled["seeded_from"] is None
