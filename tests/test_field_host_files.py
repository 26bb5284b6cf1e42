"""FIELD_GUIDE H9, H10, H14: bases as they really lie on disks, and tensors of every odd size."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything
from tests.toolkit import Model, Tensor

# ---- H9: a read-only base, and a daemon that is not root

_NOBODY = 65534

# Imports everything while it still may, works once so that nothing is left to import, then lets go of root
# for good and runs the pulls. The interpreter itself may lie where only root can read.
_AS_NOBODY = """
import json, os, sys
from vime_sync.cli import run
warm_up, user, pulls = json.loads(sys.argv[1])
if run(warm_up):
    sys.exit(99)
if user is not None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
for arguments in pulls:
    code = run(arguments)
    if code:
        sys.exit(code)
"""


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Like tmp_path, but every user may pass through it."""
    path = Path(tempfile.mkdtemp(prefix="vime-sync-test-"))
    path.chmod(0o755)
    yield path
    for directory in [path, *(entry for entry in path.rglob("*") if entry.is_dir())]:
        directory.chmod(0o755)
    shutil.rmtree(path)


def _read_only(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_h09_copies_of_a_read_only_base_are_writable_for_a_plain_user(encoding: str, open_path: Path) -> None:
    host = Host.create(open_path / "world", extra_files={"config.json": b"{}", "original/params.json": b"{}"})
    host.publish(encoding=encoding)
    host.publish(encoding=encoding)
    host.publish_full(extra_files={"config.json": b"{}", "original/params.json": b'{"new": 1}'})
    host.publish(encoding=encoding)
    _read_only(host.base)
    _read_only(host.shared)
    user = _NOBODY if os.getuid() == 0 else None
    (host.root / "disk").mkdir()
    if user is not None:
        os.chown(host.root / "disk", user, user)
    local = host.root / "disk" / "local"
    common = ["pull", "--shared", str(host.shared), "--base", str(host.base), "--json", "--version"]
    plan = [
        [*common, "2", "--local", str(open_path / "warm")],
        user,
        [[*common, str(version), "--local", str(local)] for version in range(5)],
    ]

    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, json.dumps(plan)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    host.expect_local(4, local)
    for path in [local, *local.rglob("*")]:
        mode = path.stat().st_mode
        assert mode & 0o200, path
        assert not path.is_dir() or mode & 0o700 == 0o700, path
        assert user is None or path.stat().st_uid == user


# ---- H10: subdirectories, dotfiles and links of the base come along, as content

_EXTRA_FILES = {
    "config.json": b"{}",
    ".gitattributes": b"*.safetensors filter=lfs",
    "1_Pooling/config.json": b'{"pooling": "mean"}',
    "original/deep/params.json": b"{}",
    "empty.txt": b"",
}


def _contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory by its relative name, links followed."""
    return {
        str((Path(folder) / name).relative_to(directory)): (Path(folder) / name).read_bytes()
        for folder, _, names in os.walk(directory, followlinks=True)
        for name in names
        if toolkit.STATE_DIRECTORY not in Path(folder).relative_to(directory).parts
    }


def _expect_real_copy(local: Path, expected: dict[str, bytes]) -> None:
    assert _contents(local) == expected
    assert not [path for path in local.rglob("*") if path.is_symlink()]


def test_h10_subdirectories_and_dotfiles_are_copied(tmp_path: Path) -> None:
    host = Host.create(tmp_path, extra_files=_EXTRA_FILES)
    host.pulled()
    _expect_real_copy(host.local, _contents(host.base))
    host.publish()
    host.pulled()
    host.expect_local(1)


def test_h10_a_full_version_brings_its_subdirectories_too(tmp_path: Path) -> None:
    host = Host.create(tmp_path)
    published = host.publish_full(extra_files=_EXTRA_FILES)
    host.pulled()
    _expect_real_copy(host.local, _contents(published))


def test_h10_links_in_the_base_are_copied_as_content(tmp_path: Path) -> None:
    host = Host.create(tmp_path, extra_files=_EXTRA_FILES)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("config.json", "1_Pooling", "model-00001-of-00002.safetensors"):
        (host.base / name).rename(elsewhere / name)
        (host.base / name).symlink_to(elsewhere / name)
    outside = everything(elsewhere)

    host.pulled()
    _expect_real_copy(host.local, _contents(host.base))
    host.publish()
    host.pulled()

    host.expect_local(1)
    assert everything(elsewhere) == outside


@pytest.mark.parametrize("through_link", [False, True])
def test_h10_a_hugging_face_cache_snapshot_is_a_base(through_link: bool, tmp_path: Path) -> None:
    host = Host.create(tmp_path, extra_files=_EXTRA_FILES)
    blobs = tmp_path / "hub" / "models--org--name" / "blobs"
    snapshot = blobs.parent / "snapshots" / "5f0b02c"
    blobs.mkdir(parents=True)
    for name, content in _contents(host.base).items():
        blob = blobs / toolkit.digest(content)
        blob.write_bytes(content)
        blob.chmod(0o444)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    cache = everything(tmp_path / "hub")
    base = snapshot
    if through_link:
        base = tmp_path / "current"
        base.symlink_to(snapshot)
    host.publish()

    for version in (0, 1):
        result = toolkit.pull(host.shared, host.local, base=base, version=version)
        assert result.code == 0, result.stderr
        _expect_real_copy(host.local, _contents(host.local))
        host.expect_local(version)

    assert set(_contents(host.local)) == set(_contents(host.base))
    assert everything(tmp_path / "hub") == cache


def test_h10_the_state_of_another_host_in_the_base_is_not_taken_over(tmp_path: Path) -> None:
    host = Host.create(tmp_path)
    state = host.base / toolkit.STATE_DIRECTORY / "state.json"
    state.parent.mkdir()
    state.write_text(json.dumps({"version": "000007"}), encoding="utf-8")
    host.publish()
    assert host.pulled()["version"] == 1
    host.expect_local(1)


# ---- H14: tensors of 0 bytes, scalars, single bytes, odd offsets

_ODD: Model = {
    "a.three": Tensor("U8", (3,), b"abc"),
    "b.halves": Tensor("BF16", (5,), bytes(range(10))),
    "c.empty": Tensor("BF16", (0, 4), b""),
    "d.one": Tensor("I8", (1,), b"\x80"),
    "e.scalar": Tensor("F32", (), b"\x00\x00\x80?"),
    "f.long": Tensor("U8", (70_001,), bytes(range(251)) * 278 + bytes(range(223))),
    "g.scalar": Tensor("I64", (), bytes(range(8))),
}


def _write_unaligned(path: Path, model: Model) -> None:
    """One shard in the given order: with odd sizes first, later tensors start at odd offsets."""
    header: dict[str, object] = {}
    data = b"".join(tensor.data for tensor in model.values())
    begin = 0
    for name, tensor in model.items():
        end = begin + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_h14_odd_tensors_follow_every_version(encoding: str, folded: bool, tmp_path: Path) -> None:
    host = Host(tmp_path, {0: _ODD})
    host.base.mkdir()
    host.shared.mkdir()
    _write_unaligned(host.base / "model.safetensors", _ODD)
    for density in (0.01, 1.0, 0.5, 0.01):
        host.publish(encoding=encoding, density=density)

    for version in (4,) if folded else (0, 1, 2, 3, 4):
        assert host.pulled(version=version)["version"] == version
        host.expect_local(version)

    assert toolkit.vime("verify", "--local", host.local).code == 0


@pytest.mark.parametrize("name", [name for name, tensor in _ODD.items() if tensor.data])
def test_h14_a_delta_of_one_odd_tensor_touches_nothing_else(name: str, tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=_ODD)
    host.pulled()
    host.publish(only=[name], density=1.0)
    assert host.pulled()["tensors_changed"] == 1
    host.expect_local(1)
