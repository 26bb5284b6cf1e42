"""Safetensors headers, parsed strictly: our own parser for published and for local files.

Layout (safetensors format description): u64 little-endian header length N, N bytes of JSON, then the data
section that the header's tensors cover from its first byte to its last without hole or overlap.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from vime_sync.format.problems import FormatError
from vime_sync.format.strict_json import parse_object, string_map
from vime_sync.model import TensorSpec

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
# As many as numpy has; bounds the time to multiply them.
_MAX_DIMENSIONS = 64

# Bits per element; the format packs sub-byte types.
_DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
_SPEC_KEYS = frozenset(("dtype", "shape", "data_offsets"))


@dataclass(frozen=True)
class Header:
    """A parsed header: tensors in order of place, metadata, and the data section's size in bytes."""

    tensors: Mapping[str, TensorSpec]
    metadata: Mapping[str, str]
    data_size_bytes: int


def header_length(prefix: bytes) -> int:
    """The header's length from the file's first 8 bytes; checked before anything is allocated for it."""
    (length,) = struct.unpack("<Q", prefix)
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise FormatError(f"header length {length}, expected 2 to {MAX_HEADER_BYTES} bytes")
    return int(length)


def parse_header(raw: bytes) -> Header:
    """Parse the JSON of a header. Raises FormatError naming the tensor at fault."""
    if raw[:1] != b"{":
        raise FormatError(f"header starts with {raw[:1]!r}, expected '{{'")
    document = parse_object(raw, "header")
    metadata = string_map(document.pop("__metadata__", {}), "header __metadata__")
    specs = [(name, _tensor_spec(name, value)) for name, value in document.items()]
    specs.sort(key=lambda item: (item[1].begin, item[1].size_bytes))
    end = 0
    for name, spec in specs:
        if spec.begin != end:
            fault = "overlaps the one before it" if spec.begin < end else "leaves a hole before it"
            raise FormatError(f"tensor {name!r} begins at {spec.begin}, expected {end}: it {fault}")
        end += spec.size_bytes
    return Header(dict(specs), metadata, end)


def _shown_bytes(total_bits: int) -> str:
    whole, rest = divmod(total_bits, 8)
    return f"{str(whole)[:40]} and {rest} bits" if rest else str(whole)[:40]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _tensor_spec(name: str, value: object) -> TensorSpec:
    if not isinstance(value, dict) or value.keys() != _SPEC_KEYS:
        raise FormatError(f"tensor {name!r} is described by {str(value)[:80]}, expected dtype, shape, data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    bits = _DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise FormatError(f"tensor {name!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(_is_count, shape)):
        raise FormatError(f"tensor {name!r} has the shape {str(shape)[:80]}, expected at most {_MAX_DIMENSIONS} sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise FormatError(f"tensor {name!r} has data_offsets {str(offsets)[:80]}, expected [begin, end]")
    begin, end = offsets
    total_bits = math.prod(shape) * bits
    if total_bits % 8 or end - begin != total_bits // 8:
        expected = f"{_shown_bytes(total_bits)} for {dtype} {str(shape)[:80]}"
        raise FormatError(f"tensor {name!r} spans {end - begin} bytes, expected {expected}")
    return TensorSpec(dtype, tuple(shape), begin, end - begin)
