"""Which version comes next, and as what. Pure.

Rules: never a number that is there already; a delta only right above the newest; a full version anywhere above it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vime_sync.errors import UsageError, name_some
from vime_sync.format.codec import MAX_OVERWRITE_TENSOR_BYTES
from vime_sync.model import Encoding, version_label
from vime_sync.publish.values import Options, PublishEncoding

# Versions have up to 18 digits (docs/FORMAT.md): no single one may use them all up.
MAX_VERSION = 10**15

Signature = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Choice:
    """`newest` is the highest number that the share shows, ready or not; 0 where it shows none."""

    version: int
    newest: int
    is_full: bool


def choose(options: Options, versions: Collection[int], taken: Mapping[int, str]) -> Choice:
    """`taken` are names of the share that are no directory, by their number.

    Raises UsageError for a number that is taken, would leave a gap, or leaves no room above it.
    """
    newest = max(versions, default=0)
    version = newest + 1 if options.version is None else options.version
    is_full = options.encoding is PublishEncoding.FULL or bool(options.full_every and version % options.full_every == 0)
    if version < 1:
        raise UsageError("version 0 is the base and is never published", hint="Leave --version out.")
    if version > MAX_VERSION:
        raise UsageError(
            f"version {version}, expected at most {MAX_VERSION}: 18 digits are all, and others must follow",
            hint="Leave --version out; where the newest is as high, begin anew in another share.",
            version=version,
        )
    if version in taken:
        raise UsageError(
            f"{options.shared / taken[version]} is no directory, and takes the number of the version to publish",
            hint="Look whose it is, and remove or rename it; what a link there leads to may be unmounted.",
            version=version,
        )
    if version in versions:
        raise UsageError(
            f"version {version} is in {options.shared} already, and no version is ever published over",
            hint=f"Leave --version out: the next one is {newest + 1}. If its publisher died before it was complete, "
            f"remove weight_v{version_label(version)} first.",
            version=version,
        )
    if version < newest:
        raise UsageError(
            f"version {version} lies below version {newest}, the newest in {options.shared}",
            hint=f"Leave --version out: the next one is {newest + 1}.",
            version=version,
        )
    if not is_full and version != newest + 1:
        raise UsageError(
            f"a delta to version {version} needs version {version - 1}, and the newest in {options.shared} is {newest}",
            hint=f"Leave --version out, or jump to {version} with a full version (--encoding full).",
            version=version,
        )
    return Choice(version, newest, is_full)


def delta_encoding(wanted: PublishEncoding, sizes: Mapping[str, int]) -> tuple[Encoding, str | None]:
    """The encoding of a delta, and a warning where it is not the wanted one (FIELD_GUIDE H15)."""
    if wanted is not PublishEncoding.OVERWRITE:
        return Encoding.XOR, None
    long = [name for name, size_bytes in sizes.items() if size_bytes >= MAX_OVERWRITE_TENSOR_BYTES]
    if not long:
        return Encoding.OVERWRITE, None
    return Encoding.XOR, f"published as xor: overwrite ends below 4 GiB, and {name_some(long)} reaches it"


def difference(old: Signature, new: Signature) -> str | None:
    """How the names, dtypes and shapes of two checkpoints differ, in words; None where a delta can be made."""
    added, gone = new.keys() - old.keys(), old.keys() - new.keys()
    others = [name for name in new.keys() & old.keys() if new[name] != old[name]]
    parts = []
    if added:
        parts.append(f"{len(added)} tensors are new ({name_some(added)})")
    if gone:
        parts.append(f"{len(gone)} are gone ({name_some(gone)})")
    if others:
        parts.append(f"{len(others)} have another dtype or shape ({name_some(others)})")
    return ", ".join(parts) if parts else None
