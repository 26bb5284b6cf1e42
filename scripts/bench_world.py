"""Two hosts side by side, one kept by the yardstick and one by us, and the proof that both hold the right bytes.

Ours goes through the entry that `pull` and `watch` share, in this process; syncing the data is left out of the time,
as the daemon does it behind the reload, and as the yardstick does none.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import xxhash

from scripts.bench_data import DataSet
from scripts.bench_measure import Sample, run_timed
from scripts.bench_yardstick import Yardstick, copy_base, read_header
from vime_sync.local.paths import local_paths
from vime_sync.materialize.context import Context
from vime_sync.reconcile import Report, Request, reconcile


class WrongBytes(Exception):
    """A result that is not byte for byte what it has to be: the bench fails."""


def tensor_digests(directory: Path) -> dict[str, str]:
    """xxh3-128 of every tensor of a checkpoint, read by way of a mapping."""
    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
            header, data_offset = read_header(mapping)
            header.pop("__metadata__", None)
            with memoryview(mapping) as view:
                for name, entry in header.items():
                    begin, end = entry["data_offsets"]
                    with view[data_offset + begin : data_offset + end] as span:
                        found[name] = xxhash.xxh3_128(span).hexdigest()
    return found


def expect_bytes(directory: Path, expected: Mapping[str, str]) -> None:
    found = tensor_digests(directory)
    if found != dict(expected):
        wrong = [name for name in expected if found.get(name) != expected[name]]
        raise WrongBytes(f"{directory}: {len(wrong)} of {len(expected)} tensors are wrong, among them {wrong[:3]}")


class World:
    """`threads` are those of either side; `root` is on the filesystem that is measured."""

    def __init__(self, data: DataSet, encoding: str, root: Path, threads: int | None = None) -> None:
        self.data, self.encoding, self.root = data, encoding, root
        self.threads = threads or len(os.sched_getaffinity(0))
        self.share = data.share(encoding)
        self.ours = root / "ours"
        self.theirs = root / "theirs"

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def seed(self) -> None:
        """Both hosts at version 0, untimed."""
        copy_base(self.data.base, self.theirs)
        self.pull(0)

    def pull(self, version: int, threads: int | None = None, local: Path | None = None) -> Report:
        context = Context(local_paths(local or self.ours), threads or self.threads)
        return reconcile(context, Request(self.share, self.data.base, version, sync_later=True))

    def time_ours(self, version: int, threads: int | None = None) -> Sample:
        return run_timed(lambda: self.pull(version, threads))

    def time_theirs(self, first: int, last: int, threads: int | None = None) -> Sample:
        """One pass per version, as peers do."""
        yardstick = Yardstick(self.theirs, threads or self.threads)

        def catch_up() -> None:
            for version in range(first, last + 1):
                yardstick.apply(self.share, version)

        return run_timed(catch_up)

    def expect(self, version: int, *, theirs: bool = True) -> None:
        """Both hold the bytes of that version, by digests taken when the data was made."""
        expect_bytes(self.ours, self.data.digests[version])
        if theirs:
            expect_bytes(self.theirs, self.data.digests[version])

    def reset(self) -> None:
        """Both back to version 0 in the pages that they have: theirs is written over, ours rolls back. Untimed."""
        for path in sorted(self.data.base.glob("*.safetensors")):
            with path.open("rb") as source, (self.theirs / path.name).open("r+b") as target:
                shutil.copyfileobj(source, target, 8 << 20)
        self.pull(0)
        self.expect(0)
