"""What is to be published: a checkpoint on disk, or tensors in memory. Reads only.

A checkpoint must be whole, and the very same after its last byte was read as before the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from vime_sync.checkpoint import read_checkpoint
from vime_sync.errors import SourceNotReady, UsageError, name_some
from vime_sync.format.problems import FormatError, TruncatedError
from vime_sync.local.paths import local_paths
from vime_sync.model import VersionKind
from vime_sync.publish.auxiliary import carried_files, is_carried
from vime_sync.publish.choice import Signature
from vime_sync.publish.files import OpenFiles
from vime_sync.publish.tensors import NewTensor, Tensor, array_tensors, checkpoint_tensors
from vime_sync.publish.values import Options
from vime_sync.reconcile.sources import resolve_snapshot


class Source(Protocol):
    """Where the new bytes come from."""

    def signature(self) -> Signature | None:
        """Names, dtypes and shapes, where they are known before the tensors are read."""

    def tensors(self) -> Iterator[NewTensor]: ...

    def rewind(self, why: str) -> None:
        """Make `tensors` begin anew. Raises UsageError where it cannot."""

    def auxiliary(self) -> Mapping[str, Path]:
        """Config and tokenizer files, by relative name; empty where none are known."""

    def check_unchanged(self) -> None: ...


class CheckpointSource:
    """A directory that a trainer saved to, or an entry of a Hugging Face cache."""

    def __init__(self, directory: Path) -> None:
        """Raises SourceNotReady where it is not whole, UsageError where it is no checkpoint."""
        place = resolve_snapshot(directory)
        try:
            self.checkpoint = read_checkpoint(place, 0, VersionKind.FULL)
        except (TruncatedError, FileNotFoundError) as problem:
            if not place.is_dir():
                raise UsageError(f"--from {place} is not a directory, expected a checkpoint") from None
            raise SourceNotReady(f"--from {place} is not a whole checkpoint (yet): {problem}") from None
        except (FormatError, NotADirectoryError) as problem:
            raise UsageError(
                f"--from {place} cannot be read as a checkpoint: {problem}",
                hint="Point --from at a directory with config, *.safetensors and their index.",
            ) from None
        self.files = OpenFiles(lambda message: SourceNotReady(f"--from: {message}"))

    def __enter__(self) -> CheckpointSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.__exit__()

    def signature(self) -> Signature:
        return self.checkpoint.signature()

    def tensors(self) -> Iterator[NewTensor]:
        return checkpoint_tensors(self.checkpoint, self.files)

    def rewind(self, why: str) -> None:
        return

    def auxiliary(self) -> Mapping[str, Path]:
        return {name: file.path for name, file in self.checkpoint.auxiliary.items() if is_carried(name)}

    def omitted(self) -> str | None:
        """A warning that names what lies there and is not published."""
        names = [name for name in self.checkpoint.auxiliary if not is_carried(name) and not name.endswith(".json")]
        names += self.checkpoint.skipped
        return f"not published, as no engine reads it: {name_some(names)}" if names else None

    def check_unchanged(self) -> None:
        self.files.check_unchanged()


class ArraySource:
    """Tensors in memory. What can be iterated over only once cannot become a full version half way."""

    def __init__(self, tensors: Iterable[Tensor | tuple[str, Any]], files: Path | None, base: Path | None) -> None:
        """The files beside the weights are those of `files`, or else of `base`, if that is there.

        Raises UsageError where `files` is not.
        """
        if files is not None and not files.is_dir():
            raise UsageError(f"files={files} is not a directory, expected one with config and tokenizer files")
        self._given = tensors
        self._files = base if files is None and base is not None and base.is_dir() else files

    def signature(self) -> Signature | None:
        return None

    def tensors(self) -> Iterator[NewTensor]:
        return array_tensors(self._given)

    def rewind(self, why: str) -> None:
        if iter(self._given) is self._given:
            raise UsageError(
                f"{why}: that takes a full version, and the tensors could be gone through only once",
                hint='Publish this version with encoding="full", or give a list or another iterable that begins anew.',
            )

    def auxiliary(self) -> Mapping[str, Path]:
        return carried_files(resolve_snapshot(self._files)) if self._files is not None else {}

    def check_unchanged(self) -> None:
        return


def check_places(options: Options, source: Path) -> None:
    """What is published may not lie in the cache, nor the cache in it, nor the share in it. Raises UsageError."""
    given, share = Path(os.path.realpath(source)), Path(os.path.realpath(options.shared))
    if share.is_relative_to(given):
        raise UsageError(
            f"--shared {share} lies in --from {given}, expected two directories apart",
            hint="A full version carries all that lies beside the weights, and would carry the share.",
        )
    if options.cache is None:
        return
    cache = local_paths(options.cache).root
    if cache.is_relative_to(given) or given.is_relative_to(cache):
        raise UsageError(
            f"--from {given} and --cache {cache} lie in one another, expected two directories apart",
            hint="The cache is a directory of its own: it holds the version before.",
        )
