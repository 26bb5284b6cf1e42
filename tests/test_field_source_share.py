"""FIELD_GUIDE S16: a share that is not there, and how every refusal of the source is worded."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.source_story import Setting, Story, check_refusal, in_settings, replace_frame, tell
from tests.toolkit import vime_plain

Fault = Callable[[Story], None]


def looks_empty(story: Story) -> None:
    story.shared.mkdir()


def only_a_mount_point_readme(story: Story) -> None:
    story.shared.mkdir()
    (story.shared / "NOT_MOUNTED").write_text("")


def is_not_there(story: Story) -> None:
    return


def is_a_file(story: Story) -> None:
    story.shared.write_bytes(b"")


def is_a_dangling_link(story: Story) -> None:
    story.shared.symlink_to(story.shared.with_name("nowhere"))


UNMOUNTED: list[Fault] = [looks_empty, only_a_mount_point_readme, is_not_there, is_a_file, is_a_dangling_link]


@pytest.mark.parametrize("fault", UNMOUNTED)
@pytest.mark.parametrize("version", ["latest", 6])
def test_s16_a_share_that_is_unmounted_resets_nothing(version: int | str, fault: Fault, tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.LAST)
    shutil.move(story.shared, tmp_path / "elsewhere")
    fault(story)
    before = toolkit.snapshot(story.local)
    for _ in range(2):
        result = check_refusal(story.pull(version), 10, "share_unreachable")
        assert str(story.shared) in result.error["message"]
        assert toolkit.snapshot(story.local) == before
        story.check_local_at(1)
    status = toolkit.vime("status", "--local", story.local).document
    assert (status["local_version"], status["state"]) == (1, "ready")
    if story.shared.is_symlink() or story.shared.is_file():
        story.shared.unlink()
    else:
        shutil.rmtree(story.shared, ignore_errors=True)
    shutil.move(tmp_path / "elsewhere", story.shared)  # mounted again
    story.recover()


@pytest.mark.parametrize("fault", [is_not_there, is_a_file, is_a_dangling_link])
def test_s16_a_fresh_host_before_an_unmounted_share(fault: Fault, tmp_path: Path) -> None:
    """An empty one is another thing for a fresh host: the trainer has not begun (V11)."""
    story = tell(tmp_path, Setting.FRESH)
    shutil.move(story.shared, tmp_path / "elsewhere")
    fault(story)
    check_refusal(story.pull(), 10, "share_unreachable")
    story.check_local_at(None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_s16_a_share_that_may_not_be_read(tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.ONLY)
    story.shared.chmod(0)
    try:
        check_refusal(story.pull(), 10, "share_unreachable")
    finally:
        story.shared.chmod(0o755)
    story.recover()


def test_s16_a_version_that_is_not_published(tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.ONLY)
    for version in (3, 1_000_000):
        result = check_refusal(story.pull(version), 10, "version_missing")
        assert result.error["version"] == version and str(version) in result.error["message"]
        story.check_local_at(1)


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh-host", "host-at-0"])
def test_a_base_that_is_not_the_streams_own(fresh: bool, tmp_path: Path) -> None:
    """Most tensors fail though their old bytes are as they were: the base is another (13), and not one delta bad."""
    story = tell(tmp_path, Setting.FRESH)
    shutil.rmtree(story.base)
    other = toolkit.step(story.models[0], seed=99, density=0.2)
    toolkit.write_checkpoint(story.base, other)
    if not fresh:
        assert story.pull(0).code == 0
    before = toolkit.snapshot(story.local)
    result = check_refusal(story.pull(), 13, "wrong_base")
    assert "base" in result.error["message"]
    assert toolkit.snapshot(story.local) == before


def no_index(story: Story) -> None:
    story.index.unlink()


def no_header(story: Story) -> None:
    toolkit.join_shard(story.shard, b"[]", b"")


def wrong_bytes(story: Story) -> None:
    payload = bytearray(story.payload)
    payload[-1] ^= 1
    replace_frame(story.shard, toolkit.compress(bytes(payload)))


def wrong_size(story: Story) -> None:
    replace_frame(story.shard, toolkit.compress(story.payload + b"\0"))


REFUSALS: list[tuple[Fault, int, str]] = [
    (no_index, 10, "not_ready"),
    (no_header, 11, "malformed"),
    (wrong_bytes, 12, "checksum_mismatch"),
    (wrong_size, 13, "lineage_mismatch"),
]


@in_settings()
@pytest.mark.parametrize(("fault", "code", "identifier"), REFUSALS, ids=[refusal[2] for refusal in REFUSALS])
def test_refusals_before_and_after_the_first_write_are_worded_alike(
    fault: Fault, code: int, identifier: str, setting: Setting, tmp_path: Path
) -> None:
    """With --json one object as the last line of stderr; without, its message and hint, each on one line."""
    story = tell(tmp_path, setting)
    fault(story)
    with_json = story.refuse(code, identifier)
    last_line = with_json.stderr.rstrip("\n").split("\n")[-1]
    assert json.loads(last_line) == with_json.error
    options: list[str | Path] = [
        "--shared",
        story.shared,
        "--local",
        story.local,
        "--base",
        story.base,
        "--version",
        str(story.target),
    ]
    plain = vime_plain("pull", *options)
    assert (plain.code, plain.stdout, plain.error) == (code, "", {})
    assert "Traceback" not in plain.stderr
    lines = plain.stderr.rstrip("\n").split("\n")
    assert [line for line in lines if with_json.error["message"] in line] != []
    assert [line for line in lines if with_json.error["hint"] in line] != []
    story.check_local_at(story.start)


def test_a_refused_dry_run_says_the_same(tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.LAST)
    no_header(story)
    story.refuse(
        11,
        "malformed",
        pull=lambda: toolkit.pull(story.shared, story.local, "--dry-run", base=story.base, version=story.target),
    )
