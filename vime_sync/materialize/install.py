"""Files built aside become LOCAL's: renamed one by one under an intent that lists both file sets.

Forward only: once the intent is durable everything needed lies in LOCAL, so a kill is finished by renaming the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vime_sync import fsio
from vime_sync.errors import Damaged
from vime_sync.local import intent as intents
from vime_sync.local.intent import ReplaceIntent
from vime_sync.local.ownership import check_collisions, read_manifest, remove_stale, write_manifest
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import boot_id, write_state, write_table
from vime_sync.materialize.aside import Built, clear_aside
from vime_sync.materialize.commit import clear, commit, current_stats
from vime_sync.materialize.context import Context
from vime_sync.model import FileStat, Lineage, LocalState


def install(
    context: Context,
    built: Built,
    lineage: Lineage,
    origin: LocalState | None,
    replaceable: set[str],
    removable: set[str],
    share: str | None,
    base: str | None,
) -> LocalState:
    """Commit what `build_aside` built as LOCAL's version.

    `replaceable` are files there that may be overwritten by name, `removable` those that we wrote and may remove.
    Raises NotOurs before anything changes when a file of the user's is in the way.
    """
    paths = context.paths
    check_collisions(paths, sorted(built.moves), replaceable)
    stats = {name: fsio.stat(paths.aside / place) for name, place in built.moves.items()}
    if context.durable:
        for place in built.moves.values():
            fsio.sync_file(paths.aside / place)
    state = LocalState(
        version=built.table.version,
        lineage=lineage,
        table_name=write_table(paths, built.table),
        stats=stats,
        boot_id=boot_id(),
        durable=context.durable,
        share=share,
        base=base,
        anchor_table_name=write_table(paths, built.anchor_table),
        repairs=origin.repairs if origin is not None else 0,
    )
    write_manifest(paths, {*read_manifest(paths), *removable, *built.moves})
    intent = ReplaceIntent(state, built.moves, origin.version if origin is not None else None)
    intents.begin(paths, intent)
    return finish_install(context, intent)


def finish_install(context: Context, intent: ReplaceIntent) -> LocalState:
    """Rename what is still aside, remove what the version lacks, commit. Also what recovery does after a kill."""
    paths = context.paths
    _check_built(paths, intent.moves, intent.state.stats)
    remove_stale(paths, set(intent.moves))  # first: a file may have to make way for a folder, or a folder for a file
    _move(paths, intent.moves)
    stats = current_stats(paths, set(intent.moves))
    same_boot = intent.state.boot_id == boot_id()
    state = commit(context, replace(intent.state, stats=stats), None, trusted=same_boot)
    clear(paths, keep=False)
    clear_aside(paths)
    return state


def install_repaired(context: Context, built: Built, state: LocalState) -> LocalState:
    """Put rebuilt files of the committed version in place. Each is proven, so no intent is needed."""
    paths = context.paths
    place(paths, built)
    mended = {*built.moves, *built.table.tensors}
    state = replace(
        state,
        stats={**state.stats, **current_stats(paths, set(built.moves))},
        damaged=tuple(name for name in state.damaged if name not in mended),
        repairs=state.repairs + 1,
        durable=False,
        boot_id=boot_id(),
    )
    write_state(paths, state)
    return state


def place(paths: LocalPaths, built: Built) -> None:
    """Rename what was built over LOCAL's files of the same names, each proven."""
    check_collisions(paths, built.moves, {*built.moves, *read_manifest(paths)})
    _move(paths, built.moves)
    clear_aside(paths)


def _check_built(paths: LocalPaths, moves: Mapping[str, str], stats: Mapping[str, FileStat]) -> None:
    """Every file is either aside or in place, and the very one that was proven. Raises Damaged before any moves."""
    for name, source in moves.items():
        aside, target = paths.aside / source, paths.file(name)
        place = aside if aside.exists() else target
        if not place.is_file() or fsio.stat(place).content_key != stats[name].content_key:
            raise Damaged(f"{target} was being put in place, and neither it nor {aside} is the file that was proven")


def _move(paths: LocalPaths, moves: Mapping[str, str]) -> None:
    for name, source in sorted(moves.items()):
        if (paths.aside / source).exists():
            fsio.make_directory(paths.file(name).parent)
            fsio.rename(paths.aside / source, paths.file(name))
    for folder in sorted({paths.file(name).parent for name in moves}):
        fsio.sync_directory(folder)
