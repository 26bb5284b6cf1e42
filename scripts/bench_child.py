"""A process of its own, for rows that measure whole processes: `python -m scripts.bench_child` and the CLI.

As a program it makes one pass and prints, as JSON, its resident memory before the pass and at its highest during it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from vime_sync.local.paths import local_paths
from vime_sync.materialize.context import Context
from vime_sync.reconcile import Request, reconcile

_ROOT = Path(__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """Without settings of ours, and without numpy's own threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    path = os.pathsep.join((str(_ROOT), kept["PYTHONPATH"])) if "PYTHONPATH" in kept else str(_ROOT)
    return {**kept, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def start_command(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """`vime-sync ARGUMENTS` as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "vime_sync", *map(str, arguments)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def run_command(*arguments: str | Path) -> None:
    code = start_command(*arguments).wait()
    if code:
        raise RuntimeError(f"vime-sync {arguments[0]} ended with {code}")


def peak_of_pass(share: Path, base: Path, local: Path, version: int, threads: int) -> dict[str, int]:
    """`before_bytes` and `peak_bytes` of a child that makes this pass."""
    arguments = [str(share), str(base), str(local), str(version), str(threads)]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench_child", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM")}


def main(arguments: list[str]) -> dict[str, Any]:
    share, base, local, version, threads = arguments
    context = Context(local_paths(Path(local)), int(threads))
    before = _status()["VmRSS"]
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    reconcile(context, Request(Path(share), Path(base), int(version), sync_later=True))
    return {"before_bytes": before, "peak_bytes": _status()["VmHWM"]}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
