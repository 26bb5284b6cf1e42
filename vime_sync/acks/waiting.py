"""Looking at an ack directory again and again until all the wanted hosts hold a version. Writes nothing.

Every look starts from nothing: records that went away or fell back do not count any more. What is published is parsed
once, and again only when its files change.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from vime_sync.acks.judge import Verdict, Wanted, describe, disagreement, judge, versions_to_prove
from vime_sync.acks.record import Ack, AckReading, read_acks
from vime_sync.errors import (
    HostsBehind,
    HostsDisagree,
    LocalIOError,
    ShareUnreachable,
    SyncError,
    UsageError,
    VersionMissing,
)
from vime_sync.model import DeltaVersion
from vime_sync.stream.catalog import Catalog

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 1.0
_GROWTH = 1.3
# How soon a signal is seen.
_SLICE_S = 0.2
# Not mounted yet, or mounted anew.
_NOT_THERE = (errno.ENOENT, errno.ESTALE)


@dataclass(frozen=True)
class Question:
    """What is waited for. `share` None: any stream. `timeout_s` None: for ever, 0: one look."""

    directory: Path
    version: int
    wanted: Wanted
    share: Path | None = None
    served: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True)
class Held:
    """All that hold it, by host and LOCAL; more than were wanted where a count was."""

    holders: tuple[Ack, ...]
    seconds: float
    looks: int


@dataclass(frozen=True)
class Listener:
    """`warn` hears what looks wrong, `inform` how the wait goes; each text once."""

    warn: Callable[[str], None]
    inform: Callable[[str], None]


def wait_for_hosts(question: Question, listener: Listener, check_stop: Callable[[], None]) -> Held:
    """Raises HostsBehind when the time is over, HostsDisagree at once, and what `check_stop` raises."""
    listener = _once(listener)
    stream = None if question.share is None else _Stream(question.share, listener.warn)
    started = time.monotonic()
    pause_s = _FIRST_PAUSE_S
    looks = 0
    while True:
        check_stop()
        verdict = _look(question, stream, listener.warn)
        looks += 1
        seconds = time.monotonic() - started
        _check_agreement(verdict)
        if not verdict.missing:
            return Held(verdict.holders, seconds, looks)
        missing = describe(verdict.missing)
        listener.inform(f"waiting for version {question.version}: {missing}")
        left_s = _LONGEST_PAUSE_S if question.timeout_s is None else question.timeout_s - seconds
        if left_s <= 0:
            raise _behind(question, verdict, missing, stream)
        _sleep(min(pause_s, left_s), check_stop)
        pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)


def newest_ready(share: Path, warn: Callable[[str], None]) -> int:
    """The newest version on the share that can be used. Raises ShareUnreachable, VersionMissing."""
    catalog = Catalog(share)
    for version in reversed(catalog.versions):
        entry = catalog.entry(version)
        if isinstance(entry, ShareUnreachable):
            raise entry
        if not isinstance(entry, SyncError):
            return version
        warn(entry.message)
    raise VersionMissing(f"{share} has no ready version to wait for", hint="Give a number, or publish one first.")


def _look(question: Question, stream: _Stream | None, warn: Callable[[str], None]) -> Verdict:
    reading = _read(question.directory, warn)
    for warning in reading.warnings:
        warn(warning)
    version, acks = question.version, reading.acks
    published = None
    if stream is not None:
        stream.look()
        published = stream.identities([version])
        published.update(stream.identities(versions_to_prove(acks, version, is_published=version in published)))
    return judge(acks, version, question.wanted, published=published, served=question.served)


def _read(directory: Path, warn: Callable[[str], None]) -> AckReading:
    try:
        return read_acks(directory)
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            warn(f"--ack-dir {directory} is not there yet; waiting for the first host to make it")
            return AckReading(())
        if problem.errno == errno.ENOTDIR:
            raise UsageError(f"--ack-dir {directory} is a file, or lies below one, expected a directory") from None
        raise LocalIOError(
            f"listing --ack-dir {directory}: {problem.strerror}",
            hint="Mount it where this command runs, readable for this user, then run the same command again.",
        ) from problem


def _check_agreement(verdict: Verdict) -> None:
    pair = disagreement(verdict.holders)
    if pair is not None:
        one, other = pair
        raise HostsDisagree(
            f"host {one.host} ({one.local}) and host {other.host} ({other.local}) hold different weights under version "
            f"{one.version} (lineage {one.lineage} and {other.lineage}), expected the same on both",
            version=one.version,
        )


def _behind(question: Question, verdict: Verdict, missing: str, stream: _Stream | None) -> HostsBehind:
    held = len(verdict.holders)
    holders = f"{held} {'host holds' if held == 1 else 'hosts hold'}" if held else "no host holds"
    verb = "serves" if held < 2 else "serve"
    what = f"{holders} and {verb} it" if question.served else f"{holders} it"
    reason = ""
    if stream is not None and question.version and not stream.identities([question.version]):
        reason = f"; {question.share} does not show version {question.version} as ready"
    return HostsBehind(
        f"version {question.version}: after {question.timeout_s:g} s {what}: {missing}{reason}",
        version=question.version,
    )


def _sleep(seconds: float, check_stop: Callable[[], None]) -> None:
    while seconds > 0:
        time.sleep(min(seconds, _SLICE_S))
        seconds -= _SLICE_S
        check_stop()


def _once(listener: Listener) -> Listener:
    said: set[str] = set()

    def once(say: Callable[[str], None], text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return Listener(lambda text: once(listener.warn, text), lambda text: once(listener.inform, text))


class _Stream:
    """The identities of what stands on a share. What cannot be read just now has none: it proves nothing."""

    def __init__(self, share: Path, warn: Callable[[str], None]) -> None:
        self._share = share
        self._warn = warn
        self._catalog: Catalog | None = None
        # By version: its files' stats when it was parsed, its identity, and whether it changes nothing.
        self._parsed: dict[int, tuple[str, str, bool]] = {}

    def look(self) -> None:
        try:
            self._catalog = Catalog(self._share)
        except ShareUnreachable as problem:
            self._warn(problem.message)
            self._catalog = None

    def identities(self, versions: Iterable[int]) -> dict[int, str]:
        """Of those versions, and of one below where a delta without any tensor says nothing about its stream."""
        found: dict[int, str] = {}
        for version in versions:
            while version > 0 and version not in found and (parsed := self._parse(version)) is not None:
                found[version] = parsed[1]
                if not parsed[2]:
                    break
                version -= 1
        return found

    def _parse(self, version: int) -> tuple[str, str, bool] | None:
        catalog = self._catalog
        if catalog is None or version not in catalog.versions:
            return None
        fingerprint = catalog.fingerprint(version)
        known = self._parsed.get(version)
        if known is not None and known[0] == fingerprint:
            return known
        entry = catalog.entry(version)
        if isinstance(entry, SyncError):
            self._warn(entry.message)
            return None
        is_empty = isinstance(entry, DeltaVersion) and not entry.payloads
        self._parsed[version] = (entry.fingerprint, entry.identity, is_empty)
        return self._parsed[version]
