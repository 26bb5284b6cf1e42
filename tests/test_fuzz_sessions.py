"""Spoilt files by the thousand, in processes of their own with limits on memory and time: tests/hostile/sessions.py.

What is run here takes some seconds and is the same each time. `FUZZ_TIMES=100` makes every session so many times
longer, `FUZZ_FIRST=1000000` takes other seeds.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.mutation import spoil
from tests.hostile.sessions import TARGETS
from tests.hostile.target import CONTROLS

ROOT = Path(__file__).parents[1]
TIMES, FIRST = int(os.environ.get("FUZZ_TIMES", "1")), int(os.environ.get("FUZZ_FIRST", "0"))
# Seeds of each session, and outcomes that it must have met: else it proves little.
SESSIONS: dict[str, tuple[int, tuple[str, ...]]] = {
    "index": (1000, ("FormatError", "TruncatedError", "delta", "full")),
    "header": (1000, ("FormatError", "TruncatedError", "taken")),
    "frame": (1000, ("FormatError", "PayloadError", "decoding: PayloadError", "xor", "overwrite")),
    "ack": (800, ("FormatError", "TruncatedError", "taken")),
    "settings": (300, ("UsageError", "2 settings")),
    "version": (600, ("malformed", "not_ready", "lineage_mismatch", "delta", "full")),
    "pull": (105, ("malformed", "not_ready", "corrupt_payload", "checksum_mismatch", "taken")),
    "records": (8, ()),
    "apply-records": (9, ()),
    "replace-records": (6, ()),
    "flipped-records": (6, ()),
    "flipped-apply-records": (8, ()),
    "flipped-replace-records": (6, ()),
}
# For each seed: no session comes near it.
SEED_S = 2.0


def run(name: str, *arguments: str, timeout_s: float) -> tuple[int, dict[str, Any], str]:
    """Exit code, the count of outcomes, and what was said of failures."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VIME_SYNC_")}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.sessions", name, *arguments],
        capture_output=True, text=True, env=environment, timeout=timeout_s, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    return done.returncode, json.loads(lines[-1]) if lines else {}, done.stderr


@pytest.mark.parametrize("name", SESSIONS)
def test_spoilt_files_meet_nothing_but_documented_answers(name: str) -> None:
    count, outcomes = SESSIONS[name]
    arguments = ("--first", str(FIRST), "--count", str(count * TIMES))
    code, counted, failures = run(name, *arguments, timeout_s=60 + SEED_S * count * TIMES)
    assert code == 0, f"{failures[-8000:]}\n{counted}"
    assert counted["failures"] == 0
    assert sum(counted["outcomes"].values()) == count * TIMES
    missing = [outcome for outcome in outcomes if not counted["outcomes"].get(outcome)]
    assert missing == [], counted["outcomes"]


def test_every_session_is_run() -> None:
    assert SESSIONS.keys() | CONTROLS.keys() == TARGETS.keys()


def test_a_seed_spoils_the_same_way_each_time_and_each_its_own() -> None:
    right = [bytes(range(200)), b'{"a": [1, 2, 3]}' * 10]
    once = [spoil(random.Random(seed), right[0], right) for seed in range(300)]
    assert once == [spoil(random.Random(seed), right[0], right) for seed in range(300)]
    assert len(set(once)) > 250


def test_a_session_that_meets_something_else_says_its_seed() -> None:
    """The control: an outcome that nobody documented ends a session with 1, and tells how to repeat it."""
    code, counted, failures = run("broken", "--first", "7", timeout_s=60)
    assert code == 1 and counted["failures"] == 1
    assert "python -m tests.hostile.sessions broken --first 7" in failures
    assert "Traceback" in failures


@pytest.mark.parametrize("name", ["slow", "greedy"])
def test_a_session_that_hangs_or_takes_all_memory_is_ended(name: str) -> None:
    code, counted, failures = run(name, timeout_s=120)
    assert code == 1 and counted["failures"] == 1, failures
    assert {"slow": "TooSlow", "greedy": "MemoryError"}[name] in failures
