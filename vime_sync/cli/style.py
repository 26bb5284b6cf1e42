"""How text looks on a terminal: tones, widths and bars; as plain text anywhere else.

A terminal gets colour unless NO_COLOR is set or TERM is dumb. What is piped has no colour and no limit of width. Text
comes from strangers' files, so it is made harmless here, before any colour is put round it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

import typer
from rich.cells import cell_len, get_character_cell_size

_DEFAULT_COLUMNS = 80
_ELLIPSIS = "..."
_BLOCKS = "▏▎▍▌▋▊▉█"


class Tone(str, enum.Enum):
    """What a text is to its reader; how it looks is up to the terminal's own colours."""

    GOOD = "good"
    CAUTION = "caution"
    BAD = "bad"
    FAINT = "faint"
    STRONG = "strong"


_LOOKS: dict[Tone, tuple[str | None, bool, bool]] = {  # colour, bold, dim
    Tone.GOOD: (typer.colors.GREEN, False, False),
    Tone.CAUTION: (typer.colors.YELLOW, False, False),
    Tone.BAD: (typer.colors.RED, True, False),
    Tone.FAINT: (None, False, True),
    Tone.STRONG: (None, True, False),
}


@dataclass(frozen=True)
class Text:
    """A piece of a line in one tone."""

    text: str
    tone: Tone | None = None


# A line, whole or in pieces.
Line = str | Sequence[str | Text]


@dataclass(frozen=True)
class Screen:
    """Where lines go: `columns` is None unless it is a terminal; `blocks` says that it can show more than ASCII."""

    columns: int | None = None
    colour: bool = False
    blocks: bool = False

    @property
    def is_terminal(self) -> bool:
        return self.columns is not None


PLAIN = Screen()


def screen_of(stream: TextIO) -> Screen:
    """What a stream can show. A stream that is no terminal, or closed, gets plain text."""
    try:
        if not stream.isatty():
            return PLAIN
    except ValueError:
        return PLAIN
    dumb = os.environ.get("TERM", "") in ("", "dumb")
    return Screen(
        _columns(stream),
        not dumb and not os.environ.get("NO_COLOR"),
        not dumb and (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8",
    )


def _columns(stream: TextIO) -> int:
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told[:6]) > 0:
        return int(told[:6])
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_COLUMNS
    except (OSError, ValueError):
        return _DEFAULT_COLUMNS


def one_line(text: str) -> str:
    """Names come from strangers' files: nothing in them may break a line or steer a terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def shown(line: Line, screen: Screen) -> str:
    """A line as the screen shows it: harmless, and in colour where that is wanted."""
    if isinstance(line, str):
        return one_line(line)
    return "".join(_painted(piece, screen) for piece in line)


def _painted(piece: str | Text, screen: Screen) -> str:
    if isinstance(piece, str):
        return one_line(piece)
    text = one_line(piece.text)
    if piece.tone is None or not screen.colour or not text.strip():
        return text
    colour, bold, dim = _LOOKS[piece.tone]
    return typer.style(text, fg=colour, bold=bold or None, dim=dim or None)


def width_of(text: str) -> int:
    """How many columns a terminal takes for it."""
    return len(text) if text.isascii() else cell_len(text)


def elided(text: str, columns: int) -> str:
    """At most that wide: what is too much goes from the middle, where names of one model differ least."""
    if width_of(text) <= columns:
        return text
    room = columns - len(_ELLIPSIS)
    if room < 2:
        return _head(text, max(0, columns))
    tail = _head(text[::-1], room // 2)[::-1]
    return _head(text, room - width_of(tail)) + _ELLIPSIS + tail


def _head(text: str, columns: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += get_character_cell_size(character)
        if used > columns:
            return text[:place]
    return text


def bar(share: float, columns: int, screen: Screen) -> str:
    """A bar for a share of 1; what is more than nothing shows."""
    share = min(1.0, max(0.0, share))
    if not screen.blocks:
        return "#" * max(round(share * columns), int(share > 0))
    eighths = max(round(share * columns * 8), int(share > 0))
    full, rest = divmod(eighths, 8)
    return _BLOCKS[-1] * full + (_BLOCKS[rest - 1] if rest else "")
