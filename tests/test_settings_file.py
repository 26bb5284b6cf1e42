"""`--settings FILE`: what a line means, and that the file stands between environment and command line."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import toolkit
from tests.daemon_story import small_host
from vime_sync.cli.settings_file import SettingsSource, read_settings
from vime_sync.errors import UsageError


def read(tmp_path: Path, text: str | bytes) -> dict[str, str]:
    path = tmp_path / "settings"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_settings(path)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("VIME_SYNC_LOCAL=/nvme/ckpt", "/nvme/ckpt"),
        ("export VIME_SYNC_LOCAL=/nvme/ckpt", "/nvme/ckpt"),
        ("  VIME_SYNC_LOCAL=/nvme/ckpt  ", "/nvme/ckpt"),
        ("VIME_SYNC_LOCAL=/nvme/ckpt # the fast disk", "/nvme/ckpt"),
        ("VIME_SYNC_LOCAL='/nvme/a b'", "/nvme/a b"),
        ('VIME_SYNC_LOCAL="/nvme/a b"', "/nvme/a b"),
        ('VIME_SYNC_LOCAL="/nvme/a # b"', "/nvme/a # b"),
        ("VIME_SYNC_LOCAL=/nvme/a=b", "/nvme/a=b"),
        ("VIME_SYNC_LOCAL=", ""),
        ("VIME_SYNC_LOCAL=''", ""),
        ("VIME_SYNC_LOCAL=/nvme/ckpt\r", "/nvme/ckpt"),
        ("VIME_SYNC_LOCAL=/nvme/größe", "/nvme/größe"),
        # A number sign begins a comment only where a word begins: in a key or a path it is a character.
        ("VIME_SYNC_LOCAL=/nvme/a#b", "/nvme/a#b"),
        ("VIME_SYNC_LOCAL=abc#def # and a comment", "abc#def"),
        ("VIME_SYNC_LOCAL=#abc", "#abc"),
        # Nothing is expanded.
        ("VIME_SYNC_LOCAL=$HOME/ckpt", "$HOME/ckpt"),
        ("VIME_SYNC_LOCAL=%h/ckpt", "%h/ckpt"),
    ],
)
def test_a_line_is_a_name_and_a_value(tmp_path: Path, line: str, value: str) -> None:
    assert read(tmp_path, f"# head\n\n{line}\n\n") == {"VIME_SYNC_LOCAL": value}


def test_the_last_one_counts_and_others_are_passed_over(tmp_path: Path) -> None:
    text = "PATH=/bin\nVIME_SYNC_LOCAL=a\nOTHER='b c'\nVIME_SYNC_LOCAL=b\n#VIME_SYNC_BASE=c\n;VIME_SYNC_BASE=c\n"
    assert read(tmp_path, text) == {"VIME_SYNC_LOCAL": "b"}


def test_an_empty_file_and_one_without_a_last_line_end(tmp_path: Path) -> None:
    assert read(tmp_path, "") == {}
    assert read(tmp_path, "VIME_SYNC_LOCAL=a") == {"VIME_SYNC_LOCAL": "a"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("VIME_SYNC_LOCAL=a b", "line 1"),
        ("\nVIME_SYNC_LOCAL", "line 2"),
        ("VIME_SYNC_LOCAL = a", "line 1"),
        ("VIME_SYNC_LOCAL='a", "line 1"),
        ("VIME_SYNC_LOCAL=a\\", "line 1"),
        (b"VIME_SYNC_LOCAL=\xff\xfe", "no text"),
        (b"VIME_SYNC_LOCAL=a\0b", ""),
    ],
)
def test_what_is_no_setting_is_wrong_usage_and_names_its_line(tmp_path: Path, text: str | bytes, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert part in caught.value.message


def test_a_secret_in_a_broken_line_is_not_told(tmp_path: Path) -> None:
    for line in ("VIME_SYNC_ENGINE_API_KEY='top-secret", "VIME_SYNC_ENGINE_API_KEY=top-secret two"):
        with pytest.raises(UsageError) as caught:
            read(tmp_path, line)
        assert "top-secret" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("kind", ["absent", "directory", "forbidden"])
def test_a_file_that_cannot_be_read_is_wrong_usage(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "settings"
    if kind == "directory":
        path.mkdir()
    elif kind == "forbidden":
        if os.geteuid() == 0:
            path = Path("/proc/self/mem")
        else:
            path.write_text("")
            path.chmod(0)
    result = toolkit.vime_plain("--settings", path, "status", "--local", tmp_path / "local")
    assert result.code == 2 and str(path) in result.stderr and "Traceback" not in result.stderr


values = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f\x85"), max_size=20)


@given(value=values)
def test_a_value_that_a_shell_quoted_comes_out_as_it_went_in(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    assert read(tmp_path_factory.mktemp("s"), f"VIME_SYNC_X={shlex.quote(value)}\n") == {"VIME_SYNC_X": value}


@pytest.mark.parametrize("value", ["abc#def", "/a/b", "'a b'", '"a#b"', "a=b", "'it'\\''s'", "x\\ y"])
def test_a_file_that_a_shell_reads_means_the_same_here(tmp_path: Path, value: str) -> None:
    """The unit's environment file can be sourced too."""
    path = tmp_path / "settings"
    path.write_text(f"VIME_SYNC_X={value}\n")
    script = f'. {shlex.quote(str(path))}; printf %s "$VIME_SYNC_X"'
    told = subprocess.run(["sh", "-c", script], capture_output=True, check=True, text=True).stdout
    assert read_settings(path) == {"VIME_SYNC_X": told}


