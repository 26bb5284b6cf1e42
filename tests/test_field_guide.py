"""docs/FIELD_GUIDE.md and the tests hold one another: each row has its tests, and the guide says where they are."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "vime_sync"
GUIDE = (PACKAGE / "docs" / "FIELD_GUIDE.md").read_text(encoding="utf-8")

# Rows of the field guide that no test has to show yet, and why.
NOT_DUE = {
    "H16": "a matter of measuring, not of a test",
}


def _rows() -> dict[str, list[str]]:
    """Row of the guide -> the test files that it names."""
    lines = re.findall(r"^\| ([SVHE]\d+) \|.*\| ([^|]*) \|$", GUIDE, re.MULTILINE)
    assert len(lines) == len({row for row, _ in lines}), "a row stands in the guide twice"
    return {row: re.findall(r"`(test_\w+\.py)`", tests) for row, tests in lines}


@cache
def _tests_of_rows() -> dict[str, set[str]]:
    """Row -> the test files with a function that has the row in its name: `test_s05_...`, `test_h01_h02_...`."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                for letter, number in re.findall(r"(?<=_)([svhe])(\d\d)(?=_|$)", node.name):
                    found[f"{letter.upper()}{int(number)}"].add(path.name)
    return found


def test_the_guide_has_all_rows() -> None:
    last_rows = {"S": 21, "V": 11, "H": 21, "E": 12}
    assert _rows().keys() >= {f"{kind}{n}" for kind, last in last_rows.items() for n in range(1, last + 1)}


@pytest.mark.parametrize("row", _rows())
def test_every_row_has_its_tests_and_the_guide_leads_to_them(row: str) -> None:
    there, named = _tests_of_rows().get(row, set()), set(_rows()[row])
    if row in NOT_DUE:
        assert not there | named, f"{row} has a test now: take it out of NOT_DUE, and name the file in FIELD_GUIDE.md"
        return
    assert there, f"{row} has no test function with {row[0].lower()}{int(row[1:]):02d} in its name"
    assert named and named <= there, (
        f"FIELD_GUIDE.md leads to {sorted(named)} for {row}; its tests are in {sorted(there)}"
    )


def test_what_is_not_due_is_told_with_the_same_reason() -> None:
    told = dict(re.findall(r"^\| (\w+) \|.*\| not due: ([^|]*) \|$", GUIDE, re.MULTILINE))
    assert told == NOT_DUE


def test_no_test_or_comment_cites_a_row_that_is_not_there() -> None:
    rows = _rows().keys()
    assert _tests_of_rows().keys() <= rows
    assert rows >= NOT_DUE.keys()
    for path in sorted(PACKAGE.rglob("*.py")):
        cited = set(re.findall(r"(?:FIELD_GUIDE |\(|, )([SVHE]\d{1,2})\b", path.read_text(encoding="utf-8")))
        assert cited <= rows, f"{path.name} cites {sorted(cited - rows)}"
