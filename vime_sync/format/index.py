"""`model.safetensors.index.json`: what tells a delta from a full checkpoint, and which file holds what.

Formats: vime_sync/docs/FORMAT.md. An unknown encoding, compression, digest or metadata key is refused
and never read as "full" (FIELD_GUIDE S9).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from vime_sync.format.problems import FormatError
from vime_sync.format.strict_json import parse_object, string_map
from vime_sync.model import IGNORED_NAMES, ChecksumFormat, Encoding, version_label

INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 100_000_000
_DELTA_KEYS = frozenset(("base_version", "delta_encoding", "compression_format", "checksum_format"))
_KNOWN_DELTA_METADATA = _DELTA_KEYS | {"version", "total_size", "format"}
_VERSION_DIRECTORY = re.compile(r"weight_v(\d{6,})", re.ASCII)
_MAX_NAME_BYTES = 255
_NO_PARTS = frozenset(("", ".", "..")) | IGNORED_NAMES


@dataclass(frozen=True)
class DeltaMetadata:
    version: int
    base_version: int
    encoding: Encoding
    checksum: ChecksumFormat


@dataclass(frozen=True)
class Index:
    """`weight_map` maps tensor to file name; `delta` is None for a full checkpoint."""

    weight_map: Mapping[str, str]
    delta: DeltaMetadata | None


def version_of_directory(name: str) -> int | None:
    """The version a directory name stands for, or None (FIELD_GUIDE V8). Version 0 is never published."""
    match = _VERSION_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    version = int(match.group(1))
    return version if version > 0 and version_label(version) == match.group(1) else None


def parse_index(raw: bytes) -> Index:
    """Raises TruncatedError for text cut short, FormatError for anything else that is wrong."""
    if len(raw) > MAX_INDEX_BYTES:
        raise FormatError(f"index has {len(raw)} bytes, expected at most {MAX_INDEX_BYTES}")
    document = parse_object(raw, "index")
    if "weight_map" not in document:
        raise FormatError("index has no weight_map")
    weight_map = string_map(document["weight_map"], "index weight_map")
    for file in set(weight_map.values()):
        check_file_name(file)
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise FormatError(f"index metadata is a JSON {type(metadata).__name__}, expected an object")
    if not _DELTA_KEYS & metadata.keys():
        return Index(weight_map, None)
    return Index(weight_map, _delta_metadata(metadata))


def check_file_name(name: str) -> None:
    """A file an index may name lies inside its directory and is a safetensors file (FIELD_GUIDE S19)."""
    parts = name.split("/")
    if PurePosixPath(name).is_absolute() or any(part in _NO_PARTS for part in parts):
        raise FormatError(f"index names the file {name[:80]!r}, expected one inside the version's directory")
    if not name.isprintable() or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise FormatError(f"index names the file {name[:80]!r}, which cannot be a file name")
    if not name.endswith(".safetensors"):
        raise FormatError(f"index names the file {name[:80]!r}, expected a *.safetensors file")


def _delta_metadata(metadata: dict[str, object]) -> DeltaMetadata:
    unknown = metadata.keys() - _KNOWN_DELTA_METADATA
    if unknown:
        raise FormatError(f"index metadata has the unknown key {min(unknown)[:80]!r}")
    if metadata.get("compression_format") != "zstd":
        raise FormatError(f"compression_format is {_shown(metadata, 'compression_format')}, expected 'zstd'")
    try:
        encoding = Encoding(metadata.get("delta_encoding"))
    except ValueError:
        raise FormatError(
            f"delta_encoding is {_shown(metadata, 'delta_encoding')}, expected 'xor' or 'overwrite'"
        ) from None
    try:
        checksum = ChecksumFormat(metadata.get("checksum_format"))
    except ValueError:
        expected = ", ".join(repr(known.value) for known in ChecksumFormat)
        raise FormatError(
            f"checksum_format is {_shown(metadata, 'checksum_format')}, expected one of {expected}"
        ) from None
    return DeltaMetadata(_number(metadata, "version"), _number(metadata, "base_version"), encoding, checksum)


def _shown(metadata: dict[str, object], key: str) -> str:
    return repr(metadata[key])[:80] if key in metadata else "absent"


def _number(metadata: dict[str, object], key: str) -> int:
    value = metadata.get(key)
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,18}", value):
        raise FormatError(f"{key} is {_shown(metadata, key)}, expected a zero-padded number like '000007'")
    return int(value)
