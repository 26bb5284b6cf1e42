"""How large, how often and where: what the command line asks of the rows, and the data sets that they share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from scripts.bench_data import DataSet, SetSpec, make_set

_MIB = 1 << 20
_QUICK = {
    "experts": SetSpec("experts", 12, 128 << 10, 2, 8, 0.01),
    "experts-quarter": SetSpec("experts-quarter", 12, 128 << 10, 2, 8, 0.0025),
    "dense": SetSpec("dense", 2, 3 * _MIB, 1, 8, 0.01),
    "many": SetSpec("many", 400, 1 << 10, 4, 4, 0.01, (40, 200, 1, 400)),
    "tiny": SetSpec("tiny", 8, 4 << 10, 1, 8, 0.01),
}
_FULL = {
    "experts": SetSpec("experts", 300, 3 * _MIB, 4, 8, 0.01),
    "experts-quarter": SetSpec("experts-quarter", 300, 3 * _MIB, 4, 8, 0.0025),
    "dense": SetSpec("dense", 6, 64 * _MIB, 2, 8, 0.01),
    "many": SetSpec("many", 100_000, 2 << 10, 100, 4, 0.01, (2_000, 20_000, 1, 100_000)),
    "tiny": SetSpec("tiny", 8, 64 << 10, 1, 8, 0.01),
}


@dataclass
class Settings:
    """`directory` is on the disk, `tmpfs` in memory; both are working directories of this run."""

    directory: Path
    tmpfs: Path | None
    pairs: int = 5
    quick: bool = False
    say: Callable[[str], None] = print
    _sets: dict[tuple[str, bool], DataSet] = field(default_factory=dict)

    def data(self, name: str, *, on_tmpfs: bool = False) -> DataSet:
        """A data set, made when first asked for; on tmpfs it is a copy of the one on the disk."""
        key = (name, on_tmpfs)
        if key not in self._sets:
            root = self.place(on_tmpfs=on_tmpfs) / f"data-{name}"
            if on_tmpfs:
                made = self.data(name)
                shutil.copytree(made.root, root)
                self._sets[key] = DataSet(
                    made.spec, root, made.digests, made.size_bytes, made.changed_share, made.compressed_per_changed
                )
            else:
                self.say(f"making the set {name} ...")
                self._sets[key] = make_set(root, (_QUICK if self.quick else _FULL)[name])
        return self._sets[key]

    def forget(self, name: str) -> None:
        """The set is not needed any more: give its room back."""
        for on_tmpfs in (False, True):
            made = self._sets.pop((name, on_tmpfs), None)
            if made is not None:
                shutil.rmtree(made.root)

    def place(self, *, on_tmpfs: bool = False) -> Path:
        if on_tmpfs:
            assert self.tmpfs is not None, "rows on tmpfs are left out without one"
            return self.tmpfs
        return self.directory


@contextmanager
def working_directories(directory: Path, tmpfs: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """Directories of this run, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=directory) as disk:
        if tmpfs is None:
            yield Path(disk), None
        else:
            with tempfile.TemporaryDirectory(prefix="bench-", dir=tmpfs) as memory:
                yield Path(disk), Path(memory)
