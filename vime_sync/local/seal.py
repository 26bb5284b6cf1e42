"""Records of ours that say of themselves whether they are whole: JSON objects that end in a digest of their own text.

Owns how our JSON records are written and read. A record whose seal is missing or does not fit is spoilt, and what it
says is never believed: not a file's name, not a number. A seal finds faults, not forgers; so what a whole record says
is looked at field by field all the same (`fields`).
"""

from __future__ import annotations

import errno
import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime_sync import fsio
from vime_sync.format.checksum import Hasher, new_hasher
from vime_sync.local.fields import Spoilt
from vime_sync.model import ChecksumFormat

# Something else than a file stands under the name of a record.
_NO_RECORD = (errno.EISDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)
# The intent of a pass over 100,000 tensors and twelve deltas takes a quarter of it.
_MOST_BYTES = 512 << 20
# What nothing seals is for people, or a number: nothing of it is long.
_MOST_OPEN_BYTES = 1 << 20
# The key, the last one of a sealed object.
SEAL = "seal"
_SEAL = re.compile(rb', "seal": "([0-9a-f]{32})"')
_SEAL_BYTES = len(', "seal": ""') + 32


def sealed(document: Mapping[str, Any], *, depth: int = 1) -> bytes:
    """The record's text: the seal is the last key of the innermost of the `depth` objects that its end closes."""
    body = json.dumps(document).encode()
    closing = b"}" * depth
    assert body.endswith(closing), "the sealed object is the last thing of the document"
    digest = _digest(memoryview(body)[:-depth], closing)
    return b"".join((memoryview(body)[:-depth], b', "seal": "', digest.encode(), b'"', closing))


def write_sealed(path: Path, document: Mapping[str, Any], *, durable: bool, depth: int = 1) -> None:
    fsio.write_atomic(path, sealed(document, depth=depth), durable=durable)


def read_record(path: Path) -> bytes | None:
    """What stands under a record's name, None where nothing does.

    Raises Spoilt for what is no file or too long to be a record, OSError for trouble with the disk.
    """
    try:
        figures = path.stat()
        if not stat.S_ISREG(figures.st_mode):  # a pipe would keep its reader waiting
            raise Spoilt(f"{path} is no file")
        if figures.st_size > _MOST_BYTES:
            raise Spoilt(f"{path} is longer than any record")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        if problem.errno not in _NO_RECORD:
            raise
        raise Spoilt(f"{path}: {problem.strerror}") from None


def unseal(raw: bytes, *, depth: int = 1) -> dict[str, Any]:
    """The document of a sealed record. Raises Spoilt."""
    end = len(raw) - depth
    begin = end - _SEAL_BYTES
    found = _SEAL.fullmatch(raw[begin:end]) if begin > 0 else None
    if found is None:
        raise Spoilt("the record is not sealed")
    if _digest(memoryview(raw)[:begin], raw[end:]) != found[1].decode():
        raise Spoilt("the record is not what was sealed")
    return _parse(raw)


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The sealed record at `path`, None where there is none. Raises Spoilt, OSError."""
    raw = read_record(path)
    return None if raw is None else unseal(raw)


def parse_open(raw: bytes) -> dict[str, Any]:
    """A small record that nothing seals: the peers', or one for people only. Raises Spoilt."""
    if len(raw) > _MOST_OPEN_BYTES:
        raise Spoilt("the record is longer than any")
    return _parse(raw)


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError, OverflowError) as problem:
        raise Spoilt(f"the record is not JSON: {problem}") from None
    if not isinstance(document, dict):
        raise Spoilt("the record is no JSON object")
    return document


def _digest(*pieces: bytes | memoryview) -> str:
    hasher: Hasher = new_hasher(ChecksumFormat.XXH3_128)
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()
