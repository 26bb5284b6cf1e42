"""Is each safeguard held by a test? Each is taken out of a copy of the package, and a test must fail there.

`python -m tests.mutations [--only WORD]... [--list]`. Works in a temporary copy, never in the checkout. Prints one line
a mutation: which test caught it, or NOT CAUGHT; ends with 1 when one was not. That the list fits the code is part of
the test suite (`test_mutations.py`); to run all of it takes some minutes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutation_list import MUTATIONS
from tests.mutation_values import Mutation

ROOT = Path(__file__).parents[1]
_COPIED = ("vime_sync", "tests", "scripts", "pyproject.toml", "README.md")
_TIMEOUT_S = 600
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Verdict:
    """`by` is the first test that failed; None where all passed. `code` is pytest's."""

    mutation: Mutation
    by: str | None
    code: int
    seconds: float


def mutate(mutation: Mutation, root: Path) -> None:
    """Take the safeguard out of the package below `root`. Raises ValueError where the code is another by now."""
    path = root / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has {text.count(mutation.old)} of what is to be replaced")
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")


def judge(mutation: Mutation) -> Verdict:
    """Run the named tests against a copy without the safeguard."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vime-sync-mutation-") as directory:
        root = Path(directory) / "copy"
        root.mkdir()
        for name in _COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(ROOT / name, root / name, ignore=ignored)
            else:
                shutil.copyfile(ROOT / name, root / name)
        mutate(mutation, root)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n0", "-rfE"]
        command += ["--basetemp", str(Path(directory) / "work"), *mutation.tests.split(" ")]
        settings = {**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(
            command, cwd=root, env=settings, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    found = _FAILED.search(run.stdout)
    return Verdict(mutation, found[1] if found else None, run.returncode, time.monotonic() - started)


def describe(verdict: Verdict) -> str:
    if verdict.by is None:
        outcome = "NOT CAUGHT" if verdict.code == 0 else f"pytest ended with {verdict.code}"
    else:
        outcome = f"caught by {verdict.by}"
    return f"{verdict.mutation.name}: {outcome} ({verdict.seconds:.0f} s)"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="those whose name has one of these")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTATIONS if not options.only or any(word in each.name for word in options.only)]
    if options.list:
        print("\n".join(f"{each.name}: {each.tests}" for each in chosen))
        return 0
    missed = 0
    for mutation in chosen:
        verdict = judge(mutation)
        missed += verdict.by is None
        print(describe(verdict), flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
