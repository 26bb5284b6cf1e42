"""Passes that bring whole files: seeds and full versions built aside, and lost files built anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vime_sync.errors import Damaged, StreamChanged, name_some
from vime_sync.local.layout import read_layout
from vime_sync.local.ownership import foreign_files, read_manifest, remove_stale
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import read_state
from vime_sync.materialize.aside import build_aside
from vime_sync.materialize.context import Context
from vime_sync.materialize.install import install, install_repaired
from vime_sync.materialize.rebuild import Chain
from vime_sync.model import Checkpoint, DeltaVersion, Lineage, lineage_entry
from vime_sync.plan import PlannedPass
from vime_sync.reconcile.request import Local, Report, Request
from vime_sync.reconcile.sources import Sources, open_chain
from vime_sync.stream.payloads import SourceFiles


def text(path: Path | None) -> str | None:
    return str(path) if path is not None else None


def delta_of(sources: Sources, version: int) -> DeltaVersion:
    found = sources.published(version)
    if not isinstance(found, DeltaVersion):
        raise StreamChanged(f"version {version} is another kind of version than a moment ago", version=version)
    return found


def planned_chain(sources: Sources, planned: PlannedPass, files: SourceFiles) -> Chain:
    """The chain of a pass that starts at an anchor."""
    assert planned.anchor is not None
    return chain_of(sources, planned.anchor, planned.deltas, files)


def chain_of(sources: Sources, anchor: int, deltas: Sequence[int], files: SourceFiles) -> Chain:
    return open_chain(sources.anchor(anchor), [delta_of(sources, version) for version in deltas], files)


def lineage_of(chain: Chain) -> Lineage:
    return (lineage_entry(chain.anchor), *(lineage_entry(delta) for delta in chain.deltas))


def seed(context: Context, request: Request, report: Report, chain: Chain, local: Local | None) -> Local:
    """Build the chain's last version aside and put it in place of whatever of ours is there."""
    built = build_aside(context, chain)
    replaceable, removable = files_of_ours(context.paths, request, local)
    state = install(
        context,
        built,
        lineage_of(chain),
        local.state if local is not None else None,
        replaceable,
        removable,
        text(request.share),
        text(request.base),
    )
    report.tensors_changed = len(built.table.tensors)
    warn_of_others(context.paths, report, set(built.table.files), chain.anchor)
    return Local(state, built.table)


def files_of_ours(paths: LocalPaths, request: Request, local: Local | None) -> tuple[set[str], set[str]]:
    """The files that may be replaced by name, and those that may be removed (promise 5).

    Ours both ways are those we wrote, and in the peers' directory their checkpoint. What the operator handed over may
    be replaced; it is not removed.
    """
    ours = read_manifest(paths) if local is None else {*local.table.files, *read_manifest(paths)}
    reading = read_state(paths)
    theirs = local is None and (reading.peer_version is not None or (reading.present and not ours))
    all_theirs = theirs and not ours
    if theirs:
        ours = ours | {path.name for path in paths.root.glob("*.safetensors*")}
    if request.adopt or all_theirs:
        return {*ours, *foreign_files(paths, ours)}, ours
    return ours, ours


def warn_of_others(paths: LocalPaths, report: Report, ours: set[str], anchor: Checkpoint) -> None:
    others = foreign_files(paths, ours)
    if others:
        report.warnings.append(f"{paths.root} also holds files that are not part of it: {name_some(others)}")
    if anchor.skipped:
        report.warnings.append(f"not copied, because the index does not name them: {name_some(anchor.skipped)}")


def mend_files(context: Context, sources: Sources, report: Report, local: Local) -> Local:
    """Files that are gone, cut or wrong outside their tensors are built anew from the anchor along the chain.

    Raises Damaged where the anchor has no such file, or its bytes come out differently.
    """
    paths = context.paths
    layout = read_layout(paths, local.table)
    wrong = frozenset(name for name in (*local.state.damaged, *layout.broken) if name in local.table.files)
    if not wrong:
        return local
    version = local.state.version
    remove_stale(paths, set(local.table.files))  # a file may have to make way for a folder, or a folder for a file
    with report.timed("seed"), SourceFiles() as files:
        chain = sources.lineage_chain(local.state.lineage, files)
        built = build_aside(context, chain, wrong)
        for name in sorted(wrong):
            if built.table.files.get(name) != local.table.files[name]:
                raise Damaged(
                    f"{paths.file(name)} is damaged, and {chain.anchor.directory} has no such file to mend it by",
                    version=version,
                )
        different = [name for name, digest in built.table.tensors.items() if local.table.tensors[name] != digest]
        if different:
            raise Damaged(
                f"{chain.anchor.directory} is not the anchor that version {version} was built from: "
                f"{name_some(different)} come out differently",
                version=version,
                tensors=different,
            )
        state = install_repaired(context, built, local.state)
    report.tensors_repaired += len(built.table.tensors) or len(wrong)
    return Local(state, local.table)
