"""Who of the wanted hosts holds a version, judged by their acks; and waiting until all of them do.

The judgement is pure. Rules:
1. A record below the version does not hold it. One at or above it does, if it is of the right stream.
2. The right stream is the one on the share, where that is given: the version that the host built from (or, once its
   chain no longer names that, the one it is at) must be published with the same identity. A trainer that restarted
   counts from 1 again, so a number alone can be the old run's. Without a share it is the stream that most hosts hold.
3. A named host holds the version when each of its records does; a count counts records.
4. Where serving is asked for, each engine of a record must be known to have loaded that version or a later one.
5. Two hosts with other weights under one number, although all they name in common is the same, are a fault.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vime_sync.acks.record import Ack
from vime_sync.errors import UsageError

# Of what a message names in a row.
_MAX_NAMED = 8
_MAX_COUNT_DIGITS = 9
_AT_VERSION = "at_version"


@dataclass(frozen=True)
class Wanted:
    """Either that many records, or these hosts."""

    count: int = 0
    names: tuple[str, ...] = ()


class Reason(str, enum.Enum):
    """Why a host does not hold a version."""

    NO_RECORD = "no record"
    BEHIND = "behind"
    OTHER_STREAM = "another stream"
    UNPROVEN = "unproven"
    NOT_SERVED = "not served"


@dataclass(frozen=True)
class Laggard:
    """A record that does not hold the version; or, without LOCAL, a host without any (or `count` of them unnamed)."""

    reason: Reason
    host: str | None
    local: str | None = None
    version: int | None = None
    detail: str = ""
    count: int = 1


@dataclass(frozen=True)
class Verdict:
    """`missing` is empty once what is wanted is the case; `holders` are all records that hold the version."""

    holders: tuple[Ack, ...]
    missing: tuple[Laggard, ...]


def parse_hosts(text: str) -> Wanted:
    """`32`, or `a1,a2`. Raises UsageError."""
    if text.isascii() and text.isdigit():
        if len(text) > _MAX_COUNT_DIGITS or int(text) < 1:
            raise UsageError(f"--hosts {text}, expected at least 1 host, or their names")
        return Wanted(count=int(text))
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise UsageError(f"--hosts {text!r}, expected a number, or names with commas between them")
    return Wanted(names=names)


def judge(
    acks: Iterable[Ack],
    version: int,
    wanted: Wanted,
    *,
    published: Mapping[int, str] | None = None,
    served: bool = False,
) -> Verdict:
    """Who holds `version`, and who is missing. `published` are identities on the share, None where none is given."""
    concerned = [ack for ack in acks if not wanted.names or ack.host in wanted.names]
    identities = _most_common(concerned, version) if published is None else published
    holders: list[Ack] = []
    laggards: list[Laggard] = []
    for ack in concerned:
        laggard = _lag(ack, version, identities, must_prove=published is not None)
        if laggard is None and served:
            laggard = _not_serving(ack, version)
        if laggard is None:
            holders.append(ack)
        else:
            laggards.append(laggard)
    if wanted.names:
        known = {ack.host for ack in concerned}
        laggards += [Laggard(Reason.NO_RECORD, name) for name in wanted.names if name not in known]
    elif len(holders) >= wanted.count:
        laggards = []
    elif len(concerned) < wanted.count:
        laggards.append(Laggard(Reason.NO_RECORD, None, count=wanted.count - len(concerned)))
    return Verdict(tuple(holders), tuple(laggards))


def versions_to_prove(acks: Iterable[Ack], version: int, *, is_published: bool) -> set[int]:
    """Which identities on the share `judge` needs beside that of `version`: of hosts that no longer name it, or all."""
    ahead = [ack for ack in acks if ack.version > version]
    return {ack.version for ack in ahead if not is_published or version not in dict(ack.chain)}


def disagreement(holders: Iterable[Ack]) -> tuple[Ack, Ack] | None:
    """Two hosts with different weights under one version of one stream.

    Hosts whose chains name another identity for the same version are in two streams: one of them is on its way.
    """
    seen: dict[int, dict[str, Ack]] = {}
    for ack in holders:
        others = seen.setdefault(ack.version, {})
        for lineage, other in others.items():
            if lineage != ack.lineage and not _contradicts(ack, dict(other.chain)):
                return other, ack
        others.setdefault(ack.lineage, ack)
    return None


def describe(missing: Sequence[Laggard]) -> str:
    """Who lacks what, for people: hosts with the same trouble in one row."""
    rows: dict[tuple[Reason, int | None, str], list[Laggard]] = {}
    for laggard in missing:
        rows.setdefault((laggard.reason, laggard.version, laggard.detail), []).append(laggard)
    return "; ".join(_row(*trouble, laggards) for trouble, laggards in rows.items())


def _lag(ack: Ack, version: int, identities: Mapping[int, str], *, must_prove: bool) -> Laggard | None:
    if ack.version < version:
        return _laggard(ack, Reason.BEHIND)
    if version == 0:  # the base needs no share, and all streams begin with it
        return None
    if _contradicts(ack, identities):
        return _laggard(ack, Reason.OTHER_STREAM)
    named = {number for number, _ in ack.chain}
    if must_prove and not {version, ack.version} & named & identities.keys():
        return _laggard(ack, Reason.UNPROVEN)
    return None


def _contradicts(ack: Ack, identities: Mapping[int, str]) -> bool:
    """Whether the chain names another identity for a version. Version 0 is each host's own copy: its times differ."""
    return any(number and identities.get(number, identity) != identity for number, identity in ack.chain)


def _most_common(acks: Iterable[Ack], version: int) -> dict[int, str]:
    identities = Counter(identity for ack in acks for number, identity in ack.chain if number == version)
    if not identities:
        return {}
    return {version: min(identities, key=lambda identity: (-identities[identity], identity))}


def _not_serving(ack: Ack, version: int) -> Laggard | None:
    """An engine above its host's own version has not been taken back yet, after a rollback."""
    if not ack.engines:  # a host that serves nothing must not count as one that serves
        return _laggard(ack, Reason.NOT_SERVED, "no engine there is known")
    for engine in ack.engines:
        if engine.state != _AT_VERSION or engine.version is None:
            return _laggard(ack, Reason.NOT_SERVED, f"engine {engine.url} is {engine.state}")
        if not version <= engine.version <= ack.version:
            return _laggard(ack, Reason.NOT_SERVED, f"engine {engine.url} is at version {engine.version}")
    return None


def _laggard(ack: Ack, reason: Reason, detail: str = "") -> Laggard:
    return Laggard(reason, ack.host, ack.local, ack.version, detail)


def _row(reason: Reason, version: int | None, detail: str, laggards: Sequence[Laggard]) -> str:
    named = [laggard for laggard in laggards if laggard.host is not None]
    if not named:
        count = sum(laggard.count for laggard in laggards)
        return f"{count} more {'host has' if count == 1 else 'hosts have'} no record"
    names = [f"{laggard.host} ({laggard.local})" if laggard.local else str(laggard.host) for laggard in named]
    shown = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
    who, one = ("host", True) if len(names) == 1 else ("hosts", False)
    have, be, hold = ("has", "is", "holds") if one else ("have", "are", "hold")
    told = {
        Reason.NO_RECORD: f"{have} no record",
        Reason.BEHIND: f"{be} at version {version}",
        Reason.OTHER_STREAM: f"{be} at version {version} of another stream",
        Reason.UNPROVEN: f"{be} at version {version}, of which the share does not tell whether it is of its stream",
        Reason.NOT_SERVED: f"{hold} version {version}, but {detail}",
    }
    return f"{who} {shown} {told[reason]}"
