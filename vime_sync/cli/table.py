"""Tables: columns as wide as what stands in them; on a terminal as wide as that at most.

Where it is too narrow, what can be done without is left out, then the texts that can bear it are cut in their middle.
What is piped is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vime_sync.cli.style import Line, Screen, Text, Tone, bar, elided, one_line, width_of

_GAP = "  "
_BAR_COLUMNS = 16
# A text that is cut shorter than that says nothing any more.
_BARELY_COLUMNS = 8


@dataclass(frozen=True)
class Column:
    """On a terminal texts may be cut, to `least` columns while others can go: the highest `rank` first, 0 never."""

    title: str = ""
    right: bool = False
    least: int | None = None
    rank: int = 0


@dataclass(frozen=True)
class Bar:
    """How much of the most that is, from 0 to 1: drawn on a terminal, nothing elsewhere."""

    share: float


Cell = str | Text | Bar


@dataclass(frozen=True)
class Table:
    """Every row has one cell for each column. Without any title there is no head. `indent` stands before each line."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    indent: str = "  "


def table_lines(table: Table, screen: Screen) -> list[Line]:
    columns = list(table.columns)
    if any(column.title for column in columns):
        head: Sequence[Cell] = [Text(column.title, Tone.FAINT) for column in columns]
        rows = [head, *table.rows]
    else:
        rows = list(table.rows)
    texts = [[_text(cell, screen) for cell in row] for row in rows]
    widths = [max((width_of(row[place]) for row in texts), default=0) for place in range(len(columns))]
    shown = [place for place in range(len(columns)) if widths[place]]
    if screen.columns is not None:
        room = screen.columns - width_of(table.indent)
        shown = _that_fit(columns, widths, shown, room)
        _shrink(columns, widths, shown, room)
    lines: list[Line] = []
    for row, row_texts in zip(rows, texts, strict=True):
        lines.append(_line(row, row_texts, columns, widths, shown, table.indent))
    return lines


def _text(cell: Cell, screen: Screen) -> str:
    if isinstance(cell, Bar):
        return bar(cell.share, _BAR_COLUMNS, screen) if screen.is_terminal else ""
    return one_line(cell if isinstance(cell, str) else cell.text)


def _needed(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[place] for place in shown) + len(_GAP) * (len(shown) - 1)


def _that_fit(columns: Sequence[Column], widths: Sequence[int], shown: list[int], room: int) -> list[int]:
    """Columns that can be done without go while even texts cut as short as may be do not make room."""
    least = [_least(columns[place], width, None) for place, width in enumerate(widths)]
    while _needed(least, shown) > room:
        spare = max(shown, key=lambda place: columns[place].rank)
        if not columns[spare].rank:
            break
        shown = [place for place in shown if place != spare]
    return shown


def _shrink(columns: Sequence[Column], widths: list[int], shown: Sequence[int], room: int) -> None:
    """Down to what each column wants at least, and where even that is too much, as far as it takes."""
    for limit in (None, _BARELY_COLUMNS):
        while (excess := _needed(widths, shown) - room) > 0:
            spare = {place: widths[place] - _least(columns[place], widths[place], limit) for place in shown}
            widest = max(spare, key=lambda place: spare[place], default=None)
            if widest is None or spare[widest] <= 0:
                break
            others = max((width for place, width in spare.items() if place != widest), default=0)
            widths[widest] -= min(excess, max(1, spare[widest] - others))


def _least(column: Column, width: int, limit: int | None) -> int:
    if column.least is None:
        return width
    return min(width, column.least if limit is None else limit)


def _line(
    row: Sequence[Cell],
    texts: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    shown: Sequence[int],
    indent: str,
) -> Line:
    pieces: list[str | Text] = [indent]
    for number, place in enumerate(shown):
        text = elided(texts[place], widths[place])
        pad = " " * (widths[place] - width_of(text))
        cell = row[place]
        piece = Text(text, cell.tone) if isinstance(cell, Text) else text
        gap = _GAP if number else ""
        last = number == len(shown) - 1
        pieces += [gap + pad, piece] if columns[place].right else [gap, piece, "" if last else pad]
    return _without_trailing_blanks(pieces)


def _without_trailing_blanks(pieces: list[str | Text]) -> Line:
    while pieces and not (pieces[-1] if isinstance(pieces[-1], str) else pieces[-1].text).strip():
        pieces.pop()
    if pieces and isinstance(pieces[-1], str):
        pieces[-1] = pieces[-1].rstrip()
    return pieces
