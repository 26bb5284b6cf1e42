"""Acks tell trainers who holds what: the record of each host and LOCAL, its judgement, and the wait for many."""

from vime_sync.acks.judge import Wanted, parse_hosts
from vime_sync.acks.record import (
    Ack,
    AckEngine,
    check_host_name,
    default_host_name,
    make_ack,
    read_acks,
    withdraw_ack,
    write_ack,
)
from vime_sync.acks.waiting import Held, Question, newest_ready, wait_for_hosts

__all__ = [
    "Ack",
    "AckEngine",
    "Held",
    "Question",
    "Wanted",
    "check_host_name",
    "default_host_name",
    "make_ack",
    "newest_ready",
    "parse_hosts",
    "read_acks",
    "wait_for_hosts",
    "withdraw_ack",
    "write_ack",
]
