"""The bytes of the version before, proven: from the cache, from a full version on the share, or from the base.

A delta against the wrong bytes would spoil the stream for every host, so of each source all is asked that it can
prove. A cache is a LOCAL brought along by the very pass that hosts make: its digest table proves every tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vime_sync.errors import Damaged, SourceNotReady, StreamChanged, SyncError, UsageError, WrongBase
from vime_sync.local.layout import read_layout
from vime_sync.local.lock import hold
from vime_sync.local.state import read_table, weights_digest, write_state
from vime_sync.materialize.context import Context
from vime_sync.model import Checkpoint, FileStat, Published, Span, VersionKind
from vime_sync.publish.choice import Choice, Signature
from vime_sync.publish.files import OpenFiles, Reader
from vime_sync.publish.values import Options
from vime_sync.publish.workshop import BaseRecord, Warn
from vime_sync.reconcile import Request, reconcile
from vime_sync.reconcile.request import Local, load_local
from vime_sync.reconcile.sources import Sources
from vime_sync.stream.catalog import Catalog

# Says that a tensor does not have the digest that is known of it.
Accuse = Callable[[str], SyncError]


@dataclass(frozen=True)
class Previous:
    """`digests` are xxh3-128 of all tensors, or None where nothing is known of them before they are read."""

    version: int
    root: Path
    spans: Mapping[str, Span]
    signature: Signature
    stats: Mapping[str, FileStat]
    auxiliary: Mapping[str, Path]
    digests: Mapping[str, str] | None
    files: OpenFiles
    accuse: Accuse

    def reader(self, name: str) -> Reader:
        span = self.spans[name]
        return self.files.reader(self.root / span.file, self.stats[span.file], span.offset)


@contextmanager
def open_previous(
    options: Options, choice: Choice, catalog: Catalog, remembered: BaseRecord | None, context: Context, warn: Warn
) -> Iterator[Previous]:
    """The version before `choice.version`, held still while the body runs. Raises SyncError where it cannot be had."""
    if options.cache is not None:
        with _cache(options, choice, catalog, remembered, context, warn) as previous:
            yield previous
        return
    checkpoint = _without_cache(options, choice, catalog)
    with OpenFiles(_changed_of(checkpoint)) as files:
        yield Previous(
            choice.newest,
            checkpoint.directory,
            checkpoint.spans(),
            checkpoint.signature(),
            {name: shard.stat for name, shard in checkpoint.shards.items()},
            {name: file.path for name, file in checkpoint.auxiliary.items()},
            None,
            files,
            lambda name: Damaged(f"tensor {name!r} in {checkpoint.directory} changed while it was read"),
        )


def _without_cache(options: Options, choice: Choice, catalog: Catalog) -> Checkpoint:
    if not choice.newest:
        if options.base is None:
            raise UsageError(
                f"nothing is published in {options.shared} yet, and no --base is given to make version 1 against",
                hint="Give --base the checkpoint that hosts start from, or begin with a full version: --encoding full.",
            )
        return Sources(None, options.base).base()
    newest = _newest(choice, catalog)
    if not isinstance(newest, Checkpoint):
        raise UsageError(
            f"version {choice.newest} in {options.shared} is a delta, and without --cache there is nothing to make the "
            "next one against",
            hint="Give --cache DIR, a directory of its own with room for one checkpoint: it is kept at the newest "
            "version, from --base and the share. Or publish a full version (--encoding full).",
        )
    return newest


def _newest(choice: Choice, catalog: Catalog) -> Published:
    entry = catalog.entry(choice.newest)
    if isinstance(entry, SyncError):
        entry.hint = (
            f"Wait for its publisher, or remove version {choice.newest} if it died; a full version (--encoding full) "
            "can be published above it."
        )
        raise entry
    return entry


def _changed_of(checkpoint: Checkpoint) -> Callable[[str], SyncError]:
    if checkpoint.kind is VersionKind.BASE:
        return lambda message: SourceNotReady(f"--base: {message}")
    return lambda message: StreamChanged(message, version=checkpoint.version)


# ---- cache


@contextmanager
def _cache(
    options: Options, choice: Choice, catalog: Catalog, remembered: BaseRecord | None, context: Context, warn: Warn
) -> Iterator[Previous]:
    paths = context.paths
    if choice.newest:
        _newest(choice, catalog)
    report = reconcile(context, Request(catalog.share, options.base, choice.newest))
    for warning in report.warnings:
        warn(f"cache: {warning}")
    if report.new_stream:
        warn(f"cache: {catalog.share} holds another stream than before, seeded anew")
    with hold(paths, wait_s=0, check_stop=context.stop.check):
        local = load_local(paths)
        if local is None or local.state.version != choice.newest or local.state.damaged:
            raise Damaged(f"--cache {paths.root} is not at version {choice.newest} any more", hint="Publish again.")
        _check_base(local, catalog, remembered, context)
        layout = read_layout(paths, local.table)
        if layout.broken:
            raise Damaged(f"--cache {paths.root}: {layout.broken[0]} changed", hint="Publish again: it heals.")

        guard = threading.Lock()
        accused: set[str] = set()

        def accuse(name: str) -> SyncError:
            with guard:  # several threads may meet rot
                accused.add(name)
                write_state(paths, replace(local.state, damaged=tuple(sorted(accused))))
            return Damaged(
                f"tensor {name!r} in --cache {paths.root} is not what it was: nothing was published",
                hint="Publish again: the cache heals first.",
                tensors=(name,),
            )

        with OpenFiles(lambda message: Damaged(f"--cache: {message}", hint="Publish again: the cache heals.")) as files:
            yield Previous(
                choice.newest,
                paths.root,
                layout.spans,
                layout.signature,
                local.state.stats,
                {name: paths.file(name) for name, file in local.table.files.items() if not file.is_shard},
                local.table.tensors,
                files,
                accuse,
            )


def _check_base(local: Local, catalog: Catalog, remembered: BaseRecord | None, context: Context) -> None:
    """A base that changed since version 1 was made is noticed, also of tensors that no delta touches.

    Raises WrongBase.
    """
    anchor = local.state.lineage[0]
    first = catalog.entry(1) if 1 in catalog.versions else None
    if anchor.kind is not VersionKind.BASE or remembered is None or first is None or isinstance(first, SyncError):
        return
    table = read_table(context.paths, local.state.anchor_table_name)
    if first.identity != remembered.first_identity or table is None:
        return
    if weights_digest(table) != remembered.base_weights:
        raise WrongBase(
            f"--cache {context.paths.root} was seeded from a base that is not the one version 1 was made against",
            hint="Give --base the checkpoint that hosts start from and a new --cache, or publish a full version.",
        )
