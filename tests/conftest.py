"""What all tests share: where the known-right streams lie, and skips that nobody can overlook."""

from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The directory of streams with known-right results."""
    return FIXTURES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every skipped test and why, whatever the verbosity: a skip is a hole in what was proved."""
    skipped = terminalreporter.stats.get("skipped", [])
    if skipped:
        terminalreporter.section("SKIPPED: NOT PROVED IN THIS RUN", sep="!", red=True, bold=True)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"{report.nodeid}: {reason}")
