"""FIELD_GUIDE H3: after a power loss nothing is trusted that was not known durable (promise 3)."""

import shutil
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import HEADER_BYTES, expect_settled, models
from tests.kill_points import (
    PULL_THREADS,
    KillSwitch,
    count_operations,
    kill,
    no_disk_waits,
    reboot,
    run_until_killed,
    tracing,
)
from tests.kill_power import bring_undurable, lose_page, overwrite


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


def _create(root: Path, *encodings: str) -> Host:
    host = Host.create(root, model=models(1536))
    for encoding in encodings:
        if encoding == "full":
            host.publish_full()
        else:
            host.publish(encoding=encoding)
    return host


def _model_bytes(host: Host) -> int:
    return sum(len(tensor.data) for tensor in host.models[0].values())


def _first(host: Host) -> str:
    return next(iter(host.models[0]))


# ---- committed, not yet durable


@pytest.mark.parametrize("how", ["zeros", "garbage", "old"])
@pytest.mark.parametrize("kinds", ["xor xor", "xor overwrite", "xor full", "full xor"])
def test_h03_a_number_newer_than_the_data_is_found_and_mended(
    kinds: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = _create(tmp_path, *kinds.split())
    host.pulled(version=1)
    bring_undurable(host, 2)
    lose_page(host, _first(host), how, 1)
    reboot(monkeypatch)

    document = host.pulled()

    assert (document["result"], document["version"]) == ("updated", 2)  # bytes changed under the same number
    assert document["tensors_repaired"] == 1
    assert document["bytes_written"] < _model_bytes(host), "only what differs is rebuilt"
    expect_settled(host, 2)


def test_h03_all_of_the_data_may_be_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = _create(tmp_path, "xor", "xor")
    host.pulled(version=1)
    old = {path: path.read_bytes() for path in host.local.glob("*.safetensors")}
    bring_undurable(host, 2)
    for path, content in old.items():
        path.write_bytes(content)
    reboot(monkeypatch)

    document = host.pulled()

    assert (document["version"], document["seeded_from"]) == (2, None)
    expect_settled(host, 2)


def test_h03_a_fresh_seed_that_was_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors, a header and the small files too: zeros where the disk had nothing yet."""
    host = _create(tmp_path, "xor")
    bring_undurable(host, 1)
    for path in host.local.iterdir():
        if path.is_file():
            overwrite(path, 0, bytes(min(path.stat().st_size, 4096)))
    reboot(monkeypatch)
    host.pulled()
    expect_settled(host, 1)
    for name in ("config.json", "tokenizer.json"):
        assert (host.local / name).read_bytes() == (host.base / name).read_bytes()


def test_h03_files_of_no_length_after_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = _create(tmp_path, "xor")
    bring_undurable(host, 1)
    for name in ("config.json", "model-00001-of-00002.safetensors"):
        (host.local / name).write_bytes(b"")
    reboot(monkeypatch)
    host.pulled()
    expect_settled(host, 1)
    assert (host.local / "config.json").read_bytes() == (host.base / "config.json").read_bytes()


def test_h03_where_nothing_was_lost_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = _create(tmp_path, "xor")
    bring_undurable(host, 1)
    reboot(monkeypatch)
    with tracing() as trace:
        document = host.pulled()
    assert (document["result"], document["bytes_written"], document["tensors_repaired"]) == ("already_current", 0, 0)
    assert trace.bytes_from(host.local, ".safetensors") >= _model_bytes(host)
    assert trace.bytes_from(host.base) < HEADER_BYTES
    assert toolkit.vime("status", "--local", host.local).document["durable"] is True


@pytest.mark.parametrize("durable", [True, False])
def test_h03_what_is_known_durable_is_believed(durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synced behind the commit, or before it (`--durable`, killed right after): no byte is hashed again."""
    host = _create(tmp_path, "xor", "xor")
    host.pulled(version=1)
    if durable:

        def committed(operation: str, path: Path) -> bool:
            return operation == "rename" and path.parts[-2:] == ("kept", "intent.json")

        total = count_operations(lambda: host.pull("--durable"), committed)
        shutil.rmtree(host.local)
        host.pulled(version=1)
        kill(lambda: host.pull("--durable"), total - 1, committed)
    else:
        host.pulled()
    assert toolkit.vime("status", "--local", host.local).document["durable"] is True
    reboot(monkeypatch)
    with tracing() as trace:
        document = host.pulled()
    assert (document["result"], document["version"], document["bytes_written"]) == ("already_current", 2, 0)
    assert trace.bytes_from(host.local, ".safetensors") < 64 * 1024
    host.expect_local(2)


def test_h03_a_kill_without_a_power_loss_needs_no_second_hash(tmp_path: Path) -> None:
    host = _create(tmp_path, "xor")
    bring_undurable(host, 1)
    with tracing() as trace:
        document = host.pulled()
    assert (document["result"], document["bytes_written"]) == ("already_current", 0)
    assert trace.bytes_from(host.local, ".safetensors") < 64 * 1024
    assert toolkit.vime("status", "--local", host.local).document["durable"] is True


def test_h03_killed_again_while_it_is_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new boot id in the state is a promise: it must not stand there before all was hashed and mended."""
    host = _create(tmp_path, "xor", "xor")
    host.pulled(version=1)
    bring_undurable(host, 2)
    lose_page(host, _first(host), "old", 1)
    kept = tmp_path / "kept"
    shutil.copytree(host.local, kept)
    reboot(monkeypatch)
    for point in range(60):
        if run_until_killed(lambda: host.pull(*PULL_THREADS), KillSwitch(point)) is not None:
            break
        reboot(monkeypatch, f"boot after kill {point}" if point % 2 else "11111111-2222-3333-4444-555555555555")
        host.pulled(*PULL_THREADS)
        host.expect_local(2)
        shutil.rmtree(host.local)
        shutil.copytree(kept, host.local)
    else:
        raise AssertionError("the recovery never ended by itself")


def test_h03_without_a_path_the_bytes_are_not_called_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = _create(tmp_path, "xor")
    bring_undurable(host, 1)
    lose_page(host, _first(host), "zeros", 0)
    reboot(monkeypatch)
    host.base.rename(tmp_path / "away")

    result = host.pull()

    assert result.code == 22, result.stderr
    assert result.error["version"] == 0
    assert toolkit.vime("status", "--local", host.local).document["state"] == "damaged"
    (tmp_path / "away").rename(host.base)
    assert host.pulled()["tensors_repaired"] == 1
    expect_settled(host, 1)
