"""Spoilt files against parsers, codecs, records and whole commands: `python -m tests.hostile.sessions NAME`.

A session spoils right files seed by seed and looks at what becomes of them; anything but an outcome that is documented
ends it with exit code 1, the seed and the traceback. It limits its own address space and processor time, and gives each
seed a time on the clock. The last line of its output counts the outcomes.
"""

import argparse
import collections
import contextlib
import io
import json
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.hostile.limits import limit
from tests.hostile.make import FILES
from tests.hostile.target import CONTROLS, Target
from tests.hostile.target_commands import COMMANDS
from tests.hostile.target_records import RECORDS
from tests.hostile.targets import PARSERS
from vime_sync.cli import run

TARGETS: dict[str, type[Target]] = {**PARSERS, **RECORDS, **COMMANDS, **CONTROLS}
MEMORY_BYTES = 512 << 20


class TooSlow(BaseException):
    """No code under test may catch it."""


@contextlib.contextmanager
def _in_time(seed_s: float) -> Iterator[None]:
    def ring(_: int, __: FrameType | None) -> None:
        raise TooSlow(f"took more than {seed_s:g} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seed_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def play(name: str, first: int, count: int, most_failures: int, directory: Path) -> int:
    """Returns how many seeds failed; says each on standard error."""
    outcomes: collections.Counter[str] = collections.Counter()
    failures = 0
    with TARGETS[name](directory) as target:
        for seed in range(first, first + count):
            try:
                with _in_time(target.seed_s):
                    outcomes[target.play(random.Random(f"{name} {seed}"))] += 1
            except (Exception, TooSlow):
                failures += 1
                print(f"\n{name}: to repeat: python -m tests.hostile.sessions {name} --first {seed}", file=sys.stderr)
                traceback.print_exc()
                if failures >= most_failures:
                    break
    print(json.dumps({"session": name, "failures": failures, "outcomes": dict(sorted(outcomes.items()))}))
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.sessions")
    parser.add_argument("name", choices=sorted(TARGETS))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--failures", type=int, default=10, help="end after so many")
    given = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO()):  # whatever is loaded at the first use is loaded before the limit
        assert run(["inspect", str(FILES / "base")]) == 0
    limit(MEMORY_BYTES, processor_s=60 + given.count)
    with tempfile.TemporaryDirectory() as directory:
        return 1 if play(given.name, given.first, given.count, given.failures, Path(directory)) else 0


if __name__ == "__main__":
    sys.exit(main())
