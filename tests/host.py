"""One host with its base, its stream and its local checkpoint, for tests that read as stories.

What the bytes must be at each version is kept as whole models in memory; the package under test has no part
in it.
"""

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import toolkit
from tests.toolkit import Model, Result


@dataclass(frozen=True)
class Host:
    """Directories `base`, `shared` and `local` under `root`; `models[N]` is the truth at version N."""

    root: Path
    models: dict[int, Model]

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        model: Model | None = None,
        shards: int = 2,
        extra_files: Mapping[str, bytes] | None = None,
    ) -> "Host":
        """A base on disk and an empty share; LOCAL does not exist yet."""
        host = cls(root, {0: toolkit.make_model() if model is None else model})
        toolkit.write_checkpoint(host.base, host.models[0], shards=shards, extra_files=extra_files)
        host.shared.mkdir(parents=True)
        return host

    @property
    def base(self) -> Path:
        return self.root / "base"

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def local(self) -> Path:
        return self.root / "local"

    def publish(self, *, encoding: str = "xor", only: Iterable[str] | None = None, density: float = 0.01) -> Path:
        """The trainer writes the next delta; returns its directory."""
        newest = max(self.models)
        model = toolkit.step(self.models[newest], newest, density, only)
        self.models[newest + 1] = model
        return toolkit.publish_delta(self.shared, newest + 1, self.models[newest], model, encoding=encoding)

    def publish_full(
        self,
        version: int | None = None,
        *,
        shards: int = 2,
        extra_files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """The trainer writes the next version (or that one) as a full checkpoint; returns its directory."""
        newest = max(self.models)
        number = newest + 1 if version is None else version
        self.models[number] = toolkit.step(self.models[newest], number)
        return toolkit.publish_full(self.shared, number, self.models[number], shards=shards, extra_files=extra_files)

    def pull(self, *options: str | Path, version: int | None = None) -> Result:
        """`vime-sync pull` with this host's three directories."""
        return toolkit.pull(self.shared, self.local, *options, base=self.base, version=version)

    def pulled(self, *options: str | Path, version: int | None = None) -> dict[str, Any]:
        """A pull that must succeed: its document."""
        result = self.pull(*options, version=version)
        assert result.code == 0, result.stderr
        return result.document

    def expect_local(self, version: int, directory: Path | None = None) -> None:
        """LOCAL holds exactly that version's bytes, and the state shared with the peers names it."""
        local = self.local if directory is None else directory
        held = toolkit.read_checkpoint(local)
        assert toolkit.digests(held) == toolkit.digests(self.models[version])
        assert held == self.models[version]  # dtypes and shapes too
        state = json.loads((local / toolkit.STATE_DIRECTORY / "state.json").read_text(encoding="utf-8"))
        assert state["version"] == f"{version:06d}"


def everything(directory: Path) -> dict[str, tuple[str, bytes | str]]:
    """Like `toolkit.snapshot`, with our own state in it: for what must not leave a trace at all."""
    entries: dict[str, tuple[str, bytes | str]] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            entries[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            entries[name] = ("dir", "")
        else:
            entries[name] = ("file", path.read_bytes())
    return entries


def flip_byte(directory: Path, tensor: str) -> None:
    """Rot: the first byte of a tensor changes in place, in whichever shard of the checkpoint holds it."""
    for path in sorted(directory.glob("*.safetensors")):
        header, data = toolkit.split_shard(path)
        if tensor in header:
            with path.open("r+b") as file:
                (header_bytes,) = struct.unpack("<Q", file.read(8))
                begin = header[tensor]["data_offsets"][0]
                file.seek(8 + header_bytes + begin)
                file.write(bytes([data[begin] ^ 0xFF]))
            return
    raise AssertionError(f"no shard of {directory} has {tensor}")


def names_version(text: str, version: int) -> bool:
    """Whether a message names that version, padded or not."""
    return re.search(rf"(?<!\d)0*{version}(?!\d)", text) is not None


def expect_error(result: Result, code: int, error_id: str) -> dict[str, Any]:
    """The run ended with this exit code and this error object, and with nothing on stdout."""
    assert (result.code, result.error.get("code"), result.error.get("id")) == (code, code, error_id), (
        result.stderr or result.stdout
    )
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.error
