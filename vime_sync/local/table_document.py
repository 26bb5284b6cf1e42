"""A digest table as JSON, and back. Pure; what proves a table is the digest in its name."""

from __future__ import annotations

import re
from typing import Any

from vime_sync.local import fields
from vime_sync.local.fields import Spoilt
from vime_sync.model import DigestTable, FileDigest

_SCHEMA = "vime-sync/digests/1"
_DIGEST_DIGITS = 32
_DIGESTS = re.compile(r"[0-9a-f]*")


def table_to_document(table: DigestTable) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "version": table.version,
        "anchor_identity": table.anchor_identity,
        "files": {name: [file.size_bytes, file.digest, file.is_shard] for name, file in table.files.items()},
        "tensors": dict(table.tensors),
    }


def table_from_document(value: object) -> DigestTable:
    """Raises Spoilt, or KeyError or TypeError, for what is no table."""
    document = fields.mapping(value)
    if document["schema"] != _SCHEMA:
        raise Spoilt("no digest table of this schema")
    files = {
        fields.name_inside(name): _file(*fields.listing(file))
        for name, file in fields.mapping(document["files"]).items()
    }
    tensors = fields.mapping(document["tensors"])
    fields.check_encodable(tensors)
    _check_digests(list(tensors.values()))
    _check_digests([file.digest for file in files.values()])
    return DigestTable(
        fields.version_number(document["version"]), fields.word(document["anchor_identity"]), tensors, files
    )


def _file(size_bytes: object, digest: object, is_shard: object) -> FileDigest:
    return FileDigest(fields.number(size_bytes), fields.word(digest), fields.flag(is_shard))


def _check_digests(digests: list[str]) -> None:
    """All at once: there may be a hundred thousand."""
    if set(map(len, digests)) - {_DIGEST_DIGITS} or not _DIGESTS.fullmatch("".join(digests)):
        raise Spoilt("a digest that is none of ours")
