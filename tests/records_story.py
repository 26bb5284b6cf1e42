"""LOCALs whose records are about to be spoilt, and what must come of them: for the tests of the record files."""

import json
from pathlib import Path
from typing import Any

from tests import toolkit
from tests.host import Host
from tests.kill_jobs import JOBS, bring_fresh, create
from tests.kill_points import PULL_THREADS, kill, operations, shard_writes
from tests.sealed import Change, change_sealed
from tests.toolkit import STATE_DIRECTORY

INFINITE = float("inf")


def record(host: Host, name: str) -> Path:
    return host.local / STATE_DIRECTORY / name


def change_record(host: Host, name: str, change: Change, *, made: bool = False) -> None:
    """Without a seal that fits, as faults do it; or `made` by somebody, with one."""
    path = record(host, name)
    if made:
        change_sealed(path, change)
        return
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def at_rest(root: Path) -> Host:
    """At version 2 of 3, with what a pass in place keeps; another base's worth of records."""
    host = create(root, JOBS["folded"], kib=4)
    bring_fresh(host, JOBS["folded"])
    host.pulled(*PULL_THREADS, version=2)
    return host


def applying(root: Path) -> Host:
    host = create(root, JOBS["apply"], kib=4)
    bring_fresh(host, JOBS["apply"])
    kill(lambda: JOBS["apply"].run(host), 1, shard_writes(host.local))
    return host


def replacing(root: Path) -> Host:
    host = create(root, JOBS["replacement"], kib=4)
    bring_fresh(host, JOBS["replacement"])
    kill(lambda: JOBS["replacement"].run(host), 1, operations("rename", ".safetensors"))
    return host


def heals(host: Host, version: int) -> None:
    for command in (("status", "--shared", str(host.shared)), ("verify",)):
        told = toolkit.vime(*command, "--local", host.local)
        assert "Traceback" not in told.stderr, told.stderr
    result = host.pull(*PULL_THREADS, version=version)
    assert "Traceback" not in result.stderr, result.stderr
    assert result.code == 0, result.stderr
    host.expect_local(version)


# ---- what makes no sense, whoever wrote it


STATES: list[dict[str, Any]] = [
    {"table": "a\0b"}, {"table": "\ud800"}, {"anchor_table": "a\0b"}, {"anchor_table": "../x"}, {"share": 5},
    {"share": "a\0b"}, {"share": "\ud800"}, {"base": [1]}, {"base": "\0"}, {"damaged": [1, None]}, {"damaged": [[1]]},
    {"damaged": "abc"}, {"damaged": ["nosuch"]}, {"damaged": ["\ud800"]}, {"stats": {"a\0b": [1, 2, 3, 4]}},
    {"stats": {"\ud800": [1, 2, 3, 4]}}, {"stats": {"../x": [1, 2, 3, 4]}}, {"repairs": INFINITE},
    {"lineage": [[INFINITE, "base", "x", "y"]]}, {"lineage": [[0, "base", "\ud800", "y"]]},
]  # fmt: skip


def put(*path: Any, to: Any) -> Change:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


INTENTS = [
    put("block_bytes", to=INFINITE), put("block_bytes", to=0), put("block_bytes", to=1.5), put("origin", to=None),
    put("origin", "stats", to={"x": [INFINITE, 1, 1, 1]}), put("work", 0, 0, to="nosuch"), put("work", 0, 0, to=7),
    put("work", 0, 1, 0, to="a\0b"), put("work", 0, 1, 0, to="nosuch.safetensors"), put("work", 0, 1, 2, to=10**15),
    put("work", 0, 1, 2, to=-1), put("work", 0, 1, 2, to=2.5), put("work", 0, 5, 0, 0, to=2**31),
    put("work", 0, 5, 0, 0, to=None), put("work", 0, 5, 0, 1, to=10**15), put("work", 0, 5, 0, 2, to=1),
    put("work", 0, 5, 0, 3, to=10**30), put("work", 0, 2, to=None), put("work", 0, 4, to="zz"),
    put("steps", to=[]), put("steps", 0, 0, to=9), put("steps", 0, 3, to=True),
    put("lineage", to=[[9, "full", "x", "y"]]),
]  # fmt: skip
