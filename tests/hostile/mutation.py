"""Spoils right bytes and right JSON documents, by a seed: the same seed spoils the same way."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

_NUMBERS = (0, 1, 2, 3, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_TOKENS = (
    b"null", b"true", b"-1", b"NaN", b"1e999", b"[]", b"{}", b'""', b'"\\u0000"', b'"\\ud800"', b"9" * 400, b"[[[[[[",
    b'":{"', b'","', b"\\", b"\xff\xfe", b"\xc0\xaf", b"../", b"\n", b"xor", b"overwrite", b"0.5", b"{", b"}",
    b",", b":",
)  # fmt: skip
_STRINGS = (
    "",
    "\0",
    "\ud800",
    "..",
    "../x",
    "/",
    "/x",
    "a\0b",
    "\u202e",
    "x" * 300,
    "d/" * 3000,
    "000001",
    "latest",
    "\n",
)


def spoil(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """One to four changes: flips, cuts, repeats, splices with another right file, odd numbers, odd JSON."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(_CHANGES)(rng, data, rng.choice(others))
    return data


def _flip(rng: random.Random, data: bytes, _: bytes) -> bytes:
    place = _place(rng, data)
    return data[:place] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[place : place + 1]) + data[place + 1 :]


def _set(rng: random.Random, data: bytes, _: bytes) -> bytes:
    place = _place(rng, data)
    return data[:place] + bytes([rng.choice((0, 0x20, 0x22, 0x5C, 0x7F, 0x80, 0xFF))]) + data[place + 1 :]


def _cut(rng: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: _place(rng, data)]


def _drop(rng: random.Random, data: bytes, _: bytes) -> bytes:
    place = _place(rng, data)
    return data[:place] + data[place + rng.choice((1, 1, 2, 4, 16, 200)) :]


def _repeat(rng: random.Random, data: bytes, _: bytes) -> bytes:
    begin, end = sorted((_place(rng, data), _place(rng, data)))
    return data[:end] + data[begin : min(end, begin + 4096)] + data[end:]


def _splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: _place(rng, data)] + other[_place(rng, other) :]


def _number(rng: random.Random, data: bytes, _: bytes) -> bytes:
    place, size = _place(rng, data), rng.choice((1, 2, 3, 4, 8))
    number = (rng.choice(_NUMBERS) + rng.choice((-1, 0, 0, 1))) % (1 << 8 * size)
    return data[:place] + number.to_bytes(size, "little") + data[place + size :]


def _token(rng: random.Random, data: bytes, _: bytes) -> bytes:
    place = _place(rng, data)
    return data[:place] + rng.choice(_TOKENS) + data[place + rng.choice((0, 1, 4)) :]


def _digits(rng: random.Random, data: bytes, _: bytes) -> bytes:
    """Another number in the place of one of the text's."""
    places = [place for place in range(len(data)) if data[place : place + 1].isdigit()]
    if not places:
        return data
    begin = end = rng.choice(places)
    while end < len(data) and data[end : end + 1].isdigit():
        end += 1
    return data[:begin] + str(rng.choice(_NUMBERS) + rng.choice((-1, 0, 1))).encode() + data[end:]


_CHANGES: tuple[Callable[[random.Random, bytes, bytes], bytes], ...] = (
    _flip, _flip, _set, _cut, _drop, _repeat, _splice, _number, _token, _digits,
)  # fmt: skip


def _place(rng: random.Random, data: bytes) -> int:
    """Anywhere, but more often near the begin, where the structure is."""
    return min(rng.randrange(len(data) + 1), rng.choice((len(data), len(data), 32)))


def spoil_document(rng: random.Random, document: Any, strings: Sequence[str]) -> bytes:
    """JSON that parses: one to three of its values, or of its keys, are others."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice((1, 1, 2, 3))):
        nodes = list(_nodes(document))
        if not nodes:
            break
        holder, key = rng.choice(nodes)
        value = _odd_value(rng, holder[key], strings)
        kind = rng.random()
        if kind < 0.1:
            del holder[key]
        elif kind < 0.25 and isinstance(holder, dict):
            holder[rng.choice((*_STRINGS, *strings))] = holder.pop(key)
        else:
            holder[key] = value
    return json.dumps(document).encode()


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document, as its holder and its key."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found += [(value, key), *_nodes(value[key])]
    return found


def _odd_value(rng: random.Random, value: Any, strings: Sequence[str]) -> Any:
    if isinstance(value, bool) and rng.random() < 0.5:
        return not value
    if isinstance(value, int) and rng.random() < 0.6:
        return rng.choice((value + 1, value - 1, -value, value * 2, *_NUMBERS, 10**30))
    if isinstance(value, str) and rng.random() < 0.6:
        return rng.choice((*_STRINGS, *strings))
    if isinstance(value, list) and rng.random() < 0.5:
        return rng.choice((value[:-1], value + value, value[::-1], []))
    return rng.choice((None, True, 0, -1, 1.5, float("inf"), float("nan"), "x", [], [[]], {}, {"x": 1}, [None], 2**63))
