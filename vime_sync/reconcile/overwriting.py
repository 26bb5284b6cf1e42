"""A full version written over the old one, tensor by tensor: for hosts without room for a second checkpoint.

Only with the same names, dtypes and shapes. The source is hashed first (with the deltas behind it folded in), so that
every tensor has its proof before the first byte changes and a kill is finished by what is right already. There is no
going back: the old bytes are overwritten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from vime_sync.format.index import INDEX_NAME
from vime_sync.local.intent import ApplyIntent, TensorWork
from vime_sync.local.layout import read_layout
from vime_sync.local.ownership import check_collisions, read_manifest, write_manifest
from vime_sync.local.state import boot_id, write_provisional_table, write_table
from vime_sync.materialize.aside import has_room
from vime_sync.materialize.context import Buffers, Context
from vime_sync.materialize.inplace import apply_pass
from vime_sync.materialize.pool import run
from vime_sync.materialize.rebuild import Chain, rebuild
from vime_sync.materialize.verify import source_digest
from vime_sync.model import ChecksumFormat, DigestTable, FileDigest, FileStat
from vime_sync.reconcile.request import Local, Report
from vime_sync.reconcile.seeding import lineage_of
from vime_sync.reconcile.stepping import whole_spans

# No real file has these: what is not in place yet is found so by its stats, and mended.
_NOT_YET = FileStat(-1, 0, 0, 0)


def must_overwrite(context: Context, chain: Chain, local: Local | None) -> bool:
    """No room for a second checkpoint, and LOCAL has the very same tensors."""
    if local is None or has_room(context, chain):
        return False
    layout = read_layout(context.paths, local.table)
    return not layout.broken and layout.signature == chain.anchor.signature()


def overwrite(context: Context, report: Report, chain: Chain, local: Local) -> Local:
    """Bring LOCAL to the chain's last version in place. Raises ChecksumMismatch before anything changed."""
    report.warnings.append(
        f"no room in {context.paths.root} for a second checkpoint: version {chain.version} is written over the old "
        "one, and cannot be undone"
    )
    anchor, target = _hash_source(context, chain)
    files = _files(context, chain, local)
    check_collisions(context.paths, files, {*local.table.files, *read_manifest(context.paths)})
    write_manifest(context.paths, {*read_manifest(context.paths), *local.table.files, *files})
    anchor_table = DigestTable(chain.anchor.version, chain.anchor.identity, anchor, files)
    stats = {name: local.state.stats.get(name, _NOT_YET) for name in files}
    stats.update((name, _NOT_YET) for name, file in files.items() if file != local.table.files.get(name))
    # The old tensors' digests beside the new files': what a run that takes this up after a kill starts from.
    table = DigestTable(chain.version, chain.anchor.identity, local.table.tensors, files)
    origin = replace(
        local.state,
        stats=stats,
        table_name=write_provisional_table(context.paths, table),
        # Between this commit and their mending the version must not pass for whole.
        damaged=tuple(sorted({*local.state.damaged, *(name for name, stat in stats.items() if stat == _NOT_YET)})),
        anchor_table_name=write_table(context.paths, anchor_table),
    )
    spans = whole_spans(context, local)
    work = tuple(
        TensorWork(name, spans[name], local.table.tensors[name], ChecksumFormat.XXH3_128, digest, ())
        for name, digest in target.items()
        if digest != local.table.tensors[name] or name in local.state.damaged
    )
    intent = ApplyIntent(origin, lineage_of(chain), (), work, boot_id(), forward_only=True)
    names = frozenset(item.name for item in work)
    applied = apply_pass(context, intent, table, None, names, lambda side: chain)
    report.tensors_changed = len(work)
    return Local(applied.state, applied.table)


def _hash_source(context: Context, chain: Chain) -> tuple[dict[str, str], dict[str, str]]:
    anchor: dict[str, str] = {}
    target: dict[str, str] = {}
    guard = threading.Lock()
    context.tally.start("hash", len(chain.spans), sum(span.size_bytes for span in chain.spans.values()))

    def digest(name: str, buffers: Buffers, check: Callable[[], None]) -> None:
        digests = rebuild(chain, name, None, 0, buffers, check)
        chain.prove(name, digests)
        with guard:
            anchor[name], target[name] = digests.old, digests.new
        context.tally.add(read=chain.spans[name].size_bytes)
        context.tally.advance("hash", chain.spans[name].size_bytes)

    run(context, sorted(chain.spans, key=lambda name: -chain.spans[name].size_bytes), digest)
    chain.files.check_unchanged()
    return anchor, target


def _files(context: Context, chain: Chain, local: Local) -> dict[str, FileDigest]:
    """LOCAL keeps its shards and their index; the other files are to be the new version's."""
    kept = {name: file for name, file in local.table.files.items() if file.is_shard or name == INDEX_NAME}
    others = {
        name: FileDigest(file.stat.size_bytes, source_digest(context, chain.files, file, chain.anchor.version), False)
        for name, file in chain.anchor.auxiliary.items()
        if name != INDEX_NAME
    }
    return {**others, **kept}
