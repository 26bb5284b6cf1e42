"""`vime-sync wait --shared`: only hosts of the stream that is published count, over real shares and pulled hosts."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.ack_hosts import Clock, put, serving, wait
from tests.host import Host, expect_error
from vime_sync.acks import Ack, make_ack
from vime_sync.errors import ShareUnreachable
from vime_sync.local.paths import local_paths
from vime_sync.local.state import read_state
from vime_sync.model import Published
from vime_sync.stream import catalog


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def acks(tmp_path: Path) -> Path:
    directory = tmp_path / "acks"
    directory.mkdir()
    return directory


def pulled(host: Host, name: str, version: int | None = None) -> Ack:
    """What that host's daemon would record after a pull."""
    host.pulled(version=version)
    state = read_state(local_paths(host.local)).state
    assert state is not None
    weights = "".join(toolkit.digests(toolkit.read_checkpoint(host.local)).values())
    return make_ack(name, host.local, state, toolkit.digest(weights.encode()))


def restart(host: Host) -> None:
    """The trainer begins anew: the share is emptied, and counts from 1 again with other weights."""
    shutil.rmtree(host.shared)
    host.shared.mkdir()
    model = host.models[0]
    host.models.clear()
    host.models[0] = model
    for number in (1, 2):
        host.models[number] = toolkit.step(host.models[number - 1], 100 + number)
        toolkit.publish_delta(host.shared, number, host.models[number - 1], host.models[number])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8))
    for encoding in ("xor", "overwrite", "xor"):
        host.publish(encoding=encoding)
    return host


def test_v2_with_the_share_only_hosts_of_its_stream_count(host: Host, acks: Path, clock: Clock) -> None:
    put(acks, pulled(host, "a1"))
    assert wait(acks, 2, 1, "--shared", host.shared).code == 0
    restart(host)
    assert wait(acks, 2, 1).code == 0  # the old run's number: nothing told it that there is a new one
    error = expect_error(wait(acks, 2, 1, "--shared", host.shared), 10, "hosts_behind")
    assert f"host a1 ({host.local}) is at version 3 of another stream" in error["message"]
    clock.at(clock.now_s + 3, lambda: put(acks, pulled(host, "a1")))
    result = wait(acks, 2, 1, "--shared", host.shared, "--timeout", "60")
    assert (result.code, result.document["hosts"][0]["version"]) == (0, 2)


def test_a_full_version_is_known_again_too(host: Host, acks: Path, clock: Clock) -> None:
    host.publish_full()
    host.publish()
    put(acks, pulled(host, "a1"))
    for version in (4, 5):
        assert wait(acks, version, 1, "--shared", host.shared).code == 0


def test_latest_is_the_newest_ready_one_when_the_wait_begins(host: Host, acks: Path, clock: Clock) -> None:
    (toolkit.version_path(host.shared, 3) / toolkit.INDEX_NAME).unlink()
    put(acks, pulled(host, "a1", version=2))
    result = wait(acks, "latest", 1, "--shared", host.shared)
    assert (result.code, result.document["version"]) == (0, 2)
    assert "version 3" in result.stderr
    expect_error(wait(acks, "latest", 1), 2, "usage")
    expect_error(wait(acks, "latest", 1, "--shared", acks), 10, "version_missing")
    expect_error(wait(acks, "latest", 1, "--shared", host.root / "absent"), 10, "share_unreachable")


def test_a_version_that_is_yet_to_be_published_is_not_held_by_the_old_run(host: Host, acks: Path, clock: Clock) -> None:
    put(acks, pulled(host, "a1"))
    shutil.rmtree(host.shared)
    host.shared.mkdir()
    error = expect_error(wait(acks, 2, 1, "--shared", host.shared), 10, "hosts_behind")
    assert error["message"].endswith(f"; {host.shared} does not show version 2 as ready")
    clock.at(clock.now_s + 2, lambda: restart(host))
    clock.at(clock.now_s + 4, lambda: put(acks, pulled(host, "a1")))
    assert wait(acks, 2, 1, "--shared", host.shared, "--timeout", "60").code == 0
    assert clock.now_s >= 4


def test_s16_a_share_that_cannot_be_read_proves_nothing_and_is_waited_for(host: Host, acks: Path, clock: Clock) -> None:
    put(acks, pulled(host, "a1"))
    away = host.shared.rename(host.root / "away")
    clock.at(5, lambda: away.rename(host.shared))
    result = wait(acks, 3, 1, "--shared", host.shared, "--timeout", "60")
    assert (result.code, clock.now_s >= 5) == (0, True)
    assert result.stderr.count("warning: ") == 1 and f"listing {host.shared}" in result.stderr


