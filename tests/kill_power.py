"""What a power loss leaves of files that were not synced: bytes as they were, zeros, garbage, or nothing."""

import random
import struct
from dataclasses import dataclass, field
from pathlib import Path

from tests import toolkit
from tests.host import Host
from tests.kill_points import PULL_THREADS, kill
from tests.toolkit import Result

PAGE_BYTES = 4096


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in LOCAL."""

    path: Path
    offset: int
    size_bytes: int


def tensor_place(local: Path, tensor: str, shard: str | None = None) -> Place:
    """In the shard of that name, or in whichever has it."""
    for path in sorted(local.glob("*.safetensors")) if shard is None else [local / shard]:
        header, _ = toolkit.split_shard(path)
        if tensor in header:
            (header_bytes,) = struct.unpack("<Q", path.read_bytes()[:8])
            begin, end = header[tensor]["data_offsets"]
            return Place(path, 8 + header_bytes + begin, end - begin)
    raise AssertionError(f"no shard of {local} has {tensor}")


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Put bytes into a file behind everyone's back."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def lose_page(host: Host, tensor: str, how: str, old_version: int) -> None:
    """A page in the middle of a tensor did not reach the disk: it is zeros, garbage or what it was before."""
    place = tensor_place(host.local, tensor)
    start = place.size_bytes // 2 // PAGE_BYTES * PAGE_BYTES
    size = min(PAGE_BYTES, place.size_bytes - start)
    lost = {
        "zeros": bytes(size),
        "garbage": random.Random(tensor).randbytes(size),
        "old": host.models[old_version][tensor].data[start : start + size],
    }[how]
    overwrite(place.path, place.offset + start, lost)


def bring_undurable(host: Host, version: int) -> None:
    """The version is committed, and the process dies before the first byte of data was synced."""

    def at_first_sync(operation: str, path: Path) -> bool:
        return operation == "sync" and path.parent == host.local

    def pull() -> Result:
        return host.pull(*PULL_THREADS, version=version)

    kill(pull, 0, at_first_sync)
    status = toolkit.vime("status", "--local", host.local)
    assert (status.document["local_version"], status.document["durable"]) == (version, False)


@dataclass
class Unsynced:
    """An observer that knows which files hold writes that no sync has followed; `renamed` are new under their name."""

    local: Path
    paths: set[Path] = field(default_factory=set)
    renamed: set[Path] = field(default_factory=set)

    def __call__(self, operation: str, path: Path) -> None:
        if operation in ("write", "create", "truncate"):
            self.paths.add(path)
        elif operation == "rename" and toolkit.STATE_DIRECTORY not in path.relative_to(self.local).parts:
            self.paths.add(path)  # records are synced before they are renamed, files of the checkpoint need not be
            self.renamed.add(path)
        elif operation == "sync":
            self.paths.discard(path)


def lose_power(generator: random.Random, unsynced: Unsynced, before: dict[Path, bytes]) -> list[str]:
    """Each file with unsynced writes keeps them, loses some pages, or (if it was new) its tail or all of it.

    `before` holds what was durable. Returns what was done, for the message of a test that fails.
    """
    done = []
    for path in sorted(unsynced.paths):
        if not path.exists():
            continue
        content = path.read_bytes()
        old = before.get(path) if path not in unsynced.renamed else None
        fates = ["kept", "pages", "pages", "all"]
        if old is None:
            fates = ["kept", "pages", "cut"] if path in unsynced.renamed else ["kept", "pages", "cut", "gone"]
        fate = generator.choice(fates)
        if fate == "gone":
            path.unlink()
        elif fate == "cut":
            path.write_bytes(content[: generator.randrange(len(content) + 1)])
        elif fate == "all" and old is not None:
            path.write_bytes(old)
        elif fate == "pages":
            path.write_bytes(_with_lost_pages(generator, content, old))
        if fate != "kept":
            done.append(f"{path.name}: {fate}")
    return done


def _with_lost_pages(generator: random.Random, content: bytes, old: bytes | None) -> bytes:
    """Some pages hold what was there before: the old bytes, or zeros."""
    beneath = (old or b"")[: len(content)].ljust(len(content), b"\0")
    pages = []
    for start in range(0, len(content), PAGE_BYTES):
        source = beneath if generator.random() < 0.3 else content
        pages.append(source[start : start + PAGE_BYTES])
    return b"".join(pages)
