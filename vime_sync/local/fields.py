"""What the fields of our records may be: a record that parses, and whose seal fits, may still make no sense.

Pure checks of single values, each of which returns the value or raises Spoilt. Never looks at a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from vime_sync.model import IGNORED_NAMES

# What a filesystem takes.
_MOST_NAME_BYTES, _MOST_PATH_BYTES = 255, 4095
_MOST_TEXT = 4096
# Names of tensors are the publisher's: as long as a header lets them be.
_MOST_TENSOR_NAME = 100_000_000
MOST_VERSION = 10**18 - 1
_INT_64, _UINT_64 = (1 << 63) - 1, (1 << 64) - 1
_LABEL = re.compile(r"[0-9]{1,18}", re.ASCII)
_TABLE = re.compile(r"[0-9]{6,18}-[0-9a-f]{32}\.json")


class Spoilt(ValueError):
    """A record of ours is not as we write it: nothing it says counts."""


def number(value: object, least: int = 0, most: int = _INT_64) -> int:
    """An integer; True and 1.0 are none."""
    if type(value) is not int or not least <= value <= most:
        raise Spoilt(f"{value!r:.80}, expected an integer from {least} to {most}")
    return value


def file_figure(value: object) -> int:
    """Of a file's stats: times before 1970 are negative, numbers of inodes may need all of 64 bits."""
    return number(value, -_INT_64, _UINT_64)


def version_number(value: object) -> int:
    return number(value, 0, MOST_VERSION)


def version_of_label(value: object) -> int:
    """The number in the peers' `version`, a string of digits; a bare number is taken too."""
    if type(value) is str and _LABEL.fullmatch(value):
        return int(value)
    return version_number(value)


def flag(value: object) -> bool:
    if type(value) is not bool:
        raise Spoilt(f"{value!r:.80}, expected true or false")
    return value


def listing(value: object) -> list[Any]:
    if type(value) is not list:
        raise Spoilt(f"{value!r:.80}, expected a list")
    return value


def mapping(value: object) -> dict[str, Any]:
    if type(value) is not dict:
        raise Spoilt(f"{value!r:.80}, expected an object")
    return value


def text(value: object, most: int = _MOST_TEXT) -> str:
    """A string that can be written, printed and be the name of a file; names need not be UTF-8 on Linux."""
    if type(value) is not str or len(value) > most or "\0" in value:
        raise Spoilt(f"{value!r:.80}, expected a string")
    check_encodable((value,))
    return value


def text_or_none(value: object) -> str | None:
    return None if value is None else text(value)


def tensor_or_file_name(value: object) -> str:
    return text(value, _MOST_TENSOR_NAME)


def word(value: object) -> str:
    """A digest, an identity, a boot: printable ASCII in one line."""
    if type(value) is not str or len(value) > _MOST_TEXT or not value.isascii() or not value.isprintable():
        raise Spoilt(f"{value!r:.80}, expected a word")
    return value


def table_name(value: object) -> str:
    """The name of a digest table, which carries version and digest."""
    if type(value) is not str or not _TABLE.fullmatch(value):
        raise Spoilt(f"{value!r:.80}, expected the name of a digest table")
    return value


def name_inside(value: object) -> str:
    """A file's name that stays inside LOCAL and outside our records, however it is put behind LOCAL's path."""
    if type(value) is not str or not value or "\0" in value:
        raise Spoilt(f"{value!r:.80}, expected a file's name")
    check_encodable((value,))
    parts = value.split("/")
    if any(part in ("", ".", "..") or part in IGNORED_NAMES for part in parts):
        raise Spoilt(f"{value!r:.80}, expected the name of a file inside LOCAL")
    sizes = [len(part.encode("utf-8", "surrogateescape")) for part in parts]
    if max(sizes) > _MOST_NAME_BYTES or sum(sizes) + len(sizes) > _MOST_PATH_BYTES:
        raise Spoilt(f"{value!r:.80} is longer than a file's name can be")
    return value


def check_encodable(values: Iterable[str]) -> None:
    """No lone surrogates, other than those that stand for the bytes of a name that is not UTF-8. Raises Spoilt."""
    try:
        "\n".join(values).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Spoilt("a string holds a lone surrogate") from None
