"""The command line of `publish`: its document, its words, its settings, its end by a signal."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.cli_documents import expect_document
from tests.host import expect_error
from tests.kill_points import observing
from tests.publish_world import Trainer
from tests.toolkit import vime, vime_plain


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer.create(tmp_path)


def _count(value: object) -> bool:
    return type(value) is int and value >= 0


def _count_or_null(value: object) -> bool:
    return value is None or _count(value)


def _fraction_or_null(value: object) -> bool:
    return value is None or (isinstance(value, float) and 0 <= value <= 1)


def _seconds(value: object) -> bool:
    keys = {"cache", "diff", "write", "total"}
    return isinstance(value, dict) and set(value) == keys and all(isinstance(spent, float) for spent in value.values())


PUBLISH: dict[str, Any] = {
    "result": "published".__eq__,
    "version": _count,
    "kind": {"delta", "full"}.__contains__,
    "encoding": {"xor", "overwrite", None}.__contains__,
    "checksum": {"xxh3-128", "blake3", "adler32", None}.__contains__,
    "tensors_changed": _count_or_null,
    "tensors_total": _count,
    "changed_bytes": _count_or_null,
    "total_bytes": _count,
    "wire_bytes": _count,
    "density": _fraction_or_null,
    "seconds": _seconds,
    "path": lambda value: isinstance(value, str) and Path(value).is_absolute(),
    "warnings": lambda value: isinstance(value, list),
}


def test_the_document(trainer: Trainer) -> None:
    for encoding in ("xor", "overwrite", "full"):
        expect_document(trainer.published(None, "--encoding", encoding), "publish", PUBLISH)


def test_in_words(trainer: Trainer) -> None:
    checkpoint = trainer.save(toolkit.step(trainer.models[0], 1))
    result = vime_plain(*trainer.arguments(checkpoint))
    assert (result.code, result.stderr) == (0, "")
    assert re.fullmatch(
        r"version 1: published as a delta \(xor\), 8 of 9 tensors changed\n"
        r"  \d+ B changed \(1\.\d{3}%\); [\d.]+ kB written "
        r"\([\d.]+% of [\d.]+ kB, [\d.]+ bytes for each changed one\)\n"
        r"  in [\d.]+ s, compared at [\d.]+ [kMG]?B/s\n",
        result.stdout,
    )
    result = vime_plain(*trainer.arguments(checkpoint))
    assert re.match(r"version 2: published as a delta \(xor\), 0 of 9 tensors changed\n  0 B changed ", result.stdout)
    result = vime_plain(*trainer.arguments(checkpoint, "--encoding", "full"))
    assert re.fullmatch(
        r"version 3: published as a full version, 9 tensors\n  [\d.]+ kB written in [\d.]+ s \([\d.]+ [kMG]?B/s\)\n",
        result.stdout,
    )
    assert vime_plain(*trainer.arguments(checkpoint, "--quiet")).stdout == ""
    lines = vime_plain(*trainer.arguments(checkpoint, "--verbose")).stderr.splitlines()
    assert re.fullmatch(r"info: seconds: cache [\d.]+, diff [\d.]+, write [\d.]+, total [\d.]+", lines[0])
    assert lines[1] == f"info: published as {trainer.path(5)}"


def test_warnings_go_to_stderr_and_into_the_document(trainer: Trainer) -> None:
    checkpoint = trainer.save(trainer.models[0], extra_files={"config.json": b"[]"})
    result = vime("publish", "--shared", trainer.shared, "--from", checkpoint, "--base", trainer.base)
    (warning,) = result.document["warnings"]
    assert result.stderr == f"warning: {warning}\n"


def test_every_option_has_a_twin_in_the_environment(trainer: Trainer) -> None:
    model = toolkit.step(trainer.models[0], 1)
    twins = {
        "SHARED": trainer.shared,
        "FROM": trainer.save(model),
        "BASE": trainer.base,
        "CACHE": trainer.cache,
        "VERSION": 1,
        "ENCODING": "overwrite",
        "CHECKSUM": "adler32",
        "FULL_EVERY": 5,
        "LEVEL": 3,
        "SHARD_SIZE": 1,
        "THREADS": 2,
        "JSON": 1,
        "LOG_FORMAT": "json",
    }
    result = vime_plain("publish", env={f"VIME_SYNC_{name}": str(value) for name, value in twins.items()})
    assert result.code == 0, result.stderr
    assert (result.document["encoding"], result.document["checksum"]) == ("overwrite", "adler32")
    trainer.models[1] = model
    trainer.expect_pulled(1)
    help_text = vime_plain("publish", "--help").stdout
    for option in re.findall(r"^  (--[\w-]+)", help_text, re.MULTILINE):
        assert f"VIME_SYNC_{option[2:].replace('-', '_').upper()}" in help_text


@pytest.mark.parametrize(
    "options",
    [
        ("--encoding", "zip"),
        ("--checksum", "md5"),
        ("--level", "20"),
        ("--full-every", "-1"),
        ("--shard-size", "0"),
        ("--version", "three"),
    ],
)
def test_what_is_no_setting(trainer: Trainer, options: tuple[str, ...]) -> None:
    expect_error(trainer.publish(trainer.base, *options), 2, "usage")
    assert list(trainer.shared.iterdir()) == []


def test_a_signal_ends_it_before_anything_appears(trainer: Trainer) -> None:
    checkpoint = trainer.save(toolkit.step(trainer.models[0], 1))
    sent: list[Path] = []

    def terminate(operation: str, path: Path) -> None:
        if path.name == "part-0" and not sent:
            sent.append(path)
            os.kill(os.getpid(), signal.SIGTERM)

    with observing(terminate):
        result = trainer.publish(checkpoint)
    expect_error(result, 128 + signal.SIGTERM, "interrupted")
    assert (trainer.versions(), trainer.leftovers()) == ([], [])
    assert trainer.publish(checkpoint).code == 0


def test_help_fits_a_narrow_terminal_and_has_two_examples() -> None:
    text = vime_plain("publish", "--help", env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}).stdout
    assert max(map(len, text.splitlines())) <= 80
    examples = text.partition("Examples:\n")[2]
    assert examples.count("vime-sync publish ") == 2
    assert "Exit codes:" in examples


def test_the_json_is_one_line(trainer: Trainer) -> None:
    result = trainer.publish(trainer.base)
    assert json.loads(result.stdout) == result.document
    assert result.stdout.count("\n") == 1
