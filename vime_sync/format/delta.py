"""A delta's index against its shards' headers, both ways, into one table of payloads. Pure.

Rules: docs/FORMAT.md, and FIELD_GUIDE S3, S7, S9, S17.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vime_sync.format.checksum import check_digest, xxh3
from vime_sync.format.index import DeltaMetadata
from vime_sync.format.problems import FormatError
from vime_sync.model import Payload, ShardFile

_OTHER_METADATA = frozenset(("format",))


@dataclass(frozen=True)
class Duplicate:
    """The same tensor in two shards: harmless when the payloads are equal byte for byte (S7)."""

    tensor: str
    first: Payload
    second: Payload


@dataclass(frozen=True)
class Assembled:
    payloads: Mapping[str, Payload]
    duplicates: tuple[Duplicate, ...]


def assemble(delta: DeltaMetadata, weight_map: Mapping[str, str], shards: Mapping[str, ShardFile]) -> Assembled:
    """Raises FormatError where the index and the headers do not agree. Payload equality is left to the caller."""
    payloads: dict[str, Payload] = {}
    others: list[tuple[str, Payload]] = []
    for shard in shards.values():
        stray = shard.metadata.keys() - shard.tensors.keys() - _OTHER_METADATA
        if stray:
            raise FormatError(f"{shard.name}: metadata names {min(stray)[:80]!r}, which is no tensor of it")
        for name, spec in shard.tensors.items():
            payload = _payload(delta, shard, name, spec.begin, spec.size_bytes)
            if spec.dtype != "U8" or len(spec.shape) != 1:
                raise FormatError(f"{shard.name}: {name!r} is {spec.dtype} {list(spec.shape)}, expected U8 [n]")
            if name not in weight_map:
                raise FormatError(f"{shard.name}: holds {name!r}, which the index does not name")
            if weight_map[name] == shard.name:
                payloads[name] = payload
            else:
                others.append((name, payload))
    missing = weight_map.keys() - payloads.keys()
    if missing:
        name = min(missing)
        raise FormatError(f"index says {name!r} is in {weight_map[name]}, which does not hold it")
    return Assembled(payloads, tuple(_duplicate(name, payloads[name], second) for name, second in others))


def _payload(delta: DeltaMetadata, shard: ShardFile, name: str, begin: int, size_bytes: int) -> Payload:
    digest = shard.metadata.get(name)
    if digest is None:
        raise FormatError(f"{shard.name}: {name!r} has no digest in the metadata")
    try:
        check_digest(digest, delta.checksum)
    except FormatError as problem:
        raise FormatError(f"{shard.name}: {name!r} has the {problem}") from None
    return Payload(shard.name, shard.data_offset + begin, size_bytes, digest)


def _duplicate(name: str, first: Payload, second: Payload) -> Duplicate:
    if (first.size_bytes, first.digest) != (second.size_bytes, second.digest):
        raise FormatError(f"{name!r} stands in {first.shard} and in {second.shard} with different contents")
    return Duplicate(name, first, second)


def delta_identity(delta: DeltaMetadata, payloads: Mapping[str, Payload]) -> str:
    """A delta is its parsed content: encoding, base version, tensor -> digest (FIELD_GUIDE S21)."""
    lines = [f"{delta.encoding.value} {delta.checksum.value} {delta.base_version}"]
    lines += [f"{name}\0{payloads[name].digest}" for name in sorted(payloads)]
    return xxh3("\n".join(lines).encode())
