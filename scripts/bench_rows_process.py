"""Rows of whole processes: peak memory, a daemon that idles, is woken and tells an engine, a kill and its healing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts.bench_child import peak_of_pass, run_command, start_command
from scripts.bench_engine import Engine
from scripts.bench_measure import Row, run_timed
from scripts.bench_settings import Settings
from scripts.bench_world import World

_MIB = 1 << 20
_PATIENCE_S = 60.0


def memory_rows(settings: Settings) -> Iterator[Row]:
    """The largest share of its allowance that any of these passes took."""
    shares = {}
    parts = {}
    cases = (
        ("experts", "xor", 1, 2),
        ("experts", "xor", 1, 8),
        ("experts", "xor", 8, 2),
        ("experts", "overwrite", 1, 2),
        ("experts", "overwrite", 8, 8),
        ("dense", "xor", 1, 2),
        ("dense", "overwrite", 8, 2),
    )
    for set_name, encoding, deltas, threads in cases:
        data = settings.data(set_name)
        with World(data, encoding, settings.place() / "world-memory", threads) as world:
            world.pull(0)
            found = peak_of_pass(world.share, data.base, world.ours, deltas, threads)
            world.expect(deltas, theirs=False)
        allowed = 64 * _MIB + threads * 4 * _MIB + (threads * deltas * 2 * _MIB)
        title = f"{set_name} {encoding} {deltas} deltas {threads} threads"
        above = found["peak_bytes"] - found["before_bytes"]
        parts[title] = f"{above / _MIB:.0f} of {allowed / _MIB:.0f} MiB"
        shares[title] = above / allowed
    worst = max(shares, key=lambda title: shares[title])
    how = "resident high-water of a process that makes one pass, above what it holds before"
    what = f"peak memory against 64 MiB + 4 per thread + 2 per thread and delta; worst: {worst}"
    yield Row("memory", what, shares[worst], "of the allowance", 1.0, None, False, parts, how)


def kill_rows(settings: Settings) -> Iterator[Row]:
    """A pull killed when about half of the blocks are recorded, and the next one: against one that is let be."""
    data = settings.data("experts")
    healed: list[float] = []
    whole: list[float] = []
    with World(data, "xor", settings.place() / "world-kill") as world:
        arguments = ("pull", "--shared", world.share, "--base", data.base, "--local", world.ours, "--version")
        world.pull(0)
        for number in range(min(3, settings.pairs)):
            if number:
                world.pull(0)
            whole.append(run_timed(lambda: run_command(*arguments, "1")).wall_s)
            world.pull(0)
            _kill_half_way(world, arguments)
            healed.append(run_timed(lambda: run_command(*arguments, "1")).wall_s)
            world.expect(1, theirs=False)
    figure = sorted(healed)[len(healed) // 2] / sorted(whole)[len(whole) // 2]
    what = "kill in the middle, then heal: the healing run against an uninterrupted one"
    parts = {"healing_s": healed, "uninterrupted_s": whole}
    how = "`vime-sync pull` as a process, killed by SIGKILL when about half of its journal is written; syncs its data"
    yield Row("kill and heal", what, figure, "x uninterrupted", 1.5, None, False, parts, how)


def _kill_half_way(world: World, arguments: tuple[str | Path, ...]) -> None:
    """Half of the journal: 40 bytes a block at most, so a pass is never over before."""
    journal = world.ours / ".weight_sync" / "journal"
    blocks = world.data.spec.tensors * -(-world.data.spec.tensor_bytes // _MIB)
    process = start_command(*arguments, "1")
    while process.poll() is None and _size(journal) < blocks * 40 // 2:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def daemon_rows(settings: Settings) -> Iterator[Row]:
    """A daemon with a tiny model: its CPU while nothing happens, and how soon a new version reaches the engine."""
    data = settings.data("tiny")
    root = settings.place() / "world-daemon"
    staged = root / "to-publish"
    share = root / "share"
    shutil.copytree(data.share("xor"), staged)
    share.mkdir()
    noticed: list[float] = []
    told: list[float] = []
    with Engine() as engine:
        local = root / "local"
        arguments = ("watch", "--shared", share, "--base", data.base, "--local", local, "--poll-interval", "1")
        process = start_command(*arguments, "--engine", f"webhook={engine.url}")
        try:
            engine.wait_for(0)
            for version in range(1, data.spec.versions + 1):
                _rest(0.3 if settings.quick else 1.7)
                intent = local / ".weight_sync" / "intent.json"
                begun = _publish(staged, share, version)
                noticed.append(_until(intent.exists) - begun)
                told.append(engine.wait_for(version) - begun)
            share_of_core = _idle_share(process, 3.0 if settings.quick else 30.0)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    shutil.rmtree(root)
    how = "`vime-sync watch` as a process, on the disk, polls every second, share on a local filesystem"
    middle = sorted(noticed)[len(noticed) // 2]
    yield Row("idle", "idle daemon at 1 s polls", share_of_core * 100, "% of a core", 0.3, None, False, {}, how)
    what = "a version is noticed, locally: index in place until the intent of the pass is there, planning included"
    yield Row("noticed", what, middle, "s", 0.1, None, False, {"each_s": noticed}, how)
    middle = sorted(told)[len(told) // 2]
    what = f"version complete on the share to engine told, {data.size_bytes >> 10} KiB model"
    yield Row(
        "told", what, middle * 1000, "ms", 150, None, False, {"each_s": told}, f"{how}; a webhook that answers at once"
    )


def _publish(staged: Path, share: Path, version: int) -> float:
    """The directory appears whole, by one rename; returns when."""
    name = f"weight_v{version:06d}"
    (staged / name).rename(share / name)
    return time.monotonic()


def _until(condition: Callable[[], bool]) -> float:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("the daemon does not get there")
        time.sleep(0.0002)
    return time.monotonic()


def _rest(seconds: float) -> None:
    time.sleep(seconds)


def _idle_share(process: subprocess.Popen[bytes], seconds: float) -> float:
    """CPU time of the process over a while, as a share of one core."""
    _rest(1.0)
    before, begun = _process_cpu_s(process.pid), time.monotonic()
    _rest(seconds)
    return (_process_cpu_s(process.pid) - before) / (time.monotonic() - begun)


def _process_cpu_s(pid: int) -> float:
    """Nanoseconds on a CPU of every thread: clock ticks would be too coarse."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
