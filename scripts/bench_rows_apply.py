"""Rows of passes in place against the yardstick: one version, eight versions behind, and what safety costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scripts.bench_measure import Row, Sample, cpu, ratio_row, run_timed, wall
from scripts.bench_prototype import Prototype
from scripts.bench_settings import Settings
from scripts.bench_world import World

_HOW = "ours by the entry of `pull`, in this process, data not synced; page cache warm"


@dataclass(frozen=True)
class _Case:
    set_name: str
    encoding: str
    on_tmpfs: bool
    one: tuple[float | None, float | None]  # at least, stretch: one version
    eight: tuple[float, float] | None  # the same, eight versions behind

    @property
    def title(self) -> str:
        return f"{self.encoding} {self.set_name} {'tmpfs' if self.on_tmpfs else 'disk'}"


_CASES = (
    _Case("experts", "xor", False, (1.6, 2.0), (2.5, 4.0)),
    _Case("dense", "xor", False, (1.2, 1.5), None),
    _Case("experts", "xor", True, (1.0, 1.5), (1.4, 4.0)),
    _Case("experts", "overwrite", False, (0.9, 1.3), (1.8, 4.0)),
    _Case("experts", "overwrite", True, (1.2, 2.0), (2.2, 4.0)),
    _Case("experts-quarter", "xor", False, (None, None), None),
    _Case("experts-quarter", "overwrite", False, (None, None), None),
)


def apply_rows(settings: Settings) -> Iterator[Row]:
    """One version at a time, then eight versions in one catch-up."""
    for case in _CASES:
        if case.on_tmpfs and settings.tmpfs is None:
            continue
        data = settings.data(case.set_name, on_tmpfs=case.on_tmpfs)
        root = settings.place(on_tmpfs=case.on_tmpfs) / f"world-{case.title.replace(' ', '-')}"
        with World(data, case.encoding, root) as world:
            world.seed()
            yield _one_version(settings, case, world)
            if case.eight is not None:
                world.reset()
                yield _eight_versions(settings, case, world, case.eight)


def _one_version(settings: Settings, case: _Case, world: World) -> Row:
    theirs: list[Sample] = []
    ours: list[Sample] = []
    version = 0
    # One pair more than counted: the first meets pages that were just written for the first time.
    for number in range(settings.pairs + 1):
        if version == world.data.spec.versions:
            world.reset()
            version = 0
        version += 1
        first = world.time_theirs(version, version)
        second = world.time_ours(version)
        world.expect(version)
        if number:
            theirs.append(first)
            ours.append(second)
    share = f"{100 * world.data.changed_share:.2f} %"
    what = f"one version, {case.encoding}, {share} of bytes, {case.title.split(' ', 1)[1]}"
    row = ratio_row(f"one {case.title}", what, theirs, ours, world.data.size_bytes, *case.one, _HOW)
    row.parts["compressed_per_changed_byte"] = world.data.compressed_per_changed[case.encoding]
    return row


def _eight_versions(settings: Settings, case: _Case, world: World, aims: tuple[float, float]) -> Row:
    theirs: list[Sample] = []
    ours: list[Sample] = []
    last = world.data.spec.versions
    for number in range(settings.pairs):
        if number:
            world.reset()
        theirs.append(world.time_theirs(1, last))
        ours.append(world.time_ours(last))
        world.expect(last)
    what = f"{last} versions behind, {case.encoding}, {case.title.split(' ', 1)[1]}"
    return ratio_row(f"eight {case.title}", what, theirs, ours, world.data.size_bytes * last, *aims, _HOW)


def safety_rows(settings: Settings) -> Iterator[Row]:
    """Ours against a prototype that could not heal: what staging, old digests, the journal and the records cost."""
    for encoding in ("xor", "overwrite"):
        for on_tmpfs in (False, True) if settings.tmpfs is not None else (False,):
            data = settings.data("experts", on_tmpfs=on_tmpfs)
            place = "tmpfs" if on_tmpfs else "disk"
            with World(data, encoding, settings.place(on_tmpfs=on_tmpfs) / f"world-safety-{encoding}") as world:
                world.seed()
                yield _safety(settings, world, f"safety {encoding} {place}", f"{encoding}, experts, {place}")


def _safety(settings: Settings, world: World, name: str, where: str) -> Row:
    prototype = Prototype(world.theirs, world.threads)
    bare: list[Sample] = []
    ours: list[Sample] = []
    version = 0
    for number in range(settings.pairs + 1):
        if version == world.data.spec.versions:
            world.reset()
            version = 0
        version += 1
        wanted = [version]
        first = run_timed(lambda wanted=wanted: prototype.apply(world.share, wanted))  # type: ignore[misc]
        second = world.time_ours(version)
        world.expect(version)
        if number:
            bare.append(first)
            ours.append(second)
    parts = {
        "ours_s": wall(ours),
        "unsafe_s": wall(bare),
        "ours_cpu_s": cpu(ours),
        "unsafe_cpu_s": cpu(bare),
        "cpu_ratio": cpu(ours) / cpu(bare),
    }
    what = f"what crash safety costs: {where}"
    return Row(name, what, wall(ours) / wall(bare), "x without safety", None, None, False, parts, _HOW)
