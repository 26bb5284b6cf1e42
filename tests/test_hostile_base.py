"""Another base behind the same version 0, and ways back to the base when the records of it are gone."""

import os
import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything
from tests.kill_jobs import expect_settled
from tests.kill_points import no_disk_waits
from tests.toolkit import STATE_DIRECTORY


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Its base and its stream are B's; base A beside it has the same names, dtypes, shapes and sizes."""
    host = Host.create(tmp_path, model=toolkit.make_model(tensors=3, kib=4))
    toolkit.write_checkpoint(tmp_path / "base_a", toolkit.step(host.models[0], 77, 0.5))
    host.publish()
    return host


def _at_base_a(host: Host) -> None:
    result = toolkit.pull(host.shared, host.local, base=host.root / "base_a", version=0)
    assert result.code == 0, result.stderr
    assert toolkit.read_checkpoint(host.local) == toolkit.read_checkpoint(host.root / "base_a")


def test_a5_version_0_of_another_base_is_not_already_there(host: Host) -> None:
    _at_base_a(host)

    document = host.pulled(version=0)

    assert (document["result"], document["version"], document["seeded_from"]) == ("updated", 0, 0)
    assert document["bytes_written"] > 0
    expect_settled(host, 0)
    host.pulled()
    expect_settled(host, 1)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a5_a_delta_over_another_base_is_not_applied_to_this_one(encoding: str, host: Host) -> None:
    host.publish(encoding=encoding)
    _at_base_a(host)

    assert host.pulled()["version"] == 2

    expect_settled(host, 2)


def test_a5_another_base_of_the_same_sizes_and_times_is_seen(host: Host) -> None:
    _at_base_a(host)
    for path in sorted(host.base.iterdir()):
        figures = (host.root / "base_a" / path.name).stat()
        os.utime(path, ns=(figures.st_atime_ns, figures.st_mtime_ns))
        assert path.stat().st_size == figures.st_size

    host.pulled(version=0)

    expect_settled(host, 0)


@pytest.mark.parametrize("how", ["touched", "copied"])
def test_a5_the_same_base_with_other_times_changes_nothing(how: str, host: Host) -> None:
    host.pulled(version=0)
    before = everything(host.local)
    stats = {path.name: path.stat() for path in host.local.iterdir() if path.is_file()}
    if how == "touched":
        for path in host.base.iterdir():
            os.utime(path, (1_000_000_000, 1_000_000_000))
    else:
        host.base.rename(host.root / "before")
        shutil.copytree(host.root / "before", host.base)

    document = host.pulled(version=0)

    assert (document["result"], document["bytes_written"], document["new_stream"]) == ("already_current", 0, False)
    after = everything(host.local)
    assert {name: after[name] for name in stats} == {name: before[name] for name in stats}
    now = {name: (host.local / name).stat() for name in stats}
    assert {name: (figures.st_ino, figures.st_mtime_ns) for name, figures in now.items()} == {
        name: (figures.st_ino, figures.st_mtime_ns) for name, figures in stats.items()
    }
    host.pulled()
    expect_settled(host, 1)


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_b11_a_rollback_without_the_table_of_the_base_and_the_kept_pass(target: int, encoding: str, host: Host) -> None:
    host.publish(encoding=encoding)
    host.publish(encoding=encoding)
    for version in (0, 1, 2, 3):
        host.pulled(version=version)
    records = host.local / STATE_DIRECTORY
    shutil.rmtree(records / "kept", ignore_errors=True)
    for table in (records / "digests").glob("000000-*"):
        table.unlink()

    document = host.pulled(version=target)

    assert (document["result"], document["version"]) == ("rolled_back", target)
    expect_settled(host, target)
    host.pulled()
    expect_settled(host, 3)
