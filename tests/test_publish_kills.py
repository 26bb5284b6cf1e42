"""A publisher killed anywhere leaves no version that a receiver would take, and the next one carries on.

The kills are exact, before every durable operation; some are real SIGKILLs at moments that fall where they fall.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.kill_points import (
    KillSwitch,
    Matching,
    count_operations,
    every_operation,
    no_disk_waits,
    observing,
    run_until_killed,
)
from tests.kill_process import KillableRuns
from tests.publish_world import PUBLISHER_DIRECTORY, Trainer
from tests.toolkit import Result

_JOBS = {
    "first": ("--encoding", "xor"),
    "xor": ("--encoding", "xor"),
    "overwrite": ("--encoding", "overwrite"),
    "full": ("--encoding", "full"),
    "renamed": ("--encoding", "xor"),
}
_KILLS = 16


class _Story:
    """One job, done again and again from the same start."""

    def __init__(self, root: Path, job: str) -> None:
        self.trainer = trainer = Trainer.create(root, toolkit.make_model(tensors=4, kib=4))
        if job != "first":
            trainer.published()
            trainer.published()
        self.version = max(trainer.models) + 1
        model = toolkit.step(trainer.models[self.version - 1], 40)
        if job == "renamed":
            model["renamed"] = model.pop("one")
        self.model = model
        self.checkpoint = trainer.save(model)
        self.arguments = trainer.arguments(self.checkpoint, *_JOBS[job], "--threads", "1")
        self.saved = root / "saved"
        self.saved.mkdir()
        for place in (trainer.shared, trainer.cache):
            if place.exists():
                shutil.copytree(place, self.saved / place.name)

    def begin_again(self) -> None:
        trainer = self.trainer
        for place in (trainer.shared, trainer.cache, trainer.local):
            shutil.rmtree(place, ignore_errors=True)
            if (self.saved / place.name).exists():
                shutil.copytree(self.saved / place.name, place)
        trainer.models = {version: model for version, model in trainer.models.items() if version < self.version}

    def run(self) -> Result:
        return toolkit.vime(*self.arguments)

    def expect_no_half_version(self) -> bool:
        """What stands on the share is as before, or the new version, whole. Returns whether that is there."""
        trainer = self.trainer
        before = [trainer.path(version).name for version in range(1, self.version)]
        name = trainer.path(self.version).name
        is_there = name in trainer.versions()
        assert trainer.versions() == (sorted([*before, name]) if is_there else before)
        if is_there:
            trainer.models[self.version] = self.model
            trainer.expect_decoded(self.version)
        return is_there

    def expect_to_go_on(self) -> None:
        """The next publication takes the right number, clears what was left, and hosts come to it."""
        trainer = self.trainer
        is_there = self.expect_no_half_version()
        result = self.run()
        assert result.code == 0, result.stderr
        version = result.document["version"]
        assert version == self.version + is_there
        trainer.models[version] = self.model
        trainer.expect_decoded(version)
        assert trainer.leftovers() == []
        trainer.expect_pulled(version)


def _kill_everywhere(story: _Story, matching: Matching, every: int = 1) -> None:
    story.begin_again()
    operations = count_operations(story.run, matching)
    appeared = 0
    for point in range(0, operations, every):
        story.begin_again()
        assert run_until_killed(story.run, KillSwitch(point, matching)) is None
        appeared += story.expect_no_half_version()
        story.expect_to_go_on()
    story.begin_again()
    run_until_killed(story.run, KillSwitch(operations - 1, matching))
    assert story.expect_no_half_version()  # the last operations come after it has appeared
    assert appeared < operations / 2


@pytest.mark.parametrize("job", _JOBS)
def test_killed_before_every_operation_on_the_share(tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)
    story = _Story(tmp_path, job)
    _kill_everywhere(story, lambda operation, path: path.is_relative_to(story.trainer.shared))


def test_killed_while_the_cache_is_brought_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)
    _kill_everywhere(_Story(tmp_path, "xor"), every_operation, every=4)


def test_killed_twice_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that clears up after a kill is killed itself."""
    no_disk_waits(monkeypatch)
    generator = random.Random(7)
    story = _Story(tmp_path, "xor")
    story.begin_again()
    operations = count_operations(story.run)
    for _ in range(12):
        story.begin_again()
        for _ in range(2):
            run_until_killed(story.run, KillSwitch(generator.randrange(operations)))
            if story.expect_no_half_version():
                break
        else:
            story.expect_to_go_on()


def test_real_kills(tmp_path: Path) -> None:
    generator = random.Random(11)
    story = _Story(tmp_path, "xor")
    landed = 0
    with KillableRuns(tmp_path / "scratch") as runs:
        lengths_s = []
        for _ in range(3):
            story.begin_again()
            whole = runs.run(story.arguments)
            assert whole.code == 0, whole.messages
            lengths_s.append(whole.seconds)
        for _ in range(_KILLS):
            story.begin_again()
            outcome = runs.run(story.arguments, kill_after_s=generator.uniform(0, min(lengths_s)))
            landed += outcome.code is None
            story.expect_to_go_on()
    assert landed  # where they land is chance; that some do is certain enough


# ---- power


def _log(run: Callable[[], Result]) -> list[tuple[str, Path]]:
    seen: list[tuple[str, Path]] = []
    with observing(lambda operation, path: seen.append((operation, path))):
        result = run()
    assert result.code == 0, result.stderr
    return seen


@pytest.mark.parametrize("job", ["xor", "full"])
def test_everything_is_durable_before_what_names_it(tmp_path: Path, job: str) -> None:
    """Files before their names, shards before the index, the whole directory before it appears, then that."""
    story = _Story(tmp_path, job)
    share = story.trainer.shared
    log = [entry for entry in _log(story.run) if entry[1].is_relative_to(share)]
    version = story.trainer.path(story.version)
    appears = log.index(("rename", version))
    build = next(path for operation, path in log if operation == "make_directory" and path.name.startswith("build-"))

    index = next(place for place, (_, path) in enumerate(log) if path.name.startswith(toolkit.INDEX_NAME))
    created = [(place, path) for place, (operation, path) in enumerate(log) if operation == "create"]
    parts = build.with_name(f"{build.name}.parts")
    shards = [path for place, path in created if path.parent in (build, parts) and place < index]
    assert shards
    for path in shards:
        if any(entry == ("unlink", path) for entry in log):
            continue  # a part that was joined with others
        writes = [place for place, entry in enumerate(log) if entry == ("write", path)]
        assert max(writes) < log.index(("sync", path)) < index
    assert ("sync_directory", build) in log[:index]
    assert ("sync_directory", build) in log[index:appears]
    assert ("sync", log[index][1]) in log[index:appears]
    assert ("sync_directory", share) in log[appears:]
    assert not [entry for entry in log[appears + 1 :] if entry[1].is_relative_to(version)]


def test_nothing_beside_the_publishers_corner_is_ever_written(tmp_path: Path) -> None:
    story = _Story(tmp_path, "xor")
    for operation, path in _log(story.run):
        if path.is_relative_to(story.trainer.shared):
            corner = story.trainer.shared / PUBLISHER_DIRECTORY
            assert path.is_relative_to(corner) or (operation, path) in {
                ("rename", story.trainer.path(story.version)),
                ("sync_directory", story.trainer.shared),
            }
