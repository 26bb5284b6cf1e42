"""The bench: its data look real, its yardstick and prototype are right, every row can be run, wrong bytes end it.

Nothing here looks at a time: machines that run tests are busy with other things.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scripts.bench_command import GROUPS, main
from scripts.bench_data import ENCODINGS, DataSet, SetSpec, make_set
from scripts.bench_measure import Row, Sample, ratio_row
from scripts.bench_prototype import Prototype
from scripts.bench_world import World, WrongBytes, expect_bytes
from scripts.bench_yardstick import Yardstick, copy_base
from tests import toolkit

SPEC = SetSpec("small", 5, 3 << 19, 2, 3, 0.01)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataSet]:
    made = make_set(tmp_path_factory.mktemp("bench") / "data", SPEC)
    yield made
    for path in made.root.rglob("*.safetensors"):
        path.unlink()  # pytest keeps the directories of the last runs


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_data_is_a_stream_that_the_toolkit_reads(data: DataSet, encoding: str) -> None:
    model = toolkit.read_checkpoint(data.base)
    assert toolkit.digests(model) == data.digests[0]
    for version in range(1, SPEC.versions + 1):
        model = toolkit.apply_version(model, toolkit.version_path(data.share(encoding), version))
        assert toolkit.digests(model) == data.digests[version]


def test_the_data_looks_like_training(data: DataSet) -> None:
    """About the wanted share of bytes changes, nearly all of them low bytes, and they compress as real ones do."""
    assert 0.005 < data.changed_share < 0.02
    assert 2 < data.compressed_per_changed["xor"] < 3.5
    before = toolkit.read_checkpoint(data.base)
    after = toolkit.apply_version(before, toolkit.version_path(data.share("xor"), 1))
    name = next(iter(before))
    changed = np.frombuffer(before[name].data, np.uint8) != np.frombuffer(after[name].data, np.uint8)
    assert changed[0::2].sum() > 20 * changed[1::2].sum()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_yardstick_and_prototype_come_to_the_right_bytes(data: DataSet, encoding: str, tmp_path: Path) -> None:
    copy_base(data.base, tmp_path / "one")
    copy_base(data.base, tmp_path / "other")
    for version in range(1, SPEC.versions + 1):
        Yardstick(tmp_path / "one", 2).apply(data.share(encoding), version)
        expect_bytes(tmp_path / "one", data.digests[version])
    Prototype(tmp_path / "other", 2).apply(data.share(encoding), range(1, SPEC.versions + 1))
    expect_bytes(tmp_path / "other", data.digests[SPEC.versions])


def test_both_hosts_of_a_world_go_up_and_back_down(data: DataSet, tmp_path: Path) -> None:
    with World(data, "overwrite", tmp_path / "world", 2) as world:
        world.seed()
        world.time_theirs(1, 3)
        world.time_ours(3)
        world.expect(3)
        world.reset()
        expect_bytes(world.theirs, data.digests[0])
    assert not (tmp_path / "world").exists()


def test_one_wrong_byte_is_found(data: DataSet, tmp_path: Path) -> None:
    copy_base(data.base, tmp_path / "local")
    shard = next((tmp_path / "local").glob("*.safetensors"))
    with shard.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(WrongBytes, match="1 of 5 tensors"):
        expect_bytes(tmp_path / "local", data.digests[0])


def test_a_ratio_is_of_medians() -> None:
    """One run that was disturbed does not count."""
    theirs = [Sample(2.0, 1.0), Sample(2.0, 1.0), Sample(9.0, 1.0)]
    ours = [Sample(1.0, 0.5), Sample(7.0, 0.5), Sample(1.0, 0.5)]
    row = ratio_row("a", "b", theirs, ours, 100, 1.6, 2.0, "")
    assert (row.figure, row.parts["cpu_ratio"], row.is_reached) == (2.0, 2.0, True)
    assert Row("a", "b", 2.0, "s", 1.0, None, False).is_reached is False
    assert Row("a", "b", 2.0, "s").is_reached is None


def test_every_row_can_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a smoke test: the whole bench on tiny data, and the JSON that it writes."""
    options = ["--quick", "--directory", str(tmp_path), "--tmpfs", str(tmp_path), "--json", str(tmp_path / "rows.json")]
    assert main(options) == 0
    document = json.loads((tmp_path / "rows.json").read_text())
    assert (document["schema"], document["quick"]) == ("vime-sync/bench/1", True)
    names = [row["name"] for row in document["rows"]]
    assert len(names) == len(set(names)) >= 29
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]


def test_only_some_rows_and_no_tmpfs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--rows", "safety", "--directory", str(tmp_path), "--tmpfs", "none"]) == 0
    printed = capsys.readouterr().out
    assert "safety xor disk" in printed
    assert "tmpfs" not in printed
    assert "apply" in GROUPS


def test_wrong_bytes_end_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lazy(self: Yardstick, share: Path, version: int) -> None:
        """Does nothing: fast, and wrong."""

    monkeypatch.setattr(Yardstick, "apply", lazy)
    assert main(["--quick", "--rows", "apply", "--directory", str(tmp_path), "--tmpfs", "none"]) == 1
    assert "WRONG BYTES" in capsys.readouterr().err
