"""What may lie in LOCAL once everything is done: the newest model, its files, and a few records of bounded size."""

from collections import Counter
from pathlib import Path

from tests import toolkit
from tests.toolkit import Model

# What the last pass keeps of at most so many deltas, each with frames and old values, and one record of it.
_KEPT_FILES = 1 + 2 * 12
# State, engines, owner, manifest, lock and its holder, and what an error left.
_OTHER_FILES = 10
# Of the version and of its anchor, once the version is durable.
_TABLES = 2
_RECORDS_BYTES = 256 << 10


def check_local(local: Path, model: Model, file_names: set[str]) -> None:
    """Raises AssertionError naming what does not belong there."""
    assert toolkit.read_checkpoint(local) == model, "LOCAL is not the newest model"
    names = set(toolkit.snapshot(local))
    assert names == file_names, f"files in LOCAL that are missing or too many: {sorted(names ^ file_names)}"
    own = [path for path in (local / toolkit.STATE_DIRECTORY).rglob("*") if path.is_file()]
    listed = "\n".join(f"{path.stat().st_size:>9} {path.relative_to(local)}" for path in sorted(own))
    folders = Counter(path.parent.name for path in own)
    kept, tables = folders.pop("kept", 0), folders.pop("digests", 0)
    assert folders.keys() == {toolkit.STATE_DIRECTORY}, f"something was not tidied up:\n{listed}"
    assert folders.total() <= _OTHER_FILES, f"too many records:\n{listed}"
    assert kept <= _KEPT_FILES, f"too much is kept:\n{listed}"
    assert tables <= _TABLES, f"older digest tables stay:\n{listed}"
    size_bytes, model_bytes = sum(path.stat().st_size for path in own), sum(len(item.data) for item in model.values())
    allowed = 2 * model_bytes + _RECORDS_BYTES
    assert size_bytes <= allowed, f"{size_bytes} bytes of our own, allowed {allowed}:\n{listed}"
