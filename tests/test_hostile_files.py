"""The hostile files of tests/hostile: each is refused as its README says, within limits, without a trace.

A host at the version before meets all of them; `inspect` and a fresh host meet some, and all with `FUZZ_TIMES=2`.
"""

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import everything
from tests.hostile.limits import EXHAUSTED, Limited
from tests.hostile.make import CASES, FILES, HERE, collection, lay_out
from tests.hostile.parts import Case, contents
from tests.toolkit import STATE_DIRECTORY, Result

MOST_BYTES, MOST_BYTES_TOGETHER = 64 << 10, 1 << 20
# Says who held the lock last: it is written by every command that may write at all.
HOLDER = ("lock", "holder.json")
REFUSED = [case for case in CASES if case.pull]
TAKEN = [case for case in CASES if not case.pull]
# What names may take in an answer, whatever a file says.
MOST_ANSWER_BYTES = 256 << 10


def _some(cases: Sequence[Case], every: int) -> Sequence[Case]:
    return cases if int(os.environ.get("FUZZ_TIMES", "1")) > 1 else cases[::every]


INSPECTED, FRESH = _some(CASES, 6), _some(REFUSED, 7)


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with Limited() as helper:
        yield helper


class Host:
    """A share whose version 2 is replaced for each story, and a LOCAL that each refusal must leave as it was."""

    def __init__(self, limited: Limited, root: Path) -> None:
        self._limited = limited
        self.share, self.local = root / "share", root / "local"
        shutil.copytree(FILES / "first", self.share / "weight_v000001")
        assert self.pull(self.local, 1).code == 0

    @contextmanager
    def published(self, case: Case) -> Iterator[Path]:
        """The case is version 2, and what stands on the share is never changed."""
        directory = self.share / "weight_v000002"
        try:
            lay_out(case.name, directory)
            before = everything(self.share)
            yield directory
            assert everything(self.share) == before
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def pull(self, local: Path, version: int = 2) -> Result:
        places = ("--shared", self.share, "--local", local, "--base", FILES / "base")
        return self._limited.vime("pull", *places, "--version", str(version), "--json")


@pytest.fixture(scope="module")
def host(limited: Limited, tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(limited, tmp_path_factory.mktemp("host"))


def _expect(result: Result, code: int, error_id: str) -> None:
    """An answer as the contract words it, and no crash."""
    found = (result.code, result.error.get("id", ""))
    assert found == (code, error_id), f"{found}: {result.stderr[-2000:]}"
    assert "Traceback" not in result.stderr
    assert len(result.stdout) + len(result.stderr) < MOST_ANSWER_BYTES
    if code:
        assert result.error["code"] == code
        assert result.stdout == ""
        assert result.error["hint"] and "\n" not in result.error["message"]


def _expect_version(local: Path, version: int) -> None:
    held = {name: tensor.data for name, tensor in toolkit.read_checkpoint(local).items()}
    assert held == contents(version)


def _untouched(local: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, time of change and size of everything in LOCAL: a pass that was undone shows, too."""
    paths = (path for path in sorted(local.rglob("*")) if path.name not in HOLDER and path != local / STATE_DIRECTORY)
    stats = {str(path.relative_to(local)): path.lstat() for path in paths}
    return {name: (stat.st_ino, stat.st_ctime_ns, stat.st_size) for name, stat in stats.items()}


@pytest.mark.parametrize("case", INSPECTED, ids=[case.name for case in INSPECTED])
def test_inspect_says_what_is_wrong(case: Case, host: Host, limited: Limited) -> None:
    with host.published(case) as directory:
        result = limited.vime("inspect", directory, "--json")
        stream = limited.vime("inspect", host.share, "--json")
    _expect(result, case.inspect_code, case.id if case.inspect_code else "")
    assert (stream.code, len(stream.document.get("versions", ()))) == (0, 2), stream.stderr[-2000:]
    found = stream.document["versions"][1]
    assert found["ready"] is (case.inspect_code == 0)
    assert case.inspect_code == 0 or found["reason"].startswith(f"{case.id}: ")


@pytest.mark.parametrize("case", REFUSED, ids=[case.name for case in REFUSED])
def test_a_host_at_the_version_before_refuses_it(case: Case, host: Host) -> None:
    before = _untouched(host.local)
    with host.published(case):
        result = host.pull(host.local)
    _expect(result, case.pull, case.id)
    _expect_version(host.local, 1)
    if not case.found_late:
        assert _untouched(host.local) == before


@pytest.mark.parametrize("case", FRESH, ids=[case.name for case in FRESH])
def test_a_fresh_host_refuses_it(case: Case, host: Host, tmp_path: Path) -> None:
    """Not a file stands there afterwards, and nothing was built aside unless it had to be decoded."""
    local = tmp_path / "local"
    with host.published(case):
        result = host.pull(local)
    _expect(result, case.pull, case.id)
    assert toolkit.snapshot(local) == {}
    assert not (local / STATE_DIRECTORY / "state.json").exists()
    assert case.found_late or not (local / STATE_DIRECTORY / "aside").exists()


@pytest.mark.parametrize("case", TAKEN, ids=[case.name for case in TAKEN])
def test_what_only_looks_wrong_is_taken(case: Case, host: Host, tmp_path: Path) -> None:
    with host.published(case):
        for place, version in (("late", 1), ("late", 2), ("fresh", 2)):
            _expect(host.pull(tmp_path / place, version), 0, "")
            _expect_version(tmp_path / place, version)


def test_the_files_are_what_the_program_writes() -> None:
    """Byte for byte, and nothing else lies there: `python -m tests.hostile.make`."""
    stored = {str(path.relative_to(HERE)): path.read_bytes() for path in FILES.rglob("*") if path.is_file()}
    stored["README.md"] = (HERE / "README.md").read_bytes()
    made = collection()
    assert stored.keys() == made.keys()
    assert [name for name in made if stored[name] != made[name]] == []


def test_the_files_are_small_and_told_once() -> None:
    sizes = {name: len(content) for name, content in collection().items() if name != "README.md"}
    assert max(sizes.values()) < MOST_BYTES
    assert sum(sizes.values()) < MOST_BYTES_TOGETHER
    assert len({case.name for case in CASES}) == len(CASES)
    headings = {(case.name.partition("-")[0], case.tries) for case in CASES}
    assert len(headings) == len(CASES)


def test_the_limits_are_met_by_what_needs_too_much(limited: Limited) -> None:
    """The control: limits that nothing could meet would prove nothing."""
    assert limited.exhaust("memory").code == EXHAUSTED
    assert limited.exhaust("time").code == -signal.SIGXCPU