# ---- in the environment


def test_it_wins_over_the_environment_and_options_win_over_it(tmp_path: Path) -> None:
    host = small_host(tmp_path / "host")
    host.publish()
    path = tmp_path / "settings"
    path.write_text(f"VIME_SYNC_LOCAL={host.local}\nVIME_SYNC_SHARED={host.shared}\nVIME_SYNC_BASE={host.base}\n")
    other = {"VIME_SYNC_LOCAL": str(tmp_path / "other"), "VIME_SYNC_SETTINGS": str(path)}
    assert toolkit.vime_plain("pull", "--version", "0", env=other).code == 0
    host.expect_local(0)
    third = tmp_path / "third"
    assert toolkit.vime_plain("--settings", path, "pull", "--local", third, env=other).code == 0
    host.expect_local(1, third)
    assert not (tmp_path / "other").exists()


def test_nothing_of_it_is_left_in_the_environment_of_a_caller(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text("VIME_SYNC_LOCAL=/nowhere\nVIME_SYNC_NEW=1\n")
    seen = dict(os.environ)
    toolkit.vime_plain("--settings", path, "status")
    assert dict(os.environ) == seen


def test_what_the_file_names_no_more_is_again_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIME_SYNC_A", "outer")
    monkeypatch.delenv("VIME_SYNC_B", raising=False)
    path = tmp_path / "settings"
    path.write_text("VIME_SYNC_A=inner\nVIME_SYNC_B=inner\n")
    source = SettingsSource()
    source.use(path)
    assert (os.environ["VIME_SYNC_A"], os.environ["VIME_SYNC_B"]) == ("inner", "inner")
    path.write_text("VIME_SYNC_B=second\n")
    source.read_again()
    assert (os.environ["VIME_SYNC_A"], os.environ["VIME_SYNC_B"]) == ("outer", "second")
    path.write_text("broken\n")
    with pytest.raises(UsageError):
        source.read_again()
    assert (os.environ["VIME_SYNC_A"], os.environ["VIME_SYNC_B"]) == ("outer", "second")
    source.give_back()
    assert os.environ["VIME_SYNC_A"] == "outer" and "VIME_SYNC_B" not in os.environ
