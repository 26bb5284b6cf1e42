"""Looking at directories, and spoiling published files without any check."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.toolkit_streams import INDEX_NAME

STATE_DIRECTORY = ".weight_sync"


def snapshot(directory: Path) -> dict[str, tuple[str, bytes | str]]:
    """All of a directory but our own state: name -> ("file", bytes), ("link", target) or ("dir", "")."""
    entries: dict[str, tuple[str, bytes | str]] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if name.parts[0] == STATE_DIRECTORY:
            continue
        if path.is_symlink():
            entries[str(name)] = ("link", str(path.readlink()))
        elif path.is_dir():
            entries[str(name)] = ("dir", "")
        else:
            entries[str(name)] = ("file", path.read_bytes())
    return entries


def rewrite_index(version_dir: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Load a version's index, let `change` mutate it, write it back."""
    path = version_dir / INDEX_NAME
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def split_shard(path: Path) -> tuple[dict[str, Any], bytes]:
    """A safetensors file as its header and its data section."""
    content = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", content)
    header: dict[str, Any] = json.loads(content[8 : 8 + header_bytes])
    return header, content[8 + header_bytes :]


def join_shard(path: Path, header: bytes, data: bytes) -> None:
    """Write a safetensors file from a raw header and a data section, whatever they hold."""
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def rewrite_shard(path: Path, change: Callable[[dict[str, Any], bytearray], None]) -> None:
    """Let `change` mutate a shard's header and data in place, and write it back without any check."""
    header, content = split_shard(path)
    data = bytearray(content)
    change(header, data)
    join_shard(path, json.dumps(header).encode("utf-8"), bytes(data))
