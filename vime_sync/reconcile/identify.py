"""Bytes of unknown standing become a known version: one full hash against every known digest (FIELD_GUIDE H4, H20).

The state is missing, unreadable, or the peers' bare number; or the operator hands a directory over. Each tensor's
digest says between which versions of the published chain it stands. The version to settle on is the lowest that all
tensors can be brought up to by deltas: a tensor that stands there is left alone, one below gets the deltas between,
one that stands nowhere is rebuilt from the anchor. After that the ordinary plan goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from vime_sync import fsio
from vime_sync.checkpoint import read_shard
from vime_sync.errors import ChecksumMismatch, CorruptPayload, Damaged, SyncError
from vime_sync.format.checksum import Hasher, new_hasher
from vime_sync.format.problems import FormatError
from vime_sync.local.intent import ApplyIntent, Step, TensorWork
from vime_sync.local.ownership import check_collisions, read_manifest, replace_links, write_manifest
from vime_sync.local.state import (
    boot_id,
    find_anchor_table,
    read_state,
    write_provisional_table,
    write_state,
    write_table,
)
from vime_sync.materialize.apply import Feed
from vime_sync.materialize.aside import Built, build_aside, has_room
from vime_sync.materialize.context import Buffers, Context
from vime_sync.materialize.inplace import apply_pass
from vime_sync.materialize.install import place
from vime_sync.materialize.pool import run
from vime_sync.materialize.rebuild import Chain, rebuild
from vime_sync.materialize.staging import lay_out
from vime_sync.materialize.verify import file_digest, source_digest, tensor_digests
from vime_sync.model import ChecksumFormat, DigestTable, FileDigest, LocalState, ShardFile, Span
from vime_sync.plan import make_plan
from vime_sync.reconcile.request import Local, Report, Request
from vime_sync.reconcile.seeding import chain_of, files_of_ours, lineage_of, text
from vime_sync.reconcile.sources import Sources
from vime_sync.reconcile.stepping import chain_opener
from vime_sync.reconcile.survey import survey
from vime_sync.stream.payloads import SourceFiles

Digests = Mapping[ChecksumFormat, str]


@dataclass(frozen=True)
class Standing:
    """A tensor's bytes are those of every version from `low` to `high` of the chain."""

    low: int
    high: int


def identify(
    context: Context, request: Request, sources: Sources, report: Report, below: int | None = None
) -> Local | None:
    """Settle LOCAL on a version of the published chain, or None where its bytes are not worth it: seed then.

    `below` a version that proved bad on the way; the plan that follows meets it if it is wanted. Raises what healing
    raises. Commits the version it settles on.
    """
    try:
        return _identify(context, request, sources, report, below)
    except (ChecksumMismatch, CorruptPayload, Damaged) as problem:
        if not problem.version or (below is not None and problem.version >= below):
            raise
        below = problem.version
    return identify(context, request, sources, report, below)


def _identify(context: Context, request: Request, sources: Sources, report: Report, below: int | None) -> Local | None:
    with SourceFiles() as files:
        chain = _find_chain(context, request, sources, files)
        if chain is None or (below is not None and chain.anchor.version >= below):
            return None
        chain = chain if below is None else chain.cut(below - 1)
        shards = _matching_shards(context, chain)
        if not shards:
            return None
        ours = (*chain.anchor.shards, *chain.anchor.auxiliary)
        replace_links(context.paths, [name for name in ours if context.paths.file(name).is_file()])
        with report.timed("plan"):
            spans = {
                name: Span(shard.name, shard.data_offset + spec.begin, spec.size_bytes)
                for shard in shards.values()
                for name, spec in shard.tensors.items()
            }
            found = _hash_local(context, chain, spans)
            anchor = _anchor_digests(context, chain, found)
            standings = {name: _standing(chain, name, found[name], anchor) for name in found}
            _distrust_short_digests(context, chain, found, standings)
        known = sum(spans[name].size_bytes for name, standing in standings.items() if standing is not None)
        if None in standings.values() and request.version != 0 and sources.shows_nothing():
            return None  # an empty share never resets anything
        worth_it = known * 2 >= sum(span.size_bytes for span in chain.spans.values())
        if not worth_it and has_room(context, chain):
            return None
        lows = [standing.low for standing in standings.values() if standing is not None]
        settled = max(lows, default=chain.anchor.version)
        return _settle(context, request, sources, report, chain.cut(settled), files, spans, found, anchor, standings)


