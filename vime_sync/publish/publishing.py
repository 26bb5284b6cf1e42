"""From a checkpoint or tensors to a published version: the order of it all.

Lock, look, choose a number, have the old bytes, compare, write aside, read back, appear. Until the last step nothing
that a receiver could take is there; what fails is removed, and what a kill leaves is removed by the next run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from vime_sync import fsio
from vime_sync.errors import LocalIOError, PublisherConflict, SyncError, UsageError
from vime_sync.local.paths import LocalPaths, local_paths
from vime_sync.local.state import weights_digest
from vime_sync.materialize.context import Context, StopFlag, Tally, default_threads
from vime_sync.model import Checkpoint, VersionKind
from vime_sync.publish.auxiliary import left_behind
from vime_sync.publish.choice import Choice, Signature, choose, delta_encoding, difference
from vime_sync.publish.delta import Compared, Differs, How, build_delta
from vime_sync.publish.full import check_room, copy_checkpoint, write_tensors
from vime_sync.publish.previous import Previous, open_previous
from vime_sync.publish.remembered import check_cache, remember_apart, remember_published
from vime_sync.publish.source import CheckpointSource, Source
from vime_sync.publish.values import Options, Publication
from vime_sync.publish.workshop import BaseRecord, Build, Workshop, expect_share, open_workshop
from vime_sync.stream.catalog import Catalog, read_version

# A publication without a cache has no LOCAL; nothing is ever looked for there.
_NOWHERE = LocalPaths(Path("/nonexistent"))


@dataclass
class _Run:
    """One publication under way."""

    options: Options
    context: Context
    warnings: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("cache", "diff", "write"), 0.0))

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += time.monotonic() - started


def publish(source: Source, options: Options, stop: StopFlag, tally: Tally) -> Publication:
    """Publish the next version. Raises SyncError; nothing is published then."""
    started = time.monotonic()
    options = replace(options, shared=options.shared.absolute())
    paths = local_paths(options.cache) if options.cache is not None else _NOWHERE
    run = _Run(options, Context(paths, options.threads or default_threads(), stop, tally))
    try:
        expect_share(options.shared)
        if options.cache is not None:  # first of all: not even a lock is made in an empty mount point
            check_cache(paths, options)
        with open_workshop(options.shared, run.warn) as workshop:
            publication = _publish(run, source, workshop)
    except OSError as problem:
        raise LocalIOError(f"{problem.filename or options.shared}: {problem.strerror or problem}") from problem
    seconds = {**run.seconds, "total": time.monotonic() - started}
    return replace(publication, seconds=seconds, warnings=tuple(run.warnings))


def _publish(run: _Run, source: Source, workshop: Workshop) -> Publication:
    catalog = Catalog(run.options.shared)
    choice = choose(run.options, catalog.versions, workshop.taken())
    if not choice.is_full:
        try:
            return _publish_delta(run, source, workshop, catalog, choice)
        except Differs as problem:
            source.rewind(str(problem))
            run.warn(f"published as a full version: {problem}")
    return _publish_full(run, source, workshop, catalog, choice)


@contextmanager
def _build(workshop: Workshop) -> Iterator[Build]:
    """Where to build; gone afterwards, unless it was released."""
    build = workshop.new_build()
    try:
        yield build
    finally:
        workshop.discard(build)


# ---- delta


def _publish_delta(run: _Run, source: Source, workshop: Workshop, catalog: Catalog, choice: Choice) -> Publication:
    started = time.monotonic()
    newest_files = _fingerprint(catalog, choice)
    remembered = workshop.remembered_base(run.warn)
    with (
        open_previous(run.options, choice, catalog, remembered, run.context, run.warn) as previous,
        _build(workshop) as build,
    ):
        run.seconds["cache"] = time.monotonic() - started
        signature = source.signature()
        if signature is not None and (how_it_differs := difference(previous.signature, signature)):
            raise Differs(how_it_differs)
        how = _how(run, previous)
        compared = _compare(run, source, previous, choice, how, build)
        with run.timed("write"):
            written = read_version(build.directory, choice.version, run.options.shared)
            source.check_unchanged()
            previous.files.check_unchanged()
            if (warning := left_behind(previous.auxiliary, source.auxiliary())) is not None:
                run.warn(warning)
            if not choice.newest:
                workshop.remember_base(BaseRecord(weights_digest(compared.old_table()), written.identity))
            wire_bytes = _wire_bytes(build)
            run.context.stop.check()
            if _fingerprint(catalog, choice) != newest_files:
                raise PublisherConflict(f"version {choice.newest} was replaced while the next one was made against it")
            path = workshop.release(build, choice.version)
            if run.options.cache is not None:
                _remember(run, choice, is_held=True)
    return Publication(
        choice.version, path, VersionKind.DELTA, how.encoding.value, how.checksum.value,
        compared.tensors_changed, len(previous.spans), compared.changed_bytes, compared.total_bytes, wire_bytes, {}, (),
    )  # fmt: skip


def _remember(run: _Run, choice: Choice, *, is_held: bool) -> None:
    """`is_held`: whether the cache's lock is ours already. The version is there, whatever comes of it."""
    paths, share = run.context.paths, run.options.shared
    try:
        if is_held:
            remember_published(paths, share, choice.version)
        else:
            remember_apart(paths, share, choice.version, run.context.stop.check)
    except OSError as problem:
        trouble = f"{problem.filename}: {problem.strerror}"
    except SyncError as problem:
        trouble = problem.message
    else:
        return
    run.warn(f"{trouble}: the cache does not know that version {choice.version} is out")


