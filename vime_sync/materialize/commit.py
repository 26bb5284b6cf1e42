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
from vime_sync.local.state import boot_id, drop_tables, write_state, write_table
from vime_sync.materialize.context import Context
from vime_sync.model import DigestTable, FileStat, LocalState


def commit(context: Context, state: LocalState, table: DigestTable | None, *, keep: bool = False) -> LocalState:
    """Make `state` the truth, with a new digest table where given; ends the intent. Returns it as written.

    With `keep` what was staged stays, so that the pass can be taken back.
    """
    if table is not None:
        state = replace(state, table_name=write_table(context.paths, table))
    if context.durable:
        _sync_files(context.paths, state)
    state = replace(state, boot_id=boot_id(), durable=context.durable)
    write_state(context.paths, state)
    if keep:
        intents.end_and_keep(context.paths)
        return state
    intents.end(context.paths)
    if table is not None:
        intents.drop_kept(context.paths)  # it led to the version before this one
    return state


def make_durable(context: Context, state: LocalState) -> LocalState:
    """Sync every file of the checkpoint and say so in the state. Only then can older digest tables go."""
    if not state.durable:
        _sync_files(context.paths, state)
        state = replace(state, durable=True)
        write_state(context.paths, state)
    drop_tables(context.paths, {state.table_name, state.anchor_table_name})
    return state


def _sync_files(paths: LocalPaths, state: LocalState) -> None:
    folders: set[Path] = set()
    for name in state.stats:
        path = paths.file(name)
        fsio.sync_file(path)
        folders.update(parent for parent in path.parents if parent.is_relative_to(paths.root))
    for folder in sorted(folders):
        fsio.sync_directory(folder)


def current_stats(paths: LocalPaths, names: set[str]) -> dict[str, FileStat]:
    return {name: fsio.stat(paths.file(name)) for name in names}
