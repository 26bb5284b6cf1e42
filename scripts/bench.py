"""How fast is it, against what peers do: `python scripts/bench.py --help`. The work is in `bench_command`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a file, only the folder of scripts is on the path: the package and its tools lie one above.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    runpy.run_module("scripts.bench_command", run_name="__main__")