def test_s10_a_delta_without_tensors_does_not_prove_its_stream(host: Host, acks: Path, clock: Clock) -> None:
    host.publish(only=())
    put(acks, pulled(host, "a1"))
    assert wait(acks, 4, 1, "--shared", host.shared).code == 0
    restart(host)
    for number in (3, 4):  # as empty as the old run's version 4
        host.models[number] = host.models[2]
        toolkit.publish_delta(host.shared, number, host.models[2], host.models[2])
    error = expect_error(wait(acks, 4, 1, "--shared", host.shared), 10, "hosts_behind")
    assert "of another stream" in error["message"]


def test_the_wait_reads_only(host: Host, acks: Path, clock: Clock) -> None:
    put(acks, pulled(host, "a1"))
    before = toolkit.snapshot(host.root)
    wait(acks, 3, 2, "--shared", host.shared, "--timeout", "5")
    assert toolkit.snapshot(host.root) == before


def test_s15_a_version_that_was_pruned_is_proven_by_the_one_the_host_is_at(
    host: Host, acks: Path, clock: Clock
) -> None:
    ack = pulled(host, "a1")
    put(acks, ack)
    shutil.rmtree(toolkit.version_path(host.shared, 1))
    assert wait(acks, 1, 1, "--shared", host.shared).code == 0
    put(acks, replace(ack, chain=ack.chain[-1:]))  # so far ahead that its record no longer names version 2
    assert wait(acks, 2, 1, "--shared", host.shared).code == 0
    shutil.rmtree(toolkit.version_path(host.shared, 3))
    error = expect_error(wait(acks, 2, 1, "--shared", host.shared), 10, "hosts_behind")
    assert "does not tell whether it is of its stream" in error["message"]


def test_v3_a_restart_under_the_same_numbers_is_seen_in_the_middle_of_a_wait(
    host: Host, acks: Path, clock: Clock
) -> None:
    put(acks, pulled(host, "a1", version=2))
    other = replace(pulled(host, "a1", version=2), host="a2")
    clock.at(3, lambda: restart(host))
    clock.at(5, lambda: put(acks, other))  # both hold version 2, of the old stream
    clock.at(9, lambda: put(acks, pulled(host, "a1"), replace(pulled(host, "a1"), host="a2")))
    assert wait(acks, 2, 2, "--shared", host.shared, "--timeout", "60").code == 0
    assert clock.now_s >= 9


def test_s16_a_share_that_goes_away_in_the_middle_proves_nothing(host: Host, acks: Path, clock: Clock) -> None:
    ack = pulled(host, "a1")
    put(acks, ack)
    away = host.root / "away"
    clock.at(3, lambda: host.shared.rename(away))
    clock.at(5, lambda: put(acks, replace(ack, host="a2")))
    clock.at(9, lambda: away.rename(host.shared))
    assert wait(acks, 3, 2, "--shared", host.shared, "--timeout", "60").code == 0
    assert clock.now_s >= 9


def test_what_is_published_is_parsed_once(
    host: Host, acks: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Path] = []
    read_version = catalog.read_version

    def count(directory: Path, *rest: Any) -> Published:
        parsed.append(directory)
        return read_version(directory, *rest)

    monkeypatch.setattr(catalog, "read_version", count)
    expect_error(wait(acks, 3, 1, "--shared", host.shared, "--timeout", "30"), 10, "hosts_behind")
    assert parsed == [toolkit.version_path(host.shared, 3)]


def test_latest_of_a_share_in_trouble_is_not_guessed(
    host: Host, acks: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: Path, version: int, *rest: Any) -> Published:
        raise ShareUnreachable(f"reading version {version}: Input/output error")

    put(acks, pulled(host, "a1"))
    monkeypatch.setattr(catalog, "read_version", fail)
    expect_error(wait(acks, "latest", 1, "--shared", host.shared), 10, "share_unreachable")
    result = wait(acks, 3, 1, "--shared", host.shared)
    expect_error(result, 10, "hosts_behind")
    assert "warning: reading version 3: Input/output error" in result.stderr


def test_every_option_has_its_twin_in_the_environment(host: Host, acks: Path, clock: Clock) -> None:
    put(acks, serving(pulled(host, "a1")))
    names = {"ACK_DIR": acks, "VERSION": "latest", "HOSTS": "a1", "SHARED": host.shared, "SERVED": "1", "TIMEOUT": "0"}
    environment = {f"VIME_SYNC_{name}": str(value) for name, value in names.items()}
    result = toolkit.vime("wait", env=environment)
    assert (result.code, result.document["version"]) == (0, 3), result.stderr
    put(acks, pulled(host, "a1"))  # the same host, with no engine any more
    expect_error(toolkit.vime("wait", env=environment), 10, "hosts_behind")
