"""The end of every job: what was proven becomes the committed version.

Order: digest table, then `state.json` (each durable), then the intent and what was staged go. The data itself is made
durable before that with `--durable`, else behind it by `make_durable`; until then the state says so, with the boot
id, and after a power loss it is not believed (FIELD_GUIDE H3).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vime_sync import fsio
from vime_sync.local import intent as intents
from vime_sync.local.paths import LocalPaths
from vime_sync.local.state import DISTRUSTED_BOOT, boot_id, drop_tables, write_state, write_table
from vime_sync.materialize.context import Context
from vime_sync.model import DigestTable, FileStat, LocalState


def commit(context: Context, state: LocalState, table: DigestTable | None, *, trusted: bool = True) -> LocalState:
    """Make `state` the truth, with a new digest table where given. Returns it as written.

    Not `trusted` is what a power loss may have touched beside the job that is being finished: the state then asks
    for every byte to be hashed, also of a run that is killed right after this (FIELD_GUIDE H3).
    What is left of the job is cleared by `clear` after that: a failure there must not undo what is committed.
    """
    if table is not None:
        state = replace(state, table_name=write_table(context.paths, table))
    if context.durable:
        sync_files(context, state)
    boot = boot_id() if trusted else DISTRUSTED_BOOT
    state = replace(state, boot_id=boot, durable=context.durable and trusted)
    write_state(context.paths, state)
    return state


def clear(paths: LocalPaths, *, keep: bool) -> None:
    """End the intent of a job that led to a new version; with `keep` what it staged stays, to take it back."""
    if keep:
        intents.end_and_keep(paths)
    else:
        intents.end(paths)
        intents.drop_kept(paths)  # it led to the version before this one


def make_durable(context: Context, state: LocalState) -> LocalState:
    """Sync every file of the checkpoint and say so in the state. Only then can older digest tables go."""
    if not state.durable:
        try:
            sync_files(context, state)
        except OSError:
            distrust(context, state)
            raise
    return note_durable(context, state)


def note_durable(context: Context, state: LocalState) -> LocalState:
    """Every file of `state` was synced after it was committed, and it still is the committed one."""
    if not state.durable:
        state = replace(state, durable=True, boot_id=boot_id())
        write_state(context.paths, state)
    drop_tables(context.paths, {state.table_name, state.anchor_table_name})
    return state


def distrust(context: Context, state: LocalState) -> None:
    """A sync failed: the kernel reports a lost write once, and counts the pages as clean from then on."""
    write_state(context.paths, replace(state, boot_id=DISTRUSTED_BOOT))


def sync_files(context: Context, state: LocalState) -> None:
    """Have the kernel write every file of a version, and their names. Raises OSError."""
    paths = context.paths
    context.tally.start("sync", len(state.stats), sum(stat.size_bytes for stat in state.stats.values()))
    folders: set[Path] = set()
    for name in state.stats:
        path = paths.file(name)
        fsio.sync_file(path)
        context.tally.advance("sync", state.stats[name].size_bytes)
        folders.update(parent for parent in path.parents if parent.is_relative_to(paths.root))
    for folder in sorted(folders):
        fsio.sync_directory(folder)


def forget_cache(paths: LocalPaths, state: LocalState) -> None:
    """Have the files read from the disk again, after a sync of them failed."""
    for name in state.stats:
        if paths.file(name).is_file():
            fsio.forget_cache(paths.file(name))


def current_stats(paths: LocalPaths, names: set[str]) -> dict[str, FileStat]:
    return {name: fsio.stat(paths.file(name)) for name in names}
