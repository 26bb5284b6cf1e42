"""A host and a published stream with one version that a test breaks: the stage of `test_field_source_*`.

Every fault is told in up to four settings, because where it sits decides when it can be noticed: in the only delta,
in the last of five folded ones, in the middle of them, and before a fresh host that seeds and folds in one pass.
The victim is the smallest tensor that changes and the last by name, so that all others are written before it.
"""

import enum
import json
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import toolkit
from tests.toolkit import Model, Result, Tensor

VICTIM = "zz.last.bias"
_UNTOUCHED = ("scalar", "one", "empty")
_ERROR_KEYS = {"schema", "code", "id", "message", "hint", "retryable", "version", "tensors"}


class Setting(enum.Enum):
    """Where the broken version sits: (version the host is at or None, broken version, target)."""

    ONLY = (1, 2, 2)
    LAST = (1, 6, 6)
    MIDDLE = (1, 4, 6)
    FRESH = (None, 6, 6)


def in_settings(*settings: Setting) -> pytest.MarkDecorator:
    """Run the test once per setting; all of them when none is given."""
    chosen = settings or tuple(Setting)
    return pytest.mark.parametrize("setting", chosen, ids=[f"{setting.name.lower()}-delta" for setting in chosen])


@dataclass(frozen=True)
class Story:
    """`models[n]` is the right model at version n; `bad` is the version to break; the host stands at `start`."""

    base: Path
    shared: Path
    local: Path
    models: tuple[Model, ...]
    start: int | None
    bad: int
    target: int
    encoding: str
    checksum: str

    @property
    def directory(self) -> Path:
        """The version directory to break."""
        return toolkit.version_path(self.shared, self.bad)

    @property
    def index(self) -> Path:
        return self.directory / toolkit.INDEX_NAME

    @property
    def shard(self) -> Path:
        """The shard of the broken version that holds the victim."""
        weight_map: dict[str, str] = json.loads(self.index.read_text())["weight_map"]
        return self.directory / weight_map[VICTIM]

    @property
    def old(self) -> bytes:
        """The victim before the broken version."""
        return self.models[self.bad - 1][VICTIM].data

    @property
    def new(self) -> bytes:
        """The victim as the broken version should leave it."""
        return self.models[self.bad][VICTIM].data

    @property
    def payload(self) -> bytes:
        """The victim's right payload, uncompressed."""
        return toolkit.encode_delta(self.old, self.new, self.encoding)

    def pull(self, version: int | str | None = None) -> Result:
        """Pull to the story's target, or to another one."""
        return toolkit.pull(
            self.shared, self.local, base=self.base, version=self.target if version is None else version
        )

    def refuse(
        self,
        code: int,
        identifier: str | tuple[str, ...],
        *,
        named: Iterable[str] = (),
        tensors: Iterable[str] = (),
        pull: Callable[[], Result] | None = None,
        version: int | None = -1,
    ) -> Result:
        """Pull twice; each time the same refusal, as the contract words it, and not one local byte changed.

        `named` must stand in the message, `tensors` also in the list of tensors. Twice, because a refusal
        that leaves something half done shows at the second look.
        """
        local_before, shared_before = toolkit.snapshot(self.local), toolkit.snapshot(self.shared)
        result = check_refusal((pull or self.pull)(), code, identifier)
        again = check_refusal((pull or self.pull)(), code, identifier)
        assert again.error["message"] == result.error["message"]
        assert result.error["version"] == (self.bad if version == -1 else version)
        for name in (*named, *tensors):
            assert name in result.error["message"]
        assert set(tensors) <= set(result.error["tensors"])
        assert toolkit.snapshot(self.local) == local_before
        assert toolkit.snapshot(self.shared) == shared_before  # the share is read-only to us
        self.check_local_at(self.start)
        return result

    def check_local_at(self, version: int | None) -> None:
        """The local checkpoint, by the safetensors library, is exactly that version; None: there is none."""
        state = self.local / toolkit.STATE_DIRECTORY / "state.json"
        if version is None:
            assert toolkit.snapshot(self.local) == {}
            assert not state.exists()
            return
        assert toolkit.read_checkpoint(self.local) == self.models[version]
        assert json.loads(state.read_text())["version"] == f"{version:06d}"

    def mend(self) -> None:
        """The publisher writes the broken version again, right this time."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.publish(self.bad)

    def publish(self, version: int) -> None:
        old, new = self.models[version - 1], self.models[version]
        toolkit.publish_delta(self.shared, version, old, new, encoding=self.encoding, checksum=self.checksum, ranks=2)

    def recover(self) -> Result:
        """After mending, the same command brings the host to the target with the right bytes."""
        result = self.pull()
        assert result.code == 0, result.stderr
        document = result.document
        assert (document["result"], document["version"]) == ("updated", self.target)
        assert (document["from_version"], document["new_stream"]) == (self.start, False)
        self.check_local_at(self.target)
        return result

    def mend_and_recover(self) -> None:
        self.mend()
        self.recover()


def tell(
    directory: Path,
    setting: Setting,
    *,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    seed: int = 0,
    changes_nothing: bool = False,
    victim_bytes: int = 211,
    density: float = 0.05,
) -> Story:
    """Publish a whole and right stream, and bring the host to the version where the story starts.

    `changes_nothing`: the version that the setting singles out is an empty delta.
    """
    start, bad, target = setting.value
    first = toolkit.make_model(seed=seed, tensors=4, kib=24)
    first[VICTIM] = Tensor("I8", (victim_bytes,), np.random.default_rng(seed).bytes(victim_bytes))
    models = [first]
    for version in range(1, target + 1):
        touched = [name for name in first if name not in _UNTOUCHED]
        nothing = changes_nothing and version == bad
        models.append(toolkit.step(models[-1], seed + version, density=density, only=() if nothing else touched))
    story = Story(
        base=directory / "base",
        shared=directory / "shared",
        local=directory / "local",
        models=tuple(models),
        start=start,
        bad=bad,
        target=target,
        encoding=encoding,
        checksum=checksum,
    )
    toolkit.write_checkpoint(story.base, first, shards=2)
    for version in range(1, target + 1):
        story.publish(version)
    if start is not None:
        ready = story.pull(start)
        assert ready.code == 0, ready.stderr
        story.check_local_at(start)
    return story


def check_refusal(result: Result, code: int, identifier: str | tuple[str, ...]) -> Result:
    """A refusal as the contract has it: exit code, one whole error object as the last line, nothing on stdout."""
    identifiers = (identifier,) if isinstance(identifier, str) else identifier
    assert (result.code, result.stdout) == (code, ""), result.stderr
    assert set(result.error) >= _ERROR_KEYS, result.stderr
    assert result.error["schema"] == "vime-sync/error/1"
    assert result.error["code"] == code
    assert result.error["id"] in identifiers, result.error
    assert result.error["retryable"] is (code in (10, 20, 21))
    assert result.error["message"] and result.error["hint"]
    assert "\n" not in result.error["message"]
    assert "Traceback" not in result.stderr
    return result


def edit_frames(shard: Path, changes: Mapping[str, tuple[bytes, str]]) -> None:
    """Put other (or more) frames and digests in a delta shard, which stays a well-formed safetensors file."""
    header, data = toolkit.split_shard(shard)
    metadata: dict[str, str] = header.pop("__metadata__")
    frames = {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}
    for name, (frame, checksum) in changes.items():
        frames[name], metadata[name] = frame, checksum
    tensors = {name: Tensor("U8", (len(frame),), frame) for name, frame in frames.items()}
    toolkit.write_safetensors(shard, tensors, metadata)


def replace_frame(shard: Path, frame: bytes, *, checksum: str | None = None) -> None:
    """Put another frame for the victim in a delta shard; its digest stays unless one is given."""
    header, _ = toolkit.split_shard(shard)
    edit_frames(shard, {VICTIM: (frame, checksum or header["__metadata__"][VICTIM])})


def frame_of(shard: Path, tensor: str = VICTIM) -> bytes:
    """A tensor's frame in a delta shard."""
    header, data = toolkit.split_shard(shard)
    return data[slice(*header[tensor]["data_offsets"])]


def frame_of_blocks(blocks: Iterable[bytes], content_size: int, *, ended: bool = True, window_log: int = 17) -> bytes:
    """A hand-made zstd frame of raw blocks (RFC 8878); not `ended`: its last block does not say so."""
    parts = [bytes.fromhex("28b52ffd"), bytes([0x80, (window_log - 10) << 3]), struct.pack("<I", content_size)]
    contents = list(blocks)
    for number, block in enumerate(contents, start=1):
        last = ended and number == len(contents)
        parts += [(len(block) << 3 | int(last)).to_bytes(3, "little"), block]
    return b"".join(parts)


def set_metadata(story: Story, **values: Any) -> None:
    """Change keys of the broken version's index metadata; None takes a key out."""

    def change(document: dict[str, Any]) -> None:
        for key, value in values.items():
            if value is None:
                document["metadata"].pop(key)
            else:
                document["metadata"][key] = value

    toolkit.rewrite_index(story.directory, change)
