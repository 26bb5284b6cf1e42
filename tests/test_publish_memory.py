"""The memory of `publish` does not grow with the tensors (promise 8).

Each runs in a process of its own under RLIMIT_DATA, set before anything is imported: an allocation above it fails,
so a short spike is caught too. The tensors are larger than the limit.
"""

import filecmp
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import toolkit

LIMIT_BYTES = 400 << 20
BIG_BYTES = 600 << 20
CHANGED_BYTES = 24 << 20

_LIMITED = """
import resource, runpy, sys
limit, *arguments = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
sys.argv = ["vime_sync", *arguments]
runpy.run_module("vime_sync", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 20:
            path.unlink()  # pytest keeps the directories of the last runs


def _write(directory: Path, changed: bytes) -> None:
    """A checkpoint of one huge tensor that takes hardly any room on the disk, and a small one."""
    directory.mkdir()
    header = {
        "big": {"dtype": "BF16", "shape": [BIG_BYTES // 2], "data_offsets": [0, BIG_BYTES]},
        "small": {"dtype": "F32", "shape": [2], "data_offsets": [BIG_BYTES, BIG_BYTES + 8]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = directory / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(BIG_BYTES // 3, os.SEEK_CUR)
        file.write(changed)
    os.truncate(path, 8 + len(text) + BIG_BYTES + 8)
    (directory / "config.json").write_bytes(b"{}")


def _publish(root: Path, *options: str) -> None:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    places = ["--shared", str(root / "shared"), "--from", str(root / "new"), "--base", str(root / "base")]
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(LIMIT_BYTES), "publish", *places, "--threads", "2", *options],
        cwd=Path(__file__).parents[1],
        env={**settings, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encoding", ["xor", "overwrite", "full"])
def test_a_tensor_larger_than_the_memory(root: Path, encoding: str) -> None:
    """Many of its bytes change, too many of them for an overwrite to be held at once."""
    (root / "shared").mkdir()
    _write(root / "base", b"")
    _write(root / "new", np.random.default_rng(1).bytes(CHANGED_BYTES))
    _publish(root, "--encoding", encoding)
    result = toolkit.pull(root / "shared", root / "local", base=root / "base")
    assert result.code == 0, result.stderr
    assert filecmp.cmp(root / "local" / "model.safetensors", root / "new" / "model.safetensors", shallow=False)
