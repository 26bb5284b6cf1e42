"""`status`: where LOCAL stands in words and in exit codes, with a share that tells and with one that does not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error
from tests.kill_jobs import JOBS, bring_fresh, create, intent_path, state_path
from tests.kill_points import kill, operations
from tests.toolkit import Result, vime, vime_plain


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two versions published, nothing pulled yet."""
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8))
    host.publish()
    host.publish()
    return host


def status(host: Host, *options: str | Path) -> Result:
    """With what LOCAL remembers alone, and without a trace."""
    before = everything(host.root)
    result = vime("status", "--local", host.local, *options)
    assert everything(host.root) == before
    return result


def check(host: Host, *options: str | Path) -> int:
    return status(host, "--check", *options).code


# ---- 3 unless ready and not behind


def test_check_is_0_when_ready_at_the_newest_and_3_when_behind(host: Host) -> None:
    assert check(host, "--shared", host.shared) == 3  # nothing is here
    assert check(host) == 3
    host.pulled(version=1)
    assert check(host) == 3
    host.pulled()
    assert check(host) == 0
    assert check(host, "--shared", host.shared) == 0


def test_check_is_3_when_damaged(host: Host) -> None:
    host.pulled()
    next(host.local.glob("*.safetensors")).unlink()
    assert vime("verify", "--local", host.local).code == 22
    result = status(host, "--check")
    assert (result.code, result.document["state"], result.document["behind"]) == (3, "damaged", 0)


def test_check_is_3_when_the_state_is_gone_or_garbage(host: Host) -> None:
    host.pulled()
    state_path(host.local).write_bytes(b"{")
    result = status(host, "--check")
    assert (result.code, result.document["state"]) == (3, "damaged")
    state_path(host.local).unlink()
    result = status(host, "--check")
    assert (result.code, result.document["state"]) == (3, "damaged")
    assert "the next pull" in vime_plain("status", "--local", host.local).stdout


def test_the_number_of_another_receiver_is_told_and_not_believed(host: Host) -> None:
    host.pulled()
    state_path(host.local).write_bytes(b'{"version": "000002"}')
    assert check(host, "--shared", host.shared) == 3
    told = vime_plain("status", "--local", host.local).stdout
    assert told.startswith("damaged: another receiver left version 2 here")


def test_check_is_3_after_the_trainer_began_again(host: Host) -> None:
    """The number alone would say that nothing is missing."""
    host.pulled()
    shutil.rmtree(host.shared)
    again = toolkit.step(host.models[0], 77)
    toolkit.publish_delta(host.shared, 1, host.models[0], again)
    result = status(host, "--check")
    document = result.document
    assert (result.code, document["new_stream"], document["behind"]) == (3, True, 1)
    assert vime_plain("status", "--local", host.local).stdout == (
        "ready: version 2 of another stream (newest on the share: 1, 1 behind)\n"
    )


def test_without_any_share_nothing_is_known_to_be_newer(tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8))
    assert toolkit.pull(None, host.local, base=host.base, version=0).code == 0
    result = vime_plain("status", "--local", host.local, "--check")
    assert (result.code, "not known" in result.stderr) == (0, True)
    result = vime_plain("status", "--local", host.local)
    assert (result.code, result.stderr) == (0, "")


def test_versions_passed_by_are_named_and_do_not_count(host: Host) -> None:
    host.pulled()
    host.publish()
    (toolkit.version_path(host.shared, 3) / toolkit.INDEX_NAME).unlink()
    result = status(host, "--check")
    assert (result.code, result.document["latest_version"], "version 3" in result.stderr) == (0, 2, True)


# ---- 10 when the share cannot tell


def gone(host: Host) -> None:
    shutil.rmtree(host.shared)


def is_a_file(host: Host) -> None:
    shutil.rmtree(host.shared)
    host.shared.write_bytes(b"")


def shows_nothing(host: Host) -> None:
    shutil.rmtree(host.shared)
    host.shared.mkdir()
    (host.shared / "lost+found").mkdir()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("fault", [gone, is_a_file, shows_nothing])
def test_check_is_10_when_the_share_does_not_answer(fault: Callable[[Host], None], named: bool, host: Host) -> None:
    host.pulled(version=1)
    fault(host)
    options = ("--shared", host.shared) if named else ()

    result = status(host, "--check", *options)

    assert (result.code, result.error["id"], result.error["retryable"]) == (10, "share_unreachable", True)
    assert str(host.shared) in result.error["message"]
    assert (result.document["local_version"], result.document["state"]) == (1, "ready")
    assert (result.document["latest_version"], result.document["behind"]) == (None, None)
    plain = vime_plain("status", "--local", host.local, *options)
    assert (plain.code, plain.error) == (0, {})
    assert plain.stderr == f"warning: {result.error['message']}\n"
    assert plain.stdout == "ready: version 1 (newest on the share: unknown)\n"


def test_check_is_10_on_a_fresh_host_before_a_share_that_is_not_there(host: Host) -> None:
    gone(host)
    result = status(host, "--check", "--shared", host.shared)
    assert (result.code, result.error["id"]) == (10, "share_unreachable")


def test_an_empty_share_is_healthy_before_the_trainer_has_begun(tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8))
    host.pulled()
    result = status(host, "--check")
    assert (result.code, result.document["local_version"], result.document["latest_version"]) == (0, 0, 0)


def test_a_share_that_is_a_loop_of_links_is_wrong_usage(host: Host) -> None:
    loop = host.root / "loop"
    loop.symlink_to(loop)
    expect_error(status(host, "--shared", loop), 2, "usage")


# ---- between versions


@pytest.mark.parametrize(
    ("name", "told", "between"),
    [
        ("apply", "between versions 1 and 2; the next pull finishes or undoes it", [1, 2]),
        ("folded", "between versions 0 and 3; the next pull finishes or undoes it", [0, 3]),
        ("rollback", "between versions 3 and 1; the next pull finishes or undoes it", [3, 1]),
        ("seed", "on the way to version 2; the next pull finishes it", [None, 2]),
        ("replacement", "between versions 1 and 2; the next pull finishes it", [1, 2]),
        ("replacement_in_place", "between versions 1 and 2; the next pull finishes it", [1, 2]),
        ("repair", "version 2 is being mended; the next pull finishes or undoes it", [2, 2]),
    ],
)
def test_a_pass_cut_short_is_told_with_both_its_versions(
    name: str, told: str, between: list[int | None], tmp_path: Path
) -> None:
    job = JOBS[name]
    host = create(tmp_path, job, kib=64)
    bring_fresh(host, job)
    kill(lambda: job.run(host), 0, operations("unlink", "state.json"))
    state_path(host.local).unlink(missing_ok=True)  # the step at which the kill came

    result = status(host, "--check")

    document = result.document
    assert (result.code, document["state"], document["local_version"]) == (3, "updating", None)
    assert document["between"] == between
    newest = max(host.models)
    text = vime_plain("status", "--local", host.local)
    assert (text.code, text.stdout) == (0, f"updating: {told} (newest on the share: {newest})\n")
    shutil.rmtree(host.shared)
    host.shared.mkdir()
    assert check(host) == 10


def test_a_spoilt_record_of_a_pass_is_told_without_numbers(host: Host) -> None:
    host.pulled()
    state_path(host.local).unlink()
    intent_path(host.local).write_bytes(b"garbage")
    document = status(host).document
    assert (document["state"], document["between"]) == ("updating", None)
    assert vime_plain("status", "--local", host.local).stdout.startswith("updating: between two versions; ")
