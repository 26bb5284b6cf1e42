"""What stands on the share: versions, their kind, readiness and identity.

Never writes. Not there, unreachable, not ready, malformed and ill-fitting are told apart here (promise 6): an entry
is a parsed version, or the error that says why it is none.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vime_sync import fsio
from vime_sync.checkpoint import SINGLE_NAME, fingerprint, read_checkpoint, read_index, read_shard
from vime_sync.errors import LineageMismatch, Malformed, NotReady, ShareUnreachable, SyncError
from vime_sync.format.delta import Duplicate, assemble, delta_identity
from vime_sync.format.index import INDEX_NAME, Index, version_of_directory
from vime_sync.format.problems import FormatError, TruncatedError
from vime_sync.model import Checkpoint, DeltaVersion, Published, ShardFile, VersionKind


@dataclass(frozen=True)
class Refusal:
    """Why a version was no good when it was tried; it counts while the version's files have this `fingerprint`."""

    fingerprint: str
    error: SyncError


# Names, dtypes and shapes of the checkpoint that a full version without an index must match (FIELD_GUIDE S5).
Signature = Mapping[str, tuple[str, tuple[int, ...]]]
# Asked for only where there is such a version: it takes the headers of the whole checkpoint. Raises SyncError.
Reference = Callable[[], Signature | None]
Entry = Published | SyncError

_HEX = re.compile(r"[0-9a-fA-F]{8,}")
_COMPARE_BYTES = 1 << 20
_GONE = (errno.ENOENT, errno.ENOTDIR)


class Catalog:
    """One look at a share: the list of versions is read once, each version when it is asked for."""

    def __init__(
        self, share: Path, reference: Reference | None = None, refused: Mapping[int, Refusal] | None = None
    ) -> None:
        """Raises ShareUnreachable when the directory cannot be listed (FIELD_GUIDE S16)."""
        self._reference = reference
        self._refused = refused or {}
        self._entries: dict[int, Entry] = {}
        try:
            found = ((version_of_directory(entry.name), entry) for entry in share.iterdir())
            self._directories = {version: path for version, path in found if version is not None and path.is_dir()}
        except OSError as problem:
            raise ShareUnreachable(
                f"listing {share}: {problem.strerror}; expected a readable directory of weight_v* versions"
            ) from None
        self.share = share

    @property
    def versions(self) -> tuple[int, ...]:
        """All numbers that have a directory, ready or not, ascending."""
        return tuple(sorted(self._directories))

    def entry(self, version: int) -> Entry:
        """The version parsed, or why it cannot be used. `version` must be one of `versions`."""
        if version not in self._entries:
            directory = self._directories[version]
            try:
                if self.is_refused(version):
                    raise self._refused[version].error.with_traceback(None)
                self._entries[version] = read_version(directory, version, self.share, self._reference)
            except SyncError as problem:
                self._entries[version] = problem
        return self._entries[version]

    def is_refused(self, version: int) -> bool:
        """Whether it was tried and was no good, and its files have not changed since."""
        refusal = self._refused.get(version)
        return refusal is not None and version in self._directories and refusal.fingerprint == self.fingerprint(version)

    def fingerprint(self, version: int) -> str | None:
        """The stats of a version's files as one digest, without parsing them; None when they cannot be read."""
        try:
            return _fingerprint(self._directories[version])
        except OSError:
            return None


def read_version(directory: Path, version: int, share: Path, reference: Reference | None = None) -> Published:
    """Parse and cross-check one published version; no payload is decoded.

    Raises NotReady, Malformed, LineageMismatch, ShareUnreachable, each naming the version.
    """
    try:
        try:
            return _read(directory, version, share, reference)
        except OSError as problem:
            if problem.errno != errno.ESTALE:
                raise
            return _read(directory, version, share, reference)  # a stale handle is found anew by its name, once
    except TruncatedError as problem:
        raise NotReady(f"version {version} in {directory} is not complete: {problem}", version=version) from None
    except FormatError as problem:
        raise Malformed(f"version {version} in {directory} is malformed: {problem}", version=version) from None
    except OSError as problem:
        raise read_problem(problem, version, directory) from None


def _read(directory: Path, version: int, share: Path, reference: Reference | None) -> Published:
    _check_inside(directory, share)
    found = read_index(directory)
    if found is not None and found[0].delta is not None:
        return _read_delta(directory, version, found[0])
    return _read_full(directory, version, found is not None, reference)


def read_problem(problem: OSError, version: int, place: Path) -> SyncError:
    """What an OSError while reading the share means: files not there yet (or no more), or a share in trouble."""
    if problem.errno in _GONE:
        missing = problem.filename or place
        return NotReady(f"version {version}: {missing} is not there (yet)", version=version)
    if problem.errno in (errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENXIO):
        return Malformed(f"version {version}: {problem.filename or place}: {problem.strerror}", version=version)
    return ShareUnreachable(f"reading version {version} in {place}: {problem.strerror}", version=version)