def _fingerprint(catalog: Catalog, choice: Choice) -> str | None:
    return catalog.fingerprint(choice.newest) if choice.newest else None


def _how(run: _Run, previous: Previous) -> How:
    sizes = {name: span.size_bytes for name, span in previous.spans.items()}
    encoding, warning = delta_encoding(run.options.encoding, sizes)
    if warning is not None:
        run.warn(warning)
    return How(encoding, run.options.checksum, run.options.level, run.options.shard_size_bytes)


def _compare(run: _Run, source: Source, previous: Previous, choice: Choice, how: How, build: Build) -> Compared:
    began = time.monotonic()

    def all_compared() -> None:
        run.seconds["diff"] = time.monotonic() - began

    compared = build_delta(
        source.tensors(), previous, choice.version, how, build, run.context, before_writing=all_compared
    )
    run.seconds["write"] += time.monotonic() - began - run.seconds["diff"]
    return compared


# ---- full


def _publish_full(run: _Run, source: Source, workshop: Workshop, catalog: Catalog, choice: Choice) -> Publication:
    newest = catalog.entry(choice.newest) if choice.newest else None
    if isinstance(newest, SyncError):
        run.warn(f"published above version {choice.newest}, which hosts cannot use: {newest.message}")
    with run.timed("write"), _build(workshop) as build:
        if isinstance(source, CheckpointSource):
            written = _copied(run, source, choice, build)
        else:
            written = _gathered(run, source, choice, build)
        source.check_unchanged()
        wire_bytes = _wire_bytes(build)
        run.context.stop.check()
        path = workshop.release(build, choice.version)
    if run.options.cache is not None:
        _remember(run, choice, is_held=False)
    sizes = [span.size_bytes for span in written.spans().values()]
    return Publication(
        choice.version, path, VersionKind.FULL, None, None, None, len(sizes), None, sum(sizes), wire_bytes, {}, ()
    )


def _copied(run: _Run, source: CheckpointSource, choice: Choice, build: Build) -> Checkpoint:
    if (warning := source.omitted()) is not None:
        run.warn(warning)
    check_room(run.options.shared, source.checkpoint.size_bytes)
    copy_checkpoint(source.checkpoint, source.auxiliary(), build, source.files, run.context)
    return _read_back(run, choice, build, source.checkpoint.signature())


def _gathered(run: _Run, source: Source, choice: Choice, build: Build) -> Checkpoint:
    auxiliary = source.auxiliary()
    if not auxiliary:
        raise UsageError(
            "a full version carries config and tokenizer files too, and none are given",
            hint="Give files=DIR, a directory that holds them (the base will do).",
        )
    signature = write_tensors(source.tensors(), auxiliary, build, run.options.shard_size_bytes, run.context)
    if not signature:
        raise UsageError("no tensors are given")
    return _read_back(run, choice, build, signature)


def _read_back(run: _Run, choice: Choice, build: Build, signature: Signature) -> Checkpoint:
    """What stands there as a receiver reads it is what was to be written. Raises LocalIOError."""
    found = read_version(build.directory, choice.version, run.options.shared)
    if not isinstance(found, Checkpoint) or found.signature() != signature:
        raise LocalIOError(f"version {choice.version} does not read back as the checkpoint that was given")
    return found


def _wire_bytes(build: Build) -> int:
    files = fsio.walk(build.directory, follow_links=False, skip=frozenset())
    return sum(fsio.stat(path).size_bytes for _, path in files)
