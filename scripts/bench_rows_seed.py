"""Rows of first copies: a seed alone, and a fresh host that is eight versions behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from scripts.bench_measure import Row, Sample, ratio_row, run_timed
from scripts.bench_settings import Settings
from scripts.bench_world import World, WrongBytes
from scripts.bench_yardstick import copy_base

_HOW = "ours by the entry of `pull`, in this process, into an absent directory, data not synced; source in page cache"


def seed_rows(settings: Settings) -> Iterator[Row]:
    data = settings.data("experts")
    with World(data, "xor", settings.place() / "world-seed") as world:
        yield _seed_alone(settings, world)
        yield _fresh_host(settings, world)


def _clear(world: World) -> None:
    for directory in (world.ours, world.theirs):
        shutil.rmtree(directory, ignore_errors=True)


def _seed_alone(settings: Settings, world: World) -> Row:
    theirs: list[Sample] = []
    ours: list[Sample] = []
    for number in range(settings.pairs + 1):
        _clear(world)
        first = run_timed(lambda: copy_base(world.data.base, world.theirs))
        second = world.time_ours(0)
        world.expect(0)
        if number:
            theirs.append(first)
            ours.append(second)
    what = "seed alone, hashed, against copy2, which hashes nothing"
    row = ratio_row("seed alone", what, theirs, ours, world.data.size_bytes, 1.0, 1.4, _HOW)
    row.unit = "x copy2"
    return row


def _fresh_host(settings: Settings, world: World) -> Row:
    theirs: list[Sample] = []
    ours: list[Sample] = []
    last = world.data.spec.versions
    written = 0

    def fold() -> None:
        nonlocal written
        written = world.pull(last).bytes_written

    for _ in range(settings.pairs):
        _clear(world)
        copied = run_timed(lambda: copy_base(world.data.base, world.theirs))
        replayed = world.time_theirs(1, last)
        theirs.append(Sample(copied.wall_s + replayed.wall_s, copied.cpu_s + replayed.cpu_s))
        ours.append(run_timed(fold))
        world.expect(last)
        extra = sum(path.stat().st_size for path in world.data.base.iterdir() if not path.name.endswith("safetensors"))
        if written != world.data.size_bytes + extra:
            raise WrongBytes(f"a fresh host wrote {written} bytes, expected {world.data.size_bytes + extra}: each once")
    what = f"fresh host: seed and {last} deltas, against seed, then replay"
    row = ratio_row("fresh host", what, theirs, ours, world.data.size_bytes, 1.8, 3.0, _HOW)
    row.parts["bytes_written_per_byte"] = written / (world.data.size_bytes + extra)
    return row