def _find_chain(context: Context, request: Request, sources: Sources, files: SourceFiles) -> Chain | None:
    """The chain to the version the peers' receiver names, to the newest ready one, or to the wanted one."""
    if not any(context.paths.root.glob("*.safetensors")):
        return None
    for wanted in (read_state(context.paths).peer_version, None, request.version):
        try:
            view = survey(request.share, wanted, None, has_base=request.base is not None)
            plan = make_plan(view)
            anchor = plan.passes[0].anchor
            assert anchor is not None
            deltas = [version for planned in plan.passes for version in planned.deltas]
            return chain_of(sources, anchor, deltas, files)
        except SyncError:
            continue
    return None


def _matching_shards(context: Context, chain: Chain) -> dict[str, ShardFile]:
    """The shards of LOCAL that have the anchor's header: the same tensors at the same places."""
    found = {}
    for name, shard in chain.anchor.shards.items():
        try:
            local = read_shard(context.paths.root, name)
        except (FormatError, OSError):
            continue
        if local.header_digest == shard.header_digest:
            found[name] = local
    return found


def _hash_local(context: Context, chain: Chain, spans: Mapping[str, Span]) -> dict[str, Digests]:
    """Every tensor once, in every format that a delta which touches it publishes."""
    found: dict[str, Digests] = {}
    context.tally.start("hash", len(spans), sum(span.size_bytes for span in spans.values()))
    opened = {name: fsio.File(context.paths.file(name)) for name in {span.file for span in spans.values()}}

    def digest(name: str, buffers: Buffers, check: Callable[[], None]) -> None:
        span = spans[name]
        formats = {chain.deltas[number].checksum for number in chain.touching(name)}
        hashers: dict[ChecksumFormat, Hasher] = {item: new_hasher(item) for item in {ChecksumFormat.XXH3_128, *formats}}
        for start in range(0, span.size_bytes, len(buffers.current)):
            check()
            block = buffers.current[: min(len(buffers.current), span.size_bytes - start)]
            opened[span.file].read_into(block.data, span.offset + start)
            for hasher in hashers.values():
                hasher.update(block.data)
        found[name] = {item: hasher.hexdigest() for item, hasher in hashers.items()}
        context.tally.add(read=span.size_bytes)
        context.tally.advance("hash", span.size_bytes)

    try:
        run(context, list(spans), digest)
    finally:
        for file in opened.values():
            file.close()
    return found


def _anchor_digests(context: Context, chain: Chain, found: Mapping[str, Digests]) -> Mapping[str, str]:
    """Ours of the anchor's tensors: kept from when it was seeded, else hashed where no delta says where one stands."""
    table = find_anchor_table(context.paths, chain.anchor.version, chain.anchor.identity)
    if table is not None:
        return table.tensors
    return tensor_digests(
        context, chain.anchor, [name for name in found if _by_deltas(chain, name, found[name]) is None]
    )


def _by_deltas(chain: Chain, name: str, digests: Digests) -> Standing | None:
    above = chain.version
    for number in reversed(chain.touching(name)):
        delta = chain.deltas[number]
        if digests[delta.checksum] == delta.payloads[name].digest:
            return Standing(delta.version, above)
        above = delta.version - 1
    return None


def _standing(chain: Chain, name: str, digests: Digests, anchor: Mapping[str, str]) -> Standing | None:
    found = _by_deltas(chain, name, digests)
    if found is None and anchor.get(name) == digests[ChecksumFormat.XXH3_128]:
        touching = chain.touching(name)
        first = (
            chain.deltas[touching[0]].version - 1 if touching else chain.deltas[-1].version if chain.deltas else None
        )
        found = Standing(chain.anchor.version, chain.anchor.version if first is None else first)
    return found


def _distrust_short_digests(
    context: Context, chain: Chain, found: Mapping[str, Digests], standings: dict[str, Standing | None]
) -> None:
    """adler32 is too short to tell states apart: what it recognised is computed from the anchor and compared."""
    doubtful = []
    for name, standing in standings.items():
        numbers = [
            number for number in chain.touching(name) if standing and chain.deltas[number].version <= standing.low
        ]
        if numbers and chain.deltas[numbers[-1]].checksum is ChecksumFormat.ADLER32:
            doubtful.append((name, numbers))
    guard = threading.Lock()

    def prove(item: tuple[str, list[int]], buffers: Buffers, check: Callable[[], None]) -> None:
        name, numbers = item
        digests = rebuild(chain, name, None, 0, buffers, check, numbers=numbers)
        if digests.new != found[name][ChecksumFormat.XXH3_128]:
            with guard:
                standings[name] = None

    run(context, doubtful, prove)


