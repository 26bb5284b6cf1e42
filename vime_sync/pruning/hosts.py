"""What the hosts hold, by their records in an ack directory. A record that cannot be read is never passed over.

A host of another stream than the one on the share (a trainer restarted, and the host has not followed yet) counts for
nothing: its number is another run's. It will begin anew from the newest full version, which no prune takes away.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vime_sync.acks import Ack, read_acks
from vime_sync.errors import LocalIOError, ShareUnreachable, UsageError
from vime_sync.model import structure_of


@dataclass(frozen=True)
class Holder:
    """The host and LOCAL that is furthest behind, and the records that count for nothing."""

    oldest: Ack | None
    strangers: tuple[Ack, ...] = ()


def read_holders(directory: Path) -> tuple[Ack, ...]:
    """Every record; at least one. Raises UsageError, LocalIOError, ShareUnreachable rather than guess."""
    try:
        reading = read_acks(directory)
    except OSError as problem:
        if problem.errno == errno.ENOTDIR:
            raise UsageError(f"--ack-dir {directory} is a file, or lies below one, expected a directory") from None
        raise LocalIOError(
            f"listing --ack-dir {directory}: {problem.strerror}; nothing was removed",
            hint="Mount it where this command runs, readable for this user, then run the same command again.",
        ) from problem
    if reading.warnings:
        raise LocalIOError(
            f"a record in --ack-dir cannot be read, so what its host needs is not known: {reading.warnings[0]}; "
            "nothing was removed",
            hint="Remove that file if its host is gone, else let its daemon write it again.",
        )
    if not reading.acks:
        raise ShareUnreachable(
            f"--ack-dir {directory} holds the record of no host: it looks unmounted; nothing was removed",
            hint="Check that it is the --ack-dir of the hosts' daemons, and mounted here.",
        )
    return reading.acks


def oldest_holder(acks: Iterable[Ack], published: Mapping[int, str]) -> Holder:
    """`published` are the identities on the share. What nothing contradicts counts by its number. Pure."""
    counted: list[Ack] = []
    strangers: list[Ack] = []
    for ack in acks:
        (strangers if _contradicts(ack, published) else counted).append(ack)
    return Holder(min(counted, key=lambda ack: ack.version, default=None), tuple(strangers))


def _contradicts(ack: Ack, published: Mapping[int, str]) -> bool:
    """By content: a full version that was only touched is still the same. Every host has a base of its own."""
    return any(
        number and structure_of(published.get(number, identity)) != structure_of(identity)
        for number, identity in ack.chain
    )
