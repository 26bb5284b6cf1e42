"""A trainer that saves checkpoints, its share and one host, for stories about `publish`.

What the bytes are at each version is kept as whole models in memory. What was published is decoded with numpy,
zstandard and the safetensors library; `vime-sync` has no part in that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from tests import toolkit
from tests.toolkit import Model, Result, vime, vime_plain

PUBLISHER_DIRECTORY = ".vime_sync_publish"


@dataclass
class Trainer:
    """Directories `base`, `shared`, `cache` and `local` under `root`; `models[N]` is the truth at version N."""

    root: Path
    models: dict[int, Model] = field(default_factory=dict)
    saved: int = 0

    @classmethod
    def create(cls, root: Path, model: Model | None = None, *, shards: int = 2) -> "Trainer":
        trainer = cls(root, {0: toolkit.make_model(kib=8) if model is None else model})
        toolkit.write_checkpoint(trainer.base, trainer.models[0], shards=shards)
        trainer.shared.mkdir(parents=True)
        return trainer

    @property
    def base(self) -> Path:
        return self.root / "base"

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def local(self) -> Path:
        return self.root / "local"

    def save(
        self,
        model: Model,
        *,
        shards: int = 2,
        index: bool = True,
        extra_files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """The trainer saves a checkpoint, as trainers do; returns its directory."""
        self.saved += 1
        directory = self.root / f"checkpoint-{self.saved}"
        toolkit.write_checkpoint(directory, model, shards=shards, index=index, extra_files=extra_files)
        return directory

    def arguments(self, checkpoint: Path, *options: str | Path, cache: bool = True) -> list[str | Path]:
        given: list[str | Path] = ["publish", "--shared", self.shared, "--from", checkpoint, "--base", self.base]
        if cache:
            given += ["--cache", self.cache]
        return [*given, *options]

    def publish(self, checkpoint: Path, *options: str | Path, cache: bool = True) -> Result:
        return vime(*self.arguments(checkpoint, *options, cache=cache))

    def published(
        self, model: Model | None = None, *options: str | Path, cache: bool = True, shards: int = 2
    ) -> dict[str, Any]:
        """The next version, or this model as one; it must succeed. Returns its document."""
        newest = max(self.models)
        model = toolkit.step(self.models[newest], newest) if model is None else model
        result = self.publish(self.save(model, shards=shards), *options, cache=cache)
        assert result.code == 0, result.stderr
        assert result.document["path"] == str(self.path(result.document["version"]))
        self.models[result.document["version"]] = model
        return result.document

    def path(self, version: int) -> Path:
        return toolkit.version_path(self.shared, version)

    def versions(self) -> list[str]:
        """What the share shows to receivers, and whatever else is there; the publisher's corner apart."""
        return sorted(path.name for path in self.shared.iterdir() if path.name != PUBLISHER_DIRECTORY)

    def leftovers(self) -> list[str]:
        """What lies in the publisher's corner beside its records."""
        records = {"lock", "holder.json", "base.json"}
        corner = self.shared / PUBLISHER_DIRECTORY
        return sorted({path.name for path in corner.iterdir()} - records) if corner.exists() else []

    def expect_decoded(self, version: int) -> None:
        """The published files alone turn the model before into this one."""
        before = self.models.get(version - 1, {})
        assert toolkit.apply_version(before, self.path(version)) == self.models[version]

    def expect_pulled(self, version: int) -> None:
        """A host comes to exactly that version, dtypes and shapes too."""
        result = toolkit.pull(self.shared, self.local, base=self.base, version=version)
        assert result.code == 0, result.stderr
        assert toolkit.read_checkpoint(self.local) == self.models[version]


def index_of(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / toolkit.INDEX_NAME).read_text(encoding="utf-8"))
    return document


def frames_of(directory: Path) -> dict[str, bytes]:
    """The frame of every tensor of a delta, read by the safetensors library."""
    frames = {}
    for path in sorted(directory.glob("*.safetensors")):
        header, data = toolkit.split_shard(path)
        header.pop("__metadata__")
        for name, spec in header.items():
            begin, end = spec["data_offsets"]
            assert (spec["dtype"], spec["shape"]) == ("U8", [end - begin])
            frames[name] = data[begin:end]
    return frames


def digests_of(directory: Path) -> dict[str, str]:
    """The digests of a delta's shards' metadata."""
    found: dict[str, str] = {}
    for path in sorted(directory.glob("*.safetensors")):
        found.update(toolkit.split_shard(path)[0]["__metadata__"])
    return found


def expect_frame_as_readers_want_it(frame: bytes, content_size: int) -> None:
    parameters = zstandard.get_frame_parameters(frame)
    assert parameters.content_size == content_size
    assert not parameters.has_checksum
    assert parameters.dict_id == 0
    assert parameters.window_size <= 8 << 20


__all__ = ["Trainer", "digests_of", "expect_frame_as_readers_want_it", "frames_of", "index_of", "vime", "vime_plain"]
