"""Tables of a Markdown document, as rows of cells."""

import re


def section(document: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its kind."""
    return document.split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]


def tables(document: str, heading: str) -> list[list[list[str]]]:
    """All tables of a section, without their heads."""
    blocks = re.findall(r"(?:^\|.*\n?)+", section(document, heading), re.MULTILINE)
    return [[_cells(row) for row in block.splitlines()[2:]] for block in blocks]


def table(document: str, heading: str) -> list[list[str]]:
    """The first table of a section."""
    return tables(document, heading)[0]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().removeprefix("|").removesuffix("|").split("|")]
