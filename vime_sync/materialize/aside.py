"""New checkpoint files built beside the live ones: seeds, full versions, lost shards.

Each file is written once, with every delta behind its anchor folded in, under a name that no engine loads, and hashed
on the way. Shard by shard it can be taken up again after a kill: a finished one has a record of its digests beside it,
and is hashed again before it is believed (FIELD_GUIDE H2).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from vime_sync import fsio
from vime_sync.errors import ChecksumMismatch, NoRoom
from vime_sync.format.checksum import new_hasher, xxh3
from vime_sync.local.paths import LocalPaths
from vime_sync.local.room import SPARE_BYTES, make_room, tree_bytes
from vime_sync.materialize.context import Buffers, Context
from vime_sync.materialize.diagnose import diagnose
from vime_sync.materialize.pool import run
from vime_sync.materialize.rebuild import Chain, digest_of_step, rebuild, span_digest
from vime_sync.model import AuxiliaryFile, ChecksumFormat, DigestTable, FileDigest, ShardFile, Span

_PLAN_NAME = "plan.json"


@dataclass(frozen=True)
class Built:
    """What stands in the aside directory: digests at the anchor and at the target, and where each file goes."""

    anchor_table: DigestTable
    table: DigestTable
    moves: dict[str, str]


@dataclass
class _Shard:
    """One shard being built; `left` counts its tensors still to come."""

    source: ShardFile
    name: str
    file: fsio.File | None = None
    left: int = 0
    anchor: dict[str, str] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)


def has_room(context: Context, chain: Chain) -> bool:
    """Whether a second checkpoint fits beside the live one, counting what a killed run left built."""
    needed = chain.anchor.size_bytes + SPARE_BYTES - tree_bytes(context.paths.aside)
    return needed <= make_room(context.paths, needed)


def build_aside(context: Context, chain: Chain, only: frozenset[str] | None = None) -> Built:
    """Build the anchor's files (or `only` those) at the chain's last version.

    Raises ChecksumMismatch or WrongBase where deltas do not come to their digests, what the share raises, OSError.
    """
    job = _Job(context, chain, only)
    job.check_room()
    try:
        job.build()
    except ChecksumMismatch as failure:
        raise job.diagnose(failure) from None
    chain.files.check_unchanged()
    return job.built()


class _Job:
    def __init__(self, context: Context, chain: Chain, only: frozenset[str] | None) -> None:
        self._context = context
        self._chain = chain
        self._guard = threading.Lock()
        names = sorted(name for name in chain.anchor.shards if only is None or name in only)
        self._shards = [_Shard(chain.anchor.shards[name], f"shard-{number:05d}") for number, name in enumerate(names)]
        names = sorted(name for name in chain.anchor.auxiliary if only is None or name in only)
        self._auxiliary = [(chain.anchor.auxiliary[name], f"file-{number:05d}") for number, name in enumerate(names)]
        self._files: dict[str, FileDigest] = {}
        self._take_up(only)

    def _take_up(self, only: frozenset[str] | None) -> None:
        """Keep what a killed run of the very same plan has built; anything else goes."""
        paths, chain = self._context.paths, self._chain
        plan = json.dumps([chain.anchor.identity, [delta.identity for delta in chain.deltas], sorted(only or ())])
        place = paths.aside / _PLAN_NAME
        if not place.exists() or place.read_bytes() != plan.encode():
            fsio.remove_tree(paths.aside)
            fsio.make_directory(paths.aside)
            fsio.write_atomic(place, plan.encode(), durable=False)

    def check_room(self) -> None:
        paths = self._context.paths
        there = tree_bytes(paths.aside)
        needed = sum(shard.source.stat.size_bytes for shard in self._shards)
        needed += sum(file.stat.size_bytes for file, _ in self._auxiliary) + SPARE_BYTES - there
        free = make_room(paths, needed)
        if needed > free:
            raise NoRoom(
                f"building version {self._version} needs {needed} bytes on the filesystem of {paths.root}, which has "
                f"{free} free",
                hint="Free some space there and run the same command again.",
            )

    @property
    def _version(self) -> int:
        return self._chain.version

    def build(self) -> None:
        tally = self._context.tally
        todo = [shard for shard in self._shards if not self._built_before(shard)]
        tensors = [(shard, name) for shard in todo for name in shard.source.tensors]
        size_bytes = sum(shard.source.stat.size_bytes for shard in todo)
        size_bytes += sum(file.stat.size_bytes for file, _ in self._auxiliary)
        tally.start("seed", len(tensors), size_bytes)
        try:
            for shard in todo:
                shard.left = len(shard.source.tensors)
                self._write_header(shard)
            run(self._context, tensors, self._build_tensor)
            run(self._context, self._auxiliary, self._copy_auxiliary)
        finally:
            for shard in todo:
                if shard.file is not None:
                    shard.file.close()

    def _write_header(self, shard: _Shard) -> None:
        source = shard.source
        shard.file = fsio.File(self._context.paths.aside / shard.name, write=True, create=True)
        shard.file.truncate(source.stat.size_bytes)
        header = bytearray(source.data_offset)
        self._chain.files.read_into(memoryview(header), source.path, source.stat, 0, self._chain.anchor.version)
        shard.file.write_at(memoryview(header), 0)
        self._files[source.name] = FileDigest(source.stat.size_bytes, xxh3(header), True)
        if not shard.left:
            self._record(shard)

    def _build_tensor(self, item: tuple[_Shard, str], buffers: Buffers, check: Callable[[], None]) -> None:
        shard, name = item
        chain, tally = self._chain, self._context.tally
        spec = shard.source.tensors[name]
        digests = rebuild(chain, name, shard.file, shard.source.data_offset + spec.begin, buffers, check)
        chain.prove(name, digests)
        wire = sum(chain.deltas[number].payloads[name].size_bytes for number in chain.touching(name))
        tally.add(read=spec.size_bytes + wire, written=spec.size_bytes)
        tally.advance("seed", spec.size_bytes)
        with self._guard:
            shard.anchor[name], shard.target[name] = digests.old, digests.new
            shard.left -= 1
            done = shard.left == 0
        if done:
            self._record(shard)

    def _record(self, shard: _Shard) -> None:
        """The shard is whole: write down its digests, so that a next run need not build it again."""
        document = [self._files[shard.source.name].digest, shard.anchor, shard.target]
        place = self._context.paths.aside / f"{shard.name}.json"
        fsio.write_atomic(place, json.dumps(document).encode(), durable=False)

    def _built_before(self, shard: _Shard) -> bool:
        """Whether a killed run finished this shard: believed only after hashing it again."""
        aside = self._context.paths.aside
        try:
            header, anchor, target = json.loads((aside / f"{shard.name}.json").read_bytes())
            file = fsio.File(aside / shard.name)
            target.keys(), anchor.keys()
        except (OSError, ValueError, TypeError, AttributeError):
            return False
        source = shard.source
        with file:
            if file.stat().size_bytes != source.stat.size_bytes or target.keys() != source.tensors.keys():
                return False
            if header != source.header_digest or xxh3(file.read_at(source.data_offset, 0)) != header:
                return False
            wrong: list[str] = []

            def prove(name: str, buffers: Buffers, check: Callable[[], None]) -> None:
                spec = source.tensors[name]
                span = Span(shard.name, source.data_offset + spec.begin, spec.size_bytes)
                if span_digest(file, span, buffers, check) != target[name]:
                    wrong.append(name)

            run(self._context, list(source.tensors), prove)
        if wrong:
            return False
        shard.anchor, shard.target = anchor, target
        self._files[source.name] = FileDigest(source.stat.size_bytes, header, True)
        return True

    def _copy_auxiliary(self, item: tuple[AuxiliaryFile, str], buffers: Buffers, check: Callable[[], None]) -> None:
        source, name = item
        hasher = new_hasher(ChecksumFormat.XXH3_128)
        with fsio.File(self._context.paths.aside / name, write=True, create=True) as target:
            for start in range(0, source.stat.size_bytes, len(buffers.current)):
                check()
                block = buffers.current[: min(len(buffers.current), source.stat.size_bytes - start)]
                self._chain.files.read_into(block.data, source.path, source.stat, start, self._chain.anchor.version)
                hasher.update(block.data)
                target.write_at(block.data, start)
        with self._guard:
            self._files[source.name] = FileDigest(source.stat.size_bytes, hasher.hexdigest(), False)
        self._context.tally.add(read=source.stat.size_bytes, written=source.stat.size_bytes)

    def built(self) -> Built:
        anchor: dict[str, str] = {}
        target: dict[str, str] = {}
        for shard in self._shards:
            anchor.update(shard.anchor)
            target.update(shard.target)
        moves = {shard.source.name: shard.name for shard in self._shards}
        moves.update((source.name, name) for source, name in self._auxiliary)
        return Built(
            DigestTable(self._chain.anchor.version, self._chain.anchor.identity, anchor, self._files),
            DigestTable(self._version, self._chain.anchor.identity, target, self._files),
            moves,
        )

    def diagnose(self, failure: ChecksumMismatch) -> Exception:
        chain, check = self._chain, self._context.stop.check
        buffers = Buffers()

        def first_bad_version(name: str) -> int | None:
            for count, number in enumerate(chain.touching(name), start=1):
                if not digest_of_step(chain, name, count, buffers, check):
                    return chain.deltas[number].version
            return None

        touched = {name for delta in chain.deltas for name in delta.payloads}
        smallest_first = sorted(touched, key=lambda name: (chain.spans[name].size_bytes, name))
        return diagnose(failure, smallest_first, first_bad_version, self._version)


def clear_aside(paths: LocalPaths) -> None:
    fsio.remove_tree(paths.aside)
