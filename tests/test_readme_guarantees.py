"""Each row of the README's "When something goes wrong" names its proof, and the exit code that the proof names too."""

import re

import pytest

from tests.readme_examples import README, ROOT
from tests.readme_tables import table, tables
from vime_sync.cli.application import EXIT_CODES

FIELD_GUIDE = (ROOT / "vime_sync" / "docs" / "FIELD_GUIDE.md").read_text(encoding="utf-8")
FIELD_ROWS = {
    row[0]: row for heading in ("The source", "Versions and runs", "The host", "Engines")
    for row in table(FIELD_GUIDE, f"## {heading}")
}  # fmt: skip
HEADING = "## When something goes wrong"
ROWS = [row for found in tables(README, HEADING) for row in found]
# What must be there, by a word of the row and the code that it ends with.
NEEDED = {
    "killed at any moment": "128+n", "power loss": "", "disk full": "21", "corrupt delta": "11, 12",
    "restarted trainer": "", "an engine is down": "30", "share is unmounted": "10", "two processes": "20",
    "wrong byte": "22", "still being written": "10", "another base": "13", "not ours": "23",
}  # fmt: skip
_FIELD_ROW = re.compile(r"\b[SVHE]\d+\b")
_TEST_FILE = re.compile(r"`(test_\w+\.py)`")


def test_the_table_has_what_operators_fear() -> None:
    for words, code in NEEDED.items():
        (row,) = [row for row in ROWS if words in row[0]]
        assert row[2] == code, row[0]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_names_a_proof_and_the_codes_are_those_of_the_proof(row: list[str]) -> None:
    what, _, codes, proof = row
    cited, files = _FIELD_ROW.findall(proof), _TEST_FILE.findall(proof)
    assert cited or files, f"{what}: nothing shows it"
    assert ", ".join([*cited, *(f"`{file}`" for file in files)]) == proof
    for name in cited:
        assert "not due" not in FIELD_ROWS[name][3], f"{name} is shown by no test"
        files += _TEST_FILE.findall(FIELD_ROWS[name][3])
    tests = [(ROOT / "tests" / file).read_text(encoding="utf-8") for file in files]
    assert tests and all("def test_" in text for text in tests)
    said = " ".join(FIELD_ROWS[name][2] for name in cited) + " ".join(tests)
    for code in re.findall(r"(?<!\+)\b\d+\b(?!\+)", codes):
        assert int(code) in EXIT_CODES
        assert re.search(rf"\b{code}\b", said), f"{what}: {code} is named neither there nor in {files}"


def test_a_code_in_the_text_of_a_row_is_its_own() -> None:
    """Codes stand in their column, and nowhere else where they could drift."""
    for what, text, _, _ in ROWS:
        assert not re.search(r"\((\d\d)\)", text), what


def test_what_no_test_shows_is_said() -> None:
    section = README.split(f"\n{HEADING}\n", 1)[1].split("\n## ", 1)[0]
    (sentence,) = re.findall(r"Not shown by any test: [^.]*\.", section)
    not_due = {name for name, row in FIELD_ROWS.items() if "too large for the suite" in row[3]}
    assert all(f"({name})" in sentence for name in not_due)
    assert "(H15)" in sentence  # its tests lower the limit
