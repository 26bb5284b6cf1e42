"""Where bytes can come from: the share's versions and the base, opened when a plan or a repair asks for them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from vime_sync.checkpoint import read_checkpoint
from vime_sync.errors import Damaged, ShareUnreachable, StreamChanged, SyncError, UsageError
from vime_sync.format.problems import FormatError
from vime_sync.materialize.rebuild import Chain
from vime_sync.model import Checkpoint, DeltaVersion, Lineage, Published, VersionKind
from vime_sync.stream.catalog import Catalog
from vime_sync.stream.payloads import SourceFiles, check_payloads

_MAX_NAME = 255
# What is named is no checkpoint, or not ours to read; anything else is its storage's trouble, and passes.
_NO_CHECKPOINT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EINVAL,
    errno.ELOOP,
    errno.ENXIO,
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
)


class Sources:
    """One look at share and base, kept for the length of a pass."""

    def __init__(self, share: Path | None, base: Path | None) -> None:
        self.share = share
        self._base_path = base
        self._base: Checkpoint | None = None
        self._catalog: Catalog | None = None

    def look_again(self) -> None:
        """Forget what the share showed: files changed under us, plan again."""
        self._catalog = None
        self._base = None

    def base(self) -> Checkpoint:
        """Raises UsageError when there is none, or it is no checkpoint; ShareUnreachable where its storage fails."""
        if self._base_path is None:
            raise UsageError("the base (version 0) is needed, and no --base is given")
        if self._base is None:
            directory = resolve_snapshot(self._base_path)
            try:
                self._base = read_checkpoint(directory, 0, VersionKind.BASE)
            except (FormatError, OSError) as problem:
                if isinstance(problem, OSError) and problem.errno not in _NO_CHECKPOINT:
                    raise ShareUnreachable(f"reading the base in {directory}: {problem.strerror}", version=0) from None
                raise UsageError(
                    f"--base {directory} cannot be read as a checkpoint: {problem}",
                    hint="Point --base at a directory with config, *.safetensors and their index.",
                ) from None
        return self._base

    def shows_nothing(self) -> bool:
        """Whether the share has no version at all: where bytes of ours lie here, it looks unmounted (S16)."""
        return self.share is not None and not self._look().versions

    def _look(self) -> Catalog:
        if self.share is None:
            raise UsageError("a published version is needed, and no --shared is given")
        if self._catalog is None:
            self._catalog = Catalog(self.share)
        return self._catalog

    def published(self, version: int) -> Published:
        """Raises the SyncError that says why the version cannot be used."""
        catalog = self._look()
        if version not in catalog.versions:
            raise StreamChanged(f"version {version} is not in {self.share} any more", version=version)
        entry = catalog.entry(version)
        if isinstance(entry, SyncError):
            raise entry
        return entry

    def anchor(self, version: int) -> Checkpoint:
        found = self.base() if version == 0 else self.published(version)
        if not isinstance(found, Checkpoint):
            raise StreamChanged(f"version {version} in {self.share} is not a full version any more", version=version)
        return found

    def lineage_chain(self, lineage: Lineage, files: SourceFiles) -> Chain:
        """The way from the anchor of `lineage` to its last version, as it was when the local bytes were built.

        Raises Damaged naming the version that is missing or is another one now, ShareUnreachable.
        """
        hint = f"Publish version {lineage[0].version} to {lineage[-1].version} again, or a full version."
        if lineage[0].version == 0:
            hint = (
                f"Give --base the checkpoint that the trainer started from; its deltas up to {lineage[-1].version} too."
            )
        try:
            anchor = self.anchor(lineage[0].version)
            deltas = []
            for entry in lineage[1:]:
                found = self.published(entry.version)
                if not isinstance(found, DeltaVersion) or found.identity != entry.identity:
                    raise Damaged(f"version {entry.version} in {self.share} is another one now", version=entry.version)
                deltas.append(found)
        except ShareUnreachable:
            raise
        except SyncError as problem:
            raise Damaged(
                f"rebuilding local bytes of version {lineage[-1].version}: {problem.message}",
                hint=hint,
                version=problem.version if problem.version is not None else lineage[0].version,
            ) from None
        return Chain(anchor, anchor.spans(), tuple(deltas), None, files)


def open_chain(anchor: Checkpoint, deltas: Sequence[DeltaVersion], files: SourceFiles) -> Chain:
    """Check all of the deltas that needs no decoding. Raises LineageMismatch, Malformed, and what the share raises."""
    spans = anchor.spans()
    content_sizes = tuple(check_payloads(delta, spans, files) for delta in deltas)
    return Chain(anchor, spans, tuple(deltas), content_sizes, files)


def resolve_snapshot(base: Path) -> Path:
    """A Hugging Face cache entry (models--org--name) stands for the snapshot that its main ref names."""
    try:
        revision = (base / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return base
    named = revision.isalnum() and len(revision) <= _MAX_NAME and (base / "snapshots" / revision).is_dir()
    return base / "snapshots" / revision if named else base
