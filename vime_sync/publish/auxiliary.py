"""Config, tokenizer and whatever else lies beside the weights: what a full version carries and a delta does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import name_some
from vime_sync.format.checksum import new_hasher
from vime_sync.format.index import INDEX_NAME
from vime_sync.model import IGNORED_NAMES, ChecksumFormat

# What trainers save beside a model to go on from, or weights once more: gigabytes that no engine reads.
_TRAINING_STATE = (".pt", ".pth", ".bin", ".ckpt", ".distcp")
_READ_BYTES = 1 << 20


def is_carried(name: str) -> bool:
    """Whether a full version carries the file. Weights and their index are written by themselves."""
    return name != INDEX_NAME and not name.endswith((".safetensors", *_TRAINING_STATE))


def carried_files(directory: Path) -> dict[str, Path]:
    """Files of a directory that a full version carries, by relative name; links are followed."""
    found = fsio.walk(directory, follow_links=True, skip=IGNORED_NAMES)
    return {name: path for name, path in found if is_carried(name) and path.is_file()}


def left_behind(old: Mapping[str, Path], new: Mapping[str, Path]) -> str | None:
    """A warning for files that are new or changed, of which a delta tells hosts nothing."""
    names = [name for name, path in new.items() if is_carried(name) and _differs(old.get(name), path)]
    if not names:
        return None
    return f"a delta carries weights only: hosts keep their old {name_some(names)} until the next full version"


def _differs(old: Path | None, new: Path) -> bool:
    if old is None:
        return True
    try:
        return old.stat().st_size != new.stat().st_size or _digest(old) != _digest(new)
    except FileNotFoundError:
        return True


def _digest(path: Path) -> str:
    hasher = new_hasher(ChecksumFormat.XXH3_128)
    with fsio.File(path) as file:
        for piece in _pieces(file):
            hasher.update(piece)
    return hasher.hexdigest()


def _pieces(file: fsio.File) -> Iterator[bytes]:
    offset = 0
    while piece := file.read_up_to(_READ_BYTES, offset):
        yield piece
        offset += len(piece)
