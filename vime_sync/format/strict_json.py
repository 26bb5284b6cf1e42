"""JSON from strangers: bounded, UTF-8 only, no duplicate keys, no NaN, no endless nesting (FIELD_GUIDE S14)."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from vime_sync.format.problems import FormatError, TruncatedError

# Below this many bytes no document can cost memory worth a check.
_DENSITY_CHECK_BYTES = 1 << 20
# A real header spends 12 bytes or more per colon and 8 or more per comma; a hostile one of 100 MB could
# otherwise cost gigabytes of small objects.
_MIN_BYTES_PER_COLON = 8
_MIN_BYTES_PER_COMMA = 6


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise FormatError(f"the key {key[:80]!r} stands twice in one JSON object")
            seen.add(key)
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise FormatError(f"{name} is not JSON")


def parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """Parse one JSON object.

    Raises TruncatedError when the text ends in the middle, FormatError for anything else that is wrong.
    """
    if not raw.strip(b" \t\r\n"):
        raise TruncatedError(f"{what} is empty")
    if len(raw) > _DENSITY_CHECK_BYTES and (
        raw.count(b":") * _MIN_BYTES_PER_COLON > len(raw) or raw.count(b",") * _MIN_BYTES_PER_COMMA > len(raw)
    ):
        raise FormatError(f"{what} packs more JSON items into {len(raw)} bytes than any real one")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise FormatError(f"{what} is not UTF-8 at byte {problem.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
    except RecursionError:
        raise FormatError(f"{what} nests too deeply") from None
    except json.JSONDecodeError as problem:
        kind = TruncatedError if problem.pos >= len(text.rstrip()) or "Unterminated" in problem.msg else FormatError
        raise kind(f"{what} is not JSON: {problem.msg} at character {problem.pos}") from None
    except FormatError as problem:
        raise FormatError(f"{what}: {problem}") from None
    except ValueError as problem:  # an integer of thousands of digits
        raise FormatError(f"{what} is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{what} is a JSON {type(value).__name__}, expected an object")
    if "\\ud" in text or "\\uD" in text:
        _refuse_lone_surrogates(value, what)
    return value


def _refuse_lone_surrogates(value: dict[str, Any], what: str) -> None:
    """A lone surrogate escape parses, but cannot be a file name, be hashed or be printed."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError(f"{what} holds a lone surrogate escape") from None


def string_map(value: object, what: str) -> dict[str, str]:
    """Check that a JSON value is an object of strings."""
    if not isinstance(value, dict):
        raise FormatError(f"{what} is a JSON {type(value).__name__}, expected an object of strings")
    for key, item in value.items():
        if not isinstance(item, str):
            raise FormatError(f"{what}[{key[:80]!r}] is a JSON {type(item).__name__}, expected a string")
    return value
