"""The bench's command line: which rows, on which filesystems, how often; a table, and JSON for programs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from scripts.bench_measure import Row, load_average
from scripts.bench_rows_apply import apply_rows, safety_rows
from scripts.bench_rows_process import daemon_rows, kill_rows, memory_rows
from scripts.bench_rows_scale import core_rows, many_rows
from scripts.bench_rows_seed import seed_rows
from scripts.bench_settings import Settings, working_directories
from scripts.bench_world import WrongBytes

GROUPS: dict[str, Callable[[Settings], Iterator[Row]]] = {
    "apply": apply_rows,
    "safety": safety_rows,
    "seed": seed_rows,
    "cores": core_rows,
    "many": many_rows,
    "memory": memory_rows,
    "kill": kill_rows,
    "daemon": daemon_rows,
}
_SCHEMA = "vime-sync/bench/1"


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    rows: list[Row] = []
    started = time.monotonic()
    tmpfs = None if options.tmpfs in ("", "none") else Path(options.tmpfs)
    with working_directories(options.directory, tmpfs) as (disk, memory):
        settings = Settings(disk, memory, 2 if options.quick else options.pairs, options.quick, _say)
        try:
            for name in options.rows or GROUPS:
                for row in GROUPS[name](settings):
                    rows.append(row)
                    print(line(row), flush=True)
        except WrongBytes as problem:
            print(f"WRONG BYTES: {problem}", file=sys.stderr)
            return 1
    print(f"{len(rows)} rows in {time.monotonic() - started:.0f} s; every result was byte for byte what it has to be")
    if options.json:
        options.json.write_text(json.dumps(document(rows, quick=options.quick), indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench.py",
        description="Ours against the way peers do it, in turn in one run: medians, wall and CPU. Times are told and "
        "never asserted; wrong bytes end it with 1. The whole takes about twelve minutes on two cores, 6 GB of disk "
        "and as much memory.",
    )
    parser.add_argument("--rows", nargs="+", choices=sorted(GROUPS), help="only these groups of rows")
    parser.add_argument("--pairs", type=int, default=5, help="timed pairs per row (default 5)")
    parser.add_argument("--directory", type=Path, default=Path("/tmp"), help="where the set on the disk goes")
    parser.add_argument("--tmpfs", default="/dev/shm", help="where the set in memory goes; 'none': leave it out")
    parser.add_argument("--json", type=Path, help="write every figure to this file too")
    parser.add_argument("--quick", action="store_true", help="tiny data: only shows that every row can be run")
    return parser


def _say(text: str) -> None:
    print(f"  ({text} load {load_average():.1f})", flush=True)


def line(row: Row) -> str:
    """One row of the table: figure, what is wanted, whether it is reached, wall and CPU of either side."""
    aim = ""
    if row.at_least is not None:
        mark = "ok" if row.is_reached else "MISSED"
        aim = f"{'>=' if row.higher_is_better else '<='} {row.at_least:g} {mark}"
    times = ""
    if "ours_s" in row.parts:
        other = "yardstick" if "yardstick_s" in row.parts else "unsafe"
        times = (
            f"ours {row.parts['ours_s']:.3f} s wall {row.parts['ours_cpu_s']:.3f} CPU, {other} "
            f"{row.parts[f'{other}_s']:.3f} wall {row.parts[f'{other}_cpu_s']:.3f} CPU"
        )
    return f"{row.name:<32} {row.figure:>9.3g} {row.unit:<17} {aim:<14} load {row.load:.1f}  {times}".rstrip()


def document(rows: Sequence[Row], *, quick: bool) -> dict[str, object]:
    machine = {"cores": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}
    listed = [{**asdict(row), "reached": row.is_reached} for row in rows]
    return {"schema": _SCHEMA, "quick": quick, "machine": machine, "rows": listed}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