def _check_inside(path: Path, outer: Path) -> None:
    """Links may not lead out of the directory that is read (FIELD_GUIDE S19)."""
    # os.path.realpath, unlike Path.resolve, bears a link to itself.
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(outer)):
        raise FormatError(f"{path.name} is a link that leads out of {outer}")


def _fingerprint(directory: Path) -> str:
    files = fsio.walk(directory, follow_links=False, skip=frozenset())
    return fingerprint({name: fsio.to_stat(path.lstat()) for name, path in files})


def _read_delta(directory: Path, version: int, index: Index) -> DeltaVersion:
    delta = index.delta
    assert delta is not None
    print_before = _fingerprint(directory)
    if delta.version != version:
        raise FormatError(f"{INDEX_NAME} says version {delta.version}, expected {version} by its directory (S6)")
    if delta.base_version != version - 1:
        raise LineageMismatch(
            f"version {version} in {directory} builds on version {delta.base_version}, expected {version - 1}",
            version=version,
        )
    shards: dict[str, ShardFile] = {}
    for name in sorted(set(index.weight_map.values())):
        _check_inside(directory / name, directory)
        shards[name] = read_shard(directory, name)
    assembled = assemble(delta, index.weight_map, shards)
    for duplicate in assembled.duplicates:
        _check_equal(directory, duplicate)
    identity = delta_identity(delta, assembled.payloads)
    return DeltaVersion(
        version, directory, delta.base_version, delta.encoding, delta.checksum,
        assembled.payloads, shards, identity, print_before,
    )  # fmt: skip


def _check_equal(directory: Path, duplicate: Duplicate) -> None:
    """A tensor that two ranks wrote is used once when its payloads are equal (FIELD_GUIDE S7)."""
    first, second = duplicate.first, duplicate.second
    with fsio.File(directory / first.shard) as one, fsio.File(directory / second.shard) as other:
        for done in range(0, first.size_bytes, _COMPARE_BYTES):
            size = min(_COMPARE_BYTES, first.size_bytes - done)
            try:
                same = one.read_at(size, first.offset + done) == other.read_at(size, second.offset + done)
            except EOFError as problem:
                raise TruncatedError(str(problem)) from None
            if not same:
                raise FormatError(
                    f"{duplicate.tensor!r} stands in {first.shard} and in {second.shard} with different payloads"
                )


def _read_full(directory: Path, version: int, has_index: bool, reference: Reference | None) -> Checkpoint:
    """A directory without an index is not thereby full: publishers write a delta's index last (S1, S2)."""
    print_before = _fingerprint(directory)
    if not has_index:
        present = {entry.name for entry in directory.iterdir() if entry.name.endswith(".safetensors")}
        if present != {SINGLE_NAME}:
            raise TruncatedError(f"it has no {INDEX_NAME}, and not just one {SINGLE_NAME} either")
    checkpoint = read_checkpoint(directory, version, VersionKind.FULL)
    for name in (*checkpoint.shards, *checkpoint.auxiliary):
        _check_inside(directory / name, directory)
    if has_index:
        _check_no_delta(checkpoint)
    else:
        _check_single(checkpoint, reference)
    if _fingerprint(directory) != print_before:
        raise TruncatedError("its files changed while they were looked at")
    return checkpoint


def _check_no_delta(checkpoint: Checkpoint) -> None:
    """One flipped bit in the word `metadata` makes a delta's index a full one's, and its frames the weights (S18)."""
    for shard in checkpoint.shards.values():
        # A tensor may well be called `format`, which is a key that every checkpoint has.
        digests = [
            name for name in shard.metadata.keys() & shard.tensors.keys() if _HEX.fullmatch(shard.metadata[name])
        ]
        if any(shard.tensors[name].dtype == "U8" for name in digests):
            raise FormatError(
                f"{shard.name} holds digests of its tensors, as a delta's shards do, and {INDEX_NAME} is not a delta's"
            )


def _check_single(checkpoint: Checkpoint, reference: Reference | None) -> None:
    shard = checkpoint.shards[SINGLE_NAME]
    expected = reference() if reference is not None else None
    if expected is not None:
        if checkpoint.signature() != expected:
            raise TruncatedError(f"its {SINGLE_NAME} has other tensors than the checkpoint here, and no index says why")
    elif shard.metadata.keys() & shard.tensors.keys():
        raise TruncatedError(f"its {SINGLE_NAME} looks like a shard of a delta whose index is still to come")
