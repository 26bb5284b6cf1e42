"""Rows of what does not depend on the yardstick: cores, the cost of a tensor, and checkpoints of 100k tensors."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.bench_lock import native_seconds
from scripts.bench_measure import Row, Sample, cpu, wall
from scripts.bench_settings import Settings
from scripts.bench_world import World

_HOW = "ours by the entry of `pull`, in this process, data not synced"


def core_rows(settings: Settings) -> Iterator[Row]:
    """One thread against two, and how many cores could be kept busy before the interpreter lock binds."""
    on_tmpfs = settings.tmpfs is not None
    for encoding in ("xor", "overwrite"):
        with World(
            settings.data("experts", on_tmpfs=on_tmpfs), encoding, settings.place(on_tmpfs=on_tmpfs) / "world-cores"
        ) as world:
            world.seed()
            yield _second_core(settings, world)
            world.reset()
            yield _busy_cores(world)


def _second_core(settings: Settings, world: World) -> Row:
    samples: dict[int, list[Sample]] = {1: [], 2: []}
    version = 0
    for number in range(settings.pairs + 1):
        for threads in (1, 2):
            if version == world.data.spec.versions:
                world.pull(0)
                version = 0
            version += 1
            sample = world.time_ours(version, threads)
            world.expect(version, theirs=False)
            if number:
                samples[threads].append(sample)
    parts = {"one_s": wall(samples[1]), "two_s": wall(samples[2]), "one_cpu_s": cpu(samples[1])}
    parts["two_cpu_s"] = cpu(samples[2])
    what = f"second core: one thread against two, {world.encoding}, experts"
    figure = wall(samples[1]) / wall(samples[2])
    return Row(f"second core {world.encoding}", what, figure, "x one thread", 1.85, None, True, parts, _HOW)


def _busy_cores(world: World) -> Row:
    """With one thread: CPU of the pass, less what was spent in calls that release the lock."""
    plain: list[float] = []
    native: list[float] = []
    for version in range(1, world.data.spec.versions + 1):
        if version % 2:
            plain.append(world.time_ours(version, 1).cpu_s)
        else:
            native.append(native_seconds(lambda version=version: world.pull(version, 1)))  # type: ignore[misc]
        world.expect(version, theirs=False)
    total, released = sorted(plain)[len(plain) // 2], sorted(native)[len(native) // 2]
    held = max(1e-9, total - released)
    tensors = world.data.spec.tensors
    parts = {
        "cpu_s": total,
        "released_s": released,
        "lock_held_s": held,
        "lock_held_us_per_tensor": held / tensors * 1e6,
        "blocks": tensors * -(-world.data.spec.tensor_bytes // (1 << 20)),
    }
    how = (
        "an estimate: CPU of a pass with one thread, over the part of it not spent in calls that give the lock up "
        "(those are timed in passes between); what is done once a pass counts as held"
    )
    what = f"cores that can be kept busy before the interpreter lock binds, {world.encoding}, experts"
    return Row(f"busy cores {world.encoding}", what, total / held, "cores", 32, 128, True, parts, how)


def many_rows(settings: Settings) -> Iterator[Row]:
    """Many small tensors: what each costs by the slope, and passes that have next to nothing to do."""
    data = settings.data("many")
    few, more = data.spec.touched[0], data.spec.touched[1]
    costs: list[float] = []
    idle: list[Sample] = []
    single: list[Sample] = []
    with World(data, "xor", settings.place() / "world-many") as world:
        world.seed()
        for number in range(3):
            if number:
                world.reset()
            small, large = world.time_ours(1, 1), world.time_ours(2, 1)
            costs.append((large.cpu_s - small.cpu_s) / (more - few) * 1e6)
            single.append(world.time_ours(3))
            idle.append(world.time_ours(3))
            world.expect(3, theirs=False)
        for version in range(1, 4):
            world.time_theirs(version, version)
        theirs_all, ours_all = world.time_theirs(4, 4), world.time_ours(4)
        world.expect(4)
    per_tensor = sorted(costs)[len(costs) // 2]
    size = data.spec.tensor_bytes
    what = f"fixed cost per tensor: slope of CPU with one thread from {few} to {more} tensors of {size} B"
    parts = {"slopes_us": costs, "all_tensors_ours_s": ours_all.wall_s, "all_tensors_yardstick_s": theirs_all.wall_s}
    how = f"{_HOW}; all CPU counts, so this is an upper bound of the interpreter's time"
    yield Row("cost per tensor", what, per_tensor, "us", 60, 30, False, parts, how)
    count = data.spec.tensors
    yield Row(
        "no-op", f"no-op pass over {count} tensors", wall(idle), "s", 0.3, None, False, {"cpu_s": cpu(idle)}, _HOW
    )
    yield Row(
        "one-tensor",
        f"one-tensor delta, {count} tensors",
        wall(single),
        "s",
        1.0,
        None,
        False,
        {"cpu_s": cpu(single)},
        _HOW,
    )
    settings.forget("many")