def _settle(
    context: Context,
    request: Request,
    sources: Sources,
    report: Report,
    chain: Chain,
    files: SourceFiles,
    spans: Mapping[str, Span],
    found: Mapping[str, Digests],
    anchor: Mapping[str, str],
    standings: Mapping[str, Standing | None],
) -> Local:
    """Bring every tensor to the chain's last version, in place, and commit it."""
    version = chain.version
    replaceable, removable = files_of_ours(context.paths, request, None)
    write_manifest(context.paths, {*read_manifest(context.paths), *removable})
    built = _replace_other_files(context, chain, {span.file for span in spans.values()}, replaceable)
    ours = {name: digests[ChecksumFormat.XXH3_128] for name, digests in found.items()}
    whole = chain.anchor.shards.values()
    shards = {shard.name: FileDigest(shard.stat.size_bytes, shard.header_digest, True) for shard in whole}
    table = DigestTable(
        version,
        chain.anchor.identity,
        {**ours, **built.table.tensors},
        {**shards, **built.table.files},
    )
    anchor_table = replace(table, version=chain.anchor.version, tensors={**anchor, **built.anchor_table.tensors})
    complete = anchor_table.tensors.keys() == table.tensors.keys()
    wrong = frozenset(tensor for tensor, standing in standings.items() if standing is None)
    behind = {tensor: standing.high for tensor, standing in standings.items() if standing and standing.high < version}
    found_whole = not wrong and not behind
    stats = {name: fsio.stat(context.paths.file(name)) for name in table.files}
    state = LocalState(
        version=version,
        lineage=lineage_of(chain),
        table_name=write_table(context.paths, table) if found_whole else write_provisional_table(context.paths, table),
        stats=stats,
        boot_id=boot_id(),
        durable=False,
        share=text(request.share),
        base=text(request.base),
        anchor_table_name=write_table(context.paths, anchor_table) if complete else "",
    )
    if found_whole:
        write_state(context.paths, state)
        return Local(state, table)
    work = lay_out(spans, ours, chain.deltas, chain.content_sizes or (), frozenset(), behind)
    work += tuple(_to_rebuild(chain, tensor, spans[tensor], ours[tensor], anchor) for tensor in sorted(wrong))
    steps = tuple(Step(delta.version, delta.encoding, delta.checksum) for delta in chain.deltas)
    intent = ApplyIntent(state, state.lineage, steps, work, boot_id(), origin_proven=False)
    open_chain = chain_opener(sources, state.lineage, state.lineage, files)
    with report.timed("apply"):
        applied = apply_pass(context, intent, table, Feed(chain.deltas, files), wrong, open_chain)
    report.tensors_repaired += applied.repaired + len(behind)
    return Local(applied.state, applied.table)


def _to_rebuild(chain: Chain, name: str, span: Span, old: str, anchor: Mapping[str, str]) -> TensorWork:
    wanted = chain.published(name) or (ChecksumFormat.XXH3_128, anchor[name])
    return TensorWork(name, span, old, *wanted, ())


def _replace_other_files(context: Context, chain: Chain, right: set[str], replaceable: set[str]) -> Built:
    """Shards that are not there or have another header, and other files that differ, are built anew."""
    only = set(chain.anchor.shards) - right
    digests: dict[str, FileDigest] = {}
    for name, file in chain.anchor.auxiliary.items():
        digest = source_digest(context, chain.files, file, chain.anchor.version)
        digests[name] = FileDigest(file.stat.size_bytes, digest, False)
        local = context.paths.file(name)
        if not local.is_file() or local.is_symlink() or file_digest(context, local) != digest:
            only.add(name)
    check_collisions(context.paths, sorted(only), replaceable)
    write_manifest(context.paths, {*read_manifest(context.paths), *chain.anchor.shards, *chain.anchor.auxiliary})
    if not only:
        empty = DigestTable(chain.anchor.version, chain.anchor.identity, {}, digests)
        return Built(empty, empty, {})
    built = build_aside(context, chain, frozenset(only))
    place(context.paths, built)
    table = replace(built.table, files={**digests, **built.table.files})
    return replace(built, table=table)
