"""The command line contract: documents, exit codes, settings, targets, `--dry-run`, `status`."""

import json
import re
from pathlib import Path

import pytest

from tests import toolkit
from tests.cli_documents import ERROR, PULL, STATUS, expect_document
from tests.host import Host, everything, expect_error
from tests.toolkit import vime

COMMANDS = ["pull", "watch", "reload", "wait", "status", "verify", "inspect", "publish", "prune", "demo"]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Three versions published, nothing pulled yet."""
    host = Host.create(tmp_path)
    for encoding in ("xor", "overwrite", "xor"):
        host.publish(encoding=encoding)
    return host


# ---- documents


def test_pull_documents_have_the_contracts_fields(host: Host) -> None:
    for options in (("--dry-run",), (), ("--dry-run",), ()):
        document = host.pulled(*options)
        expect_document(document, "pull", PULL)
        assert document["engines"] == []


def test_status_documents_have_the_contracts_fields(host: Host) -> None:
    expect_document(vime("status", "--local", host.local).document, "status", STATUS)
    host.pulled(version=2)
    for options in ((), ("--shared", host.shared)):
        result = vime("status", "--local", host.local, *options)
        assert result.code == 0, result.stderr
        expect_document(result.document, "status", STATUS)


def test_verify_and_inspect_give_one_document(host: Host) -> None:
    host.pulled()
    verify = vime("verify", "--local", host.local)
    assert (verify.code, verify.document.get("schema")) == (0, "vime-sync/verify/1"), verify.stderr
    for path in (host.shared, toolkit.version_path(host.shared, 2), host.base, host.local):
        inspect = vime("inspect", path)
        assert (inspect.code, inspect.document.get("schema")) == (0, "vime-sync/inspect/1"), inspect.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("pull", "--no-such-option"), 2),
        (("pull",), 2),
        (("pull", "--shared", "HOST/shared"), 2),
        (("pull", "--local", "HOST/local"), 2),
        (("pull", "--shared", "HOST/shared", "--local", "HOST/local", "--version", "newest"), 2),
        (("pull", "--shared", "HOST/shared", "--local", "HOST/local", "--version", "-1"), 2),
        (("pull", "--shared", "HOST/shared", "--local", "HOST/local", "--wait", "long"), 2),
        (("pull", "--shared", "HOST/shared", "--local", "HOST/local", "--threads", "257"), 2),
        (("pull", "surplus", "--shared", "HOST/shared", "--local", "HOST/local"), 2),
        (("status",), 2),
        (("verify",), 2),
        (("inspect",), 2),
        (("reload", "--local", "HOST/local"), 2),
        (("reload", "--local", "HOST/local", "--engine", "vllm"), 2),
        (("reload", "--local", "HOST/local", "--engine", "vllm=http://127.0.0.1:1"), None),
        (("watch", "--log-format", "json"), 2),
        (("watch", "--local", "HOST/local", "--http", "nowhere", "--log-format", "json"), 2),
        (("watch", "--local", "HOST/local", "--pre-read-hook", "json.nothing", "--log-format", "json"), 2),
        (("wait", "--version", "1", "--hosts", "1"), 2),
        (("wait", "--ack-dir", "HOST/acks", "--version", "latest", "--hosts", "1"), 2),
        (("wait", "--ack-dir", "HOST/acks", "--version", "1", "--hosts", "1", "--timeout", "0"), 10),
        (("--settings", "HOST/nothing", "pull", "--json"), 2),
        (("no-such-command", "--json"), 2),
        (("pull", "--shared", "HOST/shared", "--local", "HOST/local", "--base", "HOST/nothing"), None),
        (("pull", "--shared", "HOST/nothing", "--local", "HOST/local", "--base", "HOST/base"), 10),
        (("pull", "--shared", "HOST/shared", "--local", "HOST/shared/local", "--base", "HOST/base"), 2),
        (("verify", "--local", "HOST/nothing"), None),
        (("inspect", "HOST/nothing"), None),
    ],
)
def test_every_refusal_is_an_error_object_on_the_last_line(
    arguments: tuple[str, ...], code: int | None, host: Host
) -> None:
    before = everything(host.root)
    result = vime(*(argument.replace("HOST", str(host.root)) for argument in arguments))

    expect_document(result.error, "error", ERROR)
    assert result.error["code"] == result.code > 1
    assert code in (None, result.code)
    assert (result.code == 2) == (result.error["id"] == "usage")
    assert json.loads(result.stderr.splitlines()[-1]) == result.error
    assert result.stdout == ""
    assert everything(host.root) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("pull", "--shared", "HOST/shared", "--local", "HOST/local", "--base", "HOST/base", "--version", "9"),
        ("pull", "--shared", "HOST/nothing", "--local", "HOST/local", "--base", "HOST/base"),
        ("pull", "--shared", "HOST/shared", "--local", "HOST/base", "--base", "HOST/base"),
        ("pull", "--shared", "HOST/shared", "--local", "HOST/shared/x", "--base", "HOST/base"),
        ("verify", "--local", "HOST/nothing"),
        ("inspect", "HOST/nothing"),
    ],
)
def test_for_people_an_error_is_one_line_and_a_hint(arguments: tuple[str, ...], host: Host) -> None:
    result = toolkit.vime_plain(*(argument.replace("HOST", str(host.root)) for argument in arguments))

    lines = result.stderr.splitlines()
    assert result.code > 1
    assert 1 <= len(lines) <= 2, result.stderr
    assert not any(line.startswith("{") for line in lines)
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


# ---- help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_exit_codes_and_two_examples(command: str) -> None:
    result = toolkit.vime_plain(command, "--help", env={"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)

    assert result.code == 0, result.stderr
    heading = re.search(r"exit (codes|status)", text, re.IGNORECASE)
    assert heading is not None, text
    assert heading.start() > text.rindex("\n  --log-format")
    ending = text[heading.start() :]
    assert {"0", "2"} <= set(re.findall(r"(?<!\d)\d+(?!\d)", ending))
    assert len(re.findall(rf"vime-sync {command}\b", text[text.rindex("  -h, --help") :])) == 2


def test_help_names_all_commands() -> None:
    result = toolkit.vime_plain("--help")
    assert result.code == 0
    assert [command for command in COMMANDS if command not in result.stdout] == []


# ---- settings from the environment, and remembered ones


def _twins(host: Host, **more: str) -> dict[str, str]:
    return {
        "VIME_SYNC_SHARED": str(host.shared),
        "VIME_SYNC_LOCAL": str(host.local),
        "VIME_SYNC_BASE": str(host.base),
        **more,
    }


def test_every_setting_can_come_from_the_environment(host: Host) -> None:
    planned = vime("pull", env=_twins(host, VIME_SYNC_VERSION="2", VIME_SYNC_DRY_RUN="1"))
    assert (planned.document["result"], planned.document["version"]) == ("planned", 2)
    assert not host.local.exists()

    host.local.mkdir()
    (host.local / "README.md").write_text("mine")
    expect_error(vime("pull", env=_twins(host)), 23, "not_ours")
    pulled = vime("pull", env=_twins(host, VIME_SYNC_VERSION="1", VIME_SYNC_ADOPT="1"))
    assert (pulled.code, pulled.document["version"]) == (0, 1), pulled.stderr
    host.expect_local(1)

    status = vime("status", env=_twins(host, VIME_SYNC_CHECK="1"))
    assert (status.code, status.document["behind"]) == (3, 2)
    assert vime("verify", env=_twins(host)).code == 0


def test_an_option_goes_before_its_twin(host: Host) -> None:
    result = vime("pull", "--version", "1", env=_twins(host, VIME_SYNC_VERSION="2"))
    assert (result.code, result.document["version"]) == (0, 1), result.stderr


@pytest.mark.parametrize("value", ["newest", "-1", "1.5"])
def test_a_bad_value_in_the_environment_is_wrong_usage(value: str, host: Host) -> None:
    error = expect_error(vime("pull", env=_twins(host, VIME_SYNC_VERSION=value)), 2, "usage")
    assert value in error["message"]


def test_local_remembers_its_share_and_base(host: Host) -> None:
    host.pulled(version=1)
    only_local = {"VIME_SYNC_LOCAL": str(host.local)}
    for version in (2, 3):
        result = vime("pull", "--version", str(version), env=only_local)
        assert (result.code, result.document.get("version")) == (0, version), result.stderr
        host.expect_local(version)
    result = vime("pull", "--version", "0", env=only_local)
    assert (result.code, result.document.get("version")) == (0, 0), result.stderr
    host.expect_local(0)


# ---- status


def test_status_of_nothing_is_absent(host: Host) -> None:
    document = vime("status", "--local", host.local, "--shared", host.shared).document
    assert (document["state"], document["local_version"], document["latest_version"]) == ("absent", None, 3)
    assert not host.local.exists()


def test_status_says_how_far_behind(host: Host) -> None:
    for version, behind in ((1, 2), (3, 0)):
        host.pulled(version=version)
        before = everything(host.local)
        for check, code in (((), 0), (("--check",), 3 if behind else 0)):
            result = vime("status", "--local", host.local, "--shared", host.shared, *check)
            document = result.document
            assert result.code == code, result.stderr
            assert (document["state"], document["local_version"]) == ("ready", version)
            assert (document["latest_version"], document["behind"]) == (3, behind)
        assert everything(host.local) == before


def test_a_durable_pull_says_so(host: Host) -> None:
    host.pulled("--durable")
    assert vime("status", "--local", host.local).document["durable"] is True
    host.expect_local(3)
