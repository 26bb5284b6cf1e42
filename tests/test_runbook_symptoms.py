"""What the program says is a symptom in its section of the runbook: one story for each error that can be told here."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, flip_byte
from tests.kill_jobs import spoil_digest
from tests.source_story import VICTIM, Setting, replace_frame, tell
from tests.toolkit import STATE_DIRECTORY, Result
from vime_sync.local.lock import hold
from vime_sync.local.paths import local_paths

RUNBOOK = (Path(__file__).parents[1] / "vime_sync" / "docs" / "RUNBOOK.md").read_text(encoding="utf-8")


def _pattern(symptom: str) -> str:
    """CAPITALS stand for what differs."""
    spaced = re.sub(r"\b[A-Z]+(?: [A-Z]+)*\b", "\0", symptom)
    return ".+".join(re.escape(piece) for piece in spaced.split("\0"))


def _symptoms(identifier: str) -> list[str]:
    section = RUNBOOK.split(f"\n### `{identifier}`\n", 1)[1]
    block = section.split("```text\n", 1)[1].split("\n```", 1)[0]
    return [line for line in block.splitlines() if line.startswith("error [")]


def _malformed(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    toolkit.rewrite_index(story.directory, lambda document: document["metadata"].update(delta_encoding="add"))
    return story.pull()


def _trailing(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    replace_frame(story.shard, toolkit.compress(story.payload) + b"x")
    return story.pull()


def _cut(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    replace_frame(story.shard, toolkit.compress(story.payload)[:-1])
    return story.pull()


def _wrong_digest(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    spoil_digest(story.directory, VICTIM)
    return story.pull()


def _not_ready(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    story.index.unlink()
    return story.pull()


def _shard_missing(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    story.shard.unlink()
    return story.pull()


def _gap(root: Path) -> Result:
    story = tell(root, Setting.MIDDLE)
    shutil.rmtree(story.directory)
    return story.pull()


def _other_base_version(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    toolkit.rewrite_index(story.directory, lambda document: document["metadata"].update(base_version="000000"))
    return story.pull()


def _not_published(root: Path) -> Result:
    return tell(root, Setting.ONLY).pull(9)


def _unmounted(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    shutil.rmtree(story.shared)
    return story.pull()


def _emptied(root: Path) -> Result:
    story = tell(root, Setting.ONLY)
    shutil.rmtree(story.shared)
    story.shared.mkdir()
    return story.pull()


def _locked(root: Path) -> Result:
    host = Host.create(root)
    host.publish()
    host.pulled()
    with hold(local_paths(host.local), wait_s=0, check_stop=lambda: None):
        return host.pull()


def _rotten(root: Path) -> Result:
    host = Host.create(root)
    host.publish()
    host.pulled()
    flip_byte(host.local, "scalar")
    return toolkit.vime("verify", "--local", host.local)


def _of_no_version(root: Path) -> Result:
    host = Host.create(root)
    host.publish()
    host.pulled()
    (host.local / STATE_DIRECTORY / "state.json").unlink()
    flip_byte(host.local, "scalar")
    return toolkit.pull(host.shared, host.local, version=1)


def _somebodys(root: Path) -> Result:
    host = Host.create(root)
    host.local.mkdir()
    (host.local / "thesis.txt").write_text("mine")
    return host.pull()


def _no_engine(root: Path) -> Result:
    host = Host.create(root)
    return host.pull("--engine", "vllm=http://127.0.0.1:9")


def _wrong_base(root: Path) -> Result:
    host = Host.create(root)
    host.publish(density=0.5)
    host.publish(density=0.5)
    other = Host.create(root / "other", model=toolkit.make_model(seed=9))
    return toolkit.pull(host.shared, other.local, base=other.base)


def _usage(root: Path) -> Result:
    return toolkit.pull(root, root / "local", base=root / "nothing")


STORIES: list[tuple[str, Callable[[Path], Result]]] = [
    ("malformed", _malformed), ("malformed", _trailing), ("corrupt_payload", _cut),
    ("checksum_mismatch", _wrong_digest),
    ("not_ready", _not_ready), ("not_ready", _shard_missing), ("lineage_gap", _gap),
    ("lineage_mismatch", _other_base_version), ("version_missing", _not_published), ("share_unreachable", _unmounted),
    ("share_unreachable", _emptied), ("lock_held", _locked), ("damaged", _rotten), ("damaged", _of_no_version),
    ("not_ours", _somebodys), ("engine_unreachable", _no_engine), ("usage", _usage),
    ("wrong_base", _wrong_base),
]  # fmt: skip


@pytest.mark.parametrize(("identifier", "story"), STORIES, ids=[story.__name__.strip("_") for _, story in STORIES])
def test_what_is_said_is_a_symptom_of_its_section(
    identifier: str, story: Callable[[Path], Result], tmp_path: Path
) -> None:
    result = story(tmp_path)
    assert result.error.get("id") == identifier, result.stderr
    said = f"error [{identifier}]: {result.error['message']}"
    assert any(re.fullmatch(_pattern(symptom), said) for symptom in _symptoms(identifier)), said
