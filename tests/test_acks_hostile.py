"""An ack directory may hold anything: a reader gets the records in it and a warning for each thing that is none."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ack_hosts import put, record, serving
from vime_sync import fsio
from vime_sync.acks import Ack, read_acks


def read(directory: Path) -> tuple[Ack, ...]:
    """All records of a directory in which nothing looks wrong."""
    reading = read_acks(directory)
    assert reading.warnings == ()
    return reading.acks


def _replace_field(**fields: Any) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def _as(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_suffix(".elsewhere")))


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "empty": _as(b""),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "not UTF-8": _as(b"\xff\xfe"),
    "no object": _as(b"[]"),
    "two values of one key": _as(b'{"schema": "vime-sync/ack/1", "schema": "vime-sync/ack/1"}'),
    "nested too deeply": _as(b'{"version": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "nested deeply": _as(
        b'{"schema": "vime-sync/ack/1", "local": "/x", "lineage": "ab", "version": ' + b"[" * 800 + b"]" * 800 + b"}"
    ),
    "number of many digits": _as(b'{"schema": "vime-sync/ack/1", "version": ' + b"9" * 5000 + b"}"),
    "terabyte of holes": _huge,
    "megabytes of blanks behind it": lambda path: path.write_bytes(path.read_bytes() + b" " * (2 << 20)),
    "directory": _directory,
    "pipe": _pipe,
    "link": _link,
    "link to itself": _dangling,
    "copy under another name": lambda path: path.rename(path.with_name("copy.json")),
    "other schema": _replace_field(schema="vime-sync/ack/2"),
    "no host": _replace_field(host=""),
    "lone surrogate": _as(b'{"schema": "vime-sync/ack/1", "host": "\\ud800"}'),
    "relative local": _replace_field(local="ckpt"),
    "version is true": _replace_field(version=True),
    "version is text": _replace_field(version="3"),
    "version is negative": _replace_field(version=-1, chain=[[-1, "x"]]),
    "version is a fraction": _replace_field(version=3.0),
    "version past all": _replace_field(version=10**18),
    "lineage in capitals": _replace_field(lineage="ABCD"),
    "lineage is a list": _replace_field(lineage=["ab"]),
    "no chain": _replace_field(chain=[]),
    "chain is an object": _replace_field(chain={"3": "x"}),
    "chain of another version": _replace_field(chain=[[1, "x"], [2, "y"]]),
    "chain downwards": _replace_field(chain=[[4, "x"], [3, "y"]]),
    "chain with a version twice": _replace_field(chain=[[3, "x"], [3, "y"]]),
    "chain of pairs of three": _replace_field(chain=[[3, "x", "y"]]),
    "engines is null": _replace_field(engines=None),
    "engine is text": _replace_field(engines=["http://x"]),
    "engine without state": _replace_field(engines=[{"url": "http://x", "version": 3}]),
    "durable is text": _replace_field(durable="yes"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_record_is_named_and_does_not_count(tmp_path: Path, kind: str) -> None:
    good = record("a2", 3)
    path = put(tmp_path, good, record("a1", 3))
    HOSTILE[kind](path)
    reading = read_acks(tmp_path)
    assert reading.acks == (good,)
    [warning] = reading.warnings
    assert str(tmp_path) in warning and "not counted" in warning and len(warning) < 1000
    assert kind != "copy under another name" or "copy.json" in warning


def test_other_files_are_nobodys_business(tmp_path: Path) -> None:
    path = put(tmp_path, record("a1", 3))
    path.with_name(path.name + ".new").write_bytes(path.read_bytes()[:50])  # a daemon was killed while it wrote
    (tmp_path / "README").write_text("records of the rollout hosts")
    (tmp_path / "sub").mkdir()
    assert read(tmp_path) == (record("a1", 3),)
    put(tmp_path, record("a1", 4))  # and the next one takes it over
    assert not path.with_name(path.name + ".new").exists()
    assert read(tmp_path) == (record("a1", 4),)


def test_a_later_release_may_say_more(tmp_path: Path) -> None:
    ack = serving(record("a1", 3))
    path = put(tmp_path, ack)
    document = json.loads(path.read_text())
    document["rack"] = {"row": 4}
    document["engines"][0]["model"] = "m"
    path.write_text(json.dumps(document))
    assert read(tmp_path) == (ack,)


def test_a_record_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, record("a1", 3))

    def refuse(self: fsio.File, size_bytes: int, offset: int) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(self.path))

    monkeypatch.setattr(fsio.File, "read_up_to", refuse)
    assert read_acks(tmp_path).warnings == (f"{path}: Permission denied; it is not counted",)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_record_that_is_replaced_at_that_moment_is_left_to_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    put(tmp_path, record("a1", 3))

    def vanish(self: fsio.File, size_bytes: int, offset: int) -> bytes:
        raise OSError(number, os.strerror(number), str(self.path))

    monkeypatch.setattr(fsio.File, "read_up_to", vanish)
    assert read(tmp_path) == ()
