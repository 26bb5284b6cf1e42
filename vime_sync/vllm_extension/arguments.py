"""The arguments of a call, as trainers and leaders send them. Raises UsageError for what cannot be meant."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from vime_sync.errors import UsageError
from vime_sync.local.paths import LocalPaths, local_paths

_LATEST = "latest"
_MAX_DIGITS = 18
_MAX_SHOWN = 200


def local(value: Any) -> LocalPaths:
    return local_paths(_directory("local_checkpoint_dir", value))


def optional_directory(name: str, value: Any) -> Path | None:
    return None if value is None else _directory(name, value)


def _directory(name: str, value: Any) -> Path:
    """Absolute: a worker's working directory is nobody's choice."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text.startswith("/") or "\0" in text:
        raise _wrong(name, value, "an absolute path")
    return Path(text)


def version(value: Any) -> int | None:
    """A number, also as text with zeros before it; None is the newest."""
    if isinstance(value, str) and value.strip() == _LATEST:
        return None
    return number(value)


def number(value: Any) -> int:
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            return int(text)
    elif type(value) is int and 0 <= value < 10**_MAX_DIGITS:
        return value
    raise _wrong("target_version", value, 'a version number or "latest"')


def seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _wrong(name, value, "a number of seconds")
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def optional_text(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _wrong(name, value, "a text")
    return value


def _wrong(name: str, value: Any, expected: str) -> UsageError:
    can_be_shown = isinstance(value, str | bool | float | None) or (
        isinstance(value, int) and abs(value) < 10**_MAX_DIGITS
    )
    given = repr(value)[:_MAX_SHOWN] if can_be_shown else f"of type {type(value).__name__}"
    return UsageError(f"{name} is {given}, expected {expected}", hint="Nothing was changed.")
