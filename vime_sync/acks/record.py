"""Acks: one small file per host and LOCAL that tells trainers which version that LOCAL holds.

Owns the record `vime-sync/ack/1`, its file name, and how it is written and read. Whether a record is enough is decided
in `acks.judge`. The directory may be shared by thousands of hosts and written to by strangers: whatever lies in it, a
reader gets records and warnings, never an exception for contents. A record tells only what is committed, and holds no
time and no secret.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat as stat_module
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime_sync import fsio
from vime_sync.errors import LocalIOError, UsageError
from vime_sync.format.checksum import xxh3
from vime_sync.format.problems import FormatError
from vime_sync.format.strict_json import parse_object
from vime_sync.model import LocalState

SCHEMA = "vime-sync/ack/1"
# How many of the newest versions of the lineage a record names.
CHAIN_ENTRIES = 32

# A record of ours is 3 kB, and about 100 bytes more for each engine.
_MAX_FILE_BYTES = 1 << 20
_MAX_VERSION = 10**18
_MAX_NAME_CHARACTERS = 100
_SUFFIX = ".json"
# Replaced or taken away between the listing and the look.
_GONE = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True)
class AckEngine:
    """One engine as its host knows it; `version` is what it is known to have loaded."""

    url: str
    state: str
    version: int | None


@dataclass(frozen=True)
class Ack:
    """What one LOCAL holds. `local` is its absolute path as text.

    `lineage` is the digest over all its tensors' digests: equal wherever exactly the same weights are. `chain` has the
    newest versions that the bytes were built from, each with its published identity; the last one is `version`.
    """

    host: str
    local: str
    version: int
    lineage: str
    chain: tuple[tuple[int, str], ...]
    engines: tuple[AckEngine, ...] = ()
    durable: bool = False

    @property
    def file_name(self) -> str:
        return ack_file_name(self.host, self.local)


@dataclass(frozen=True)
class AckReading:
    """The records of a directory, by host and LOCAL, and what else in it looks like one but is none."""

    acks: tuple[Ack, ...]
    warnings: tuple[str, ...] = ()


def default_host_name() -> str:
    return socket.gethostname()


def check_host_name(host: str) -> str:
    """A name that `wait --hosts` can ask for. Raises UsageError."""
    if not host or not host.isprintable() or "," in host or host != host.strip() or host.isdigit() or len(host) > 255:
        raise UsageError(
            f"{host!r} cannot be this host's name in --ack-dir: expected printable text, no comma, no bare number",
            hint="Give another one with --host-name.",
        )
    return host


def make_ack(host: str, local: Path, state: LocalState, lineage: str, engines: Iterable[AckEngine] = ()) -> Ack:
    """The record of a committed state. `local` is the path with its links resolved, so that it has one name only."""
    chain = tuple((entry.version, entry.identity) for entry in state.lineage[-CHAIN_ENTRIES:])
    # What follows a `?` can be a webhook's secret.
    shown = tuple(AckEngine(engine.url.partition("?")[0], engine.state, engine.version) for engine in engines)
    return Ack(host, local_text(local), state.version, lineage, chain, shown, state.durable)


def local_text(local: Path) -> str:
    """A path need not be UTF-8, a record must be."""
    return os.fsencode(local).decode("utf-8", "backslashreplace")


def ack_file_name(host: str, local: str) -> str:
    """`<host>-<12 hex>.json`, the host's name for people and without anything that could lead out of the directory.

    The digest is of both, not of LOCAL alone: hosts whose names differ only in what is left out have their own files.
    """
    shown = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:_MAX_NAME_CHARACTERS].lstrip(".") or "host"
    digest = xxh3("\0".join((host, local)).encode())
    return f"{shown}-{digest[:12]}{_SUFFIX}"


# ---- writing


def write_ack(directory: Path, ack: Ack) -> bool:
    """Put the record in place, whole or not at all; False where it already says so.

    It is not synced: after a power loss it is written again. Raises LocalIOError; a daemon goes on without its record.
    """
    path = directory / ack.file_name
    content = to_bytes(ack)
    try:
        if _holds(path, content):
            return False
        if not directory.is_dir():
            _make(directory)
        fsio.write_atomic(path, content, durable=False)
    except OSError as problem:
        raise _problem(f"writing the record {path}", problem) from problem
    return True


def withdraw_ack(directory: Path, host: str, local: Path) -> bool:
    """Take this LOCAL's record away, for where nothing is committed any more: a fresh disk under the same name.

    False where there was none. Raises LocalIOError.
    """
    path = directory / ack_file_name(host, local_text(local))
    try:
        return fsio.unlink(path)
    except NotADirectoryError:
        return False
    except OSError as problem:
        raise _problem(f"removing the record {path}", problem) from problem


def to_bytes(ack: Ack) -> bytes:
    document = {
        "schema": SCHEMA,
        "host": ack.host,
        "local": ack.local,
        "version": ack.version,
        "lineage": ack.lineage,
        "chain": [[version, identity] for version, identity in ack.chain],
        "engines": [{"url": engine.url, "state": engine.state, "version": engine.version} for engine in ack.engines],
        "durable": ack.durable,
    }
    return json.dumps(document).encode() + b"\n"


def _holds(path: Path, content: bytes) -> bool:
    try:
        return _contents(path) == content
    except (OSError, FormatError):  # whatever it is, it is replaced
        return False


def _make(directory: Path) -> None:
    if not directory.parent.is_dir():
        raise LocalIOError(
            f"--ack-dir {directory} is not there, and neither is {directory.parent}",
            hint=f"Mount or make {directory.parent} on this host; the last directory of the path is made by itself.",
        )
    fsio.make_directory(directory)


def _problem(tried: str, problem: OSError) -> LocalIOError:
    return LocalIOError(
        f"{tried}: {problem.strerror or problem}", hint="Check that --ack-dir is mounted and this user may write there."
    )


# ---- reading


def read_acks(directory: Path) -> AckReading:
    """Every record below its right name; half-written ones have another. Raises OSError where it cannot be listed."""
    acks: list[Ack] = []
    warnings: list[str] = []
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIX))
    for name in names:
        try:
            acks.append(_read(directory / name))
        except FormatError as problem:
            warnings.append(f"{problem}; it is not counted")
        except OSError as problem:
            if problem.errno not in _GONE:
                warnings.append(f"{directory / name}: {problem.strerror or problem}; it is not counted")
    return AckReading(tuple(sorted(acks, key=lambda ack: (ack.host, ack.local))), tuple(warnings))


def _read(path: Path) -> Ack:
    ack = parse_ack(_contents(path), str(path))
    if ack.file_name != path.name:  # a copy must not count as a second host
        raise FormatError(f"{path} is the record of {ack.file_name} under another name")
    return ack


def _contents(path: Path) -> bytes:
    if not stat_module.S_ISREG(path.lstat().st_mode):  # no daemon writes a link, and opening a pipe can hang
        raise FormatError(f"{path} is no regular file")
    with fsio.File(path) as file:
        raw = file.read_up_to(_MAX_FILE_BYTES + 1, 0)
    if len(raw) > _MAX_FILE_BYTES:
        raise FormatError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
    return raw


def parse_ack(raw: bytes, what: str) -> Ack:
    """Fields that it does not know are left alone: a later release may write more. Raises FormatError."""
    document = parse_object(raw, what)
    if document.get("schema") != SCHEMA:
        raise FormatError(f"{what} has the schema {_shown(document.get('schema'))}, expected {SCHEMA}")
    fields = _Fields(document, what)
    version = fields.version("version")
    local, lineage = fields.text("local"), fields.text("lineage")
    if not local.startswith("/"):
        raise FormatError(f"{what}: local is {_shown(local)}, expected an absolute path")
    if not re.fullmatch(r"[0-9a-f]{1,128}", lineage):
        raise FormatError(f"{what}: lineage is {_shown(lineage)}, expected hex digits")
    engines = tuple(
        AckEngine(engine.text("url"), engine.text("state"), engine.version_or_null("version"))
        for engine in (_Fields(item, f"{what}: an engine") for item in fields.list("engines"))
    )
    chain = tuple(_link(item, what) for item in fields.list("chain"))
    numbers = [number for number, _ in chain]
    if numbers != sorted(set(numbers)) or numbers[-1:] != [version]:
        raise FormatError(f"{what}: chain does not lead up to version {version}")
    durable = document.get("durable")
    if not isinstance(durable, bool):
        raise FormatError(f"{what}: durable is {_shown(durable)}, expected true or false")
    return Ack(fields.text("host"), local, version, lineage, chain, engines, durable)


def _shown(value: Any) -> str:
    """For a message: short; what is nested is only named."""
    return repr(value)[:80] if isinstance(value, (str, int)) else f"a JSON {type(value).__name__}"


class _Fields:
    """The fields of one JSON object, each of the kind that it must be."""

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, dict):
            raise FormatError(f"{what} is a JSON {type(value).__name__}, expected an object")
        self._value: dict[str, Any] = value
        self._what = what

    def text(self, name: str) -> str:
        value = self._value.get(name)
        if not isinstance(value, str) or not value:
            raise FormatError(f"{self._what}: {name} is {_shown(value)}, expected text")
        return value

    def list(self, name: str) -> list[Any]:
        value = self._value.get(name)
        if not isinstance(value, list):
            raise FormatError(f"{self._what}: {name} is a JSON {type(value).__name__}, expected an array")
        return value

    def version(self, name: str) -> int:
        value = self._value.get(name)
        if type(value) is not int or not 0 <= value < _MAX_VERSION:
            raise FormatError(f"{self._what}: {name} is {_shown(value)}, expected a version")
        return value

    def version_or_null(self, name: str) -> int | None:
        return None if self._value.get(name) is None else self.version(name)


def _link(item: Any, what: str) -> tuple[int, str]:
    if not isinstance(item, list) or len(item) != 2:
        raise FormatError(f"{what}: an entry of chain is {_shown(item)}, expected a version and its identity")
    fields = _Fields({"version": item[0], "identity": item[1]}, f"{what}: an entry of chain")
    return fields.version("version"), fields.text("identity")
