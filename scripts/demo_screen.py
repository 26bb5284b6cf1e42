"""What the demo prints: plain text of at most 80 columns, colour only on a terminal and never with NO_COLOR."""

from __future__ import annotations

import os
import sys
import textwrap

_WIDTH = 80
_LABEL = 11
_BOLD, _DIM, _GREEN, _RED = "1", "2", "32", "31"


class Screen:
    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def title(self, text: str) -> None:
        self._print(self._paint(text, _BOLD))
        self._print("=" * len(text))

    def heading(self, text: str) -> None:
        self.blank()
        self._print(self._paint(text, _BOLD))

    def blank(self) -> None:
        self._print("")

    def note(self, text: str) -> None:
        for line in textwrap.wrap(text, _WIDTH - 2):
            self._print("  " + line)

    def fact(self, label: str, text: str) -> None:
        """A labelled line; what is too long for one goes on below its beginning."""
        lines = textwrap.wrap(text, _WIDTH - 2 - _LABEL) or [""]
        self._print(f"  {self._paint(label.ljust(_LABEL), _DIM)}{lines[0]}")
        for line in lines[1:]:
            self._print(" " * (2 + _LABEL) + line)

    def command(self, text: str) -> None:
        self._print(f"  $ {self._paint(text, _BOLD)}")

    def output(self, text: str, *, failed: bool = False) -> None:
        """What a command printed, set apart; long lines are broken, never cut."""
        for line in text.splitlines():
            indent = " " * (len(line) - len(line.lstrip()))
            for part in textwrap.wrap(line, _WIDTH - 4, subsequent_indent=indent + "  ") or [""]:
                self._print("    " + (self._paint(part, _RED) if failed else part))

    def proof(self, text: str, *, right: bool) -> None:
        verdict = self._paint("OK", _GREEN) if right else self._paint("WRONG", _RED)
        self._print(f"  {self._paint('proof'.ljust(_LABEL), _DIM)}{text}  {verdict}")

    def rows(self, lines: list[str]) -> None:
        for line in lines:
            self._print("  " + line)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    @staticmethod
    def _print(line: str) -> None:
        print(line, flush=True)
