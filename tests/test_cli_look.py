"""Tables, colour and bars: on a terminal of any width, on one that wants none, and in a pipe."""

import io
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests import toolkit
from tests.host import Host, flip_byte
from tests.toolkit import vime, vime_plain
from vime_sync.cli import run
from vime_sync.cli.output import human_age, human_bytes, told_moment
from vime_sync.cli.style import PLAIN, Screen, Text, Tone, bar, elided, screen_of, shown
from vime_sync.cli.table import Bar, Column, Table, table_lines

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


Look = Callable[..., str]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """What a terminal shows of a command."""

    def look(*arguments: str | Path, columns: int = 100, **environment: str) -> str:
        terminal = Terminal()
        for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdout", terminal)
        assert run([str(argument) for argument in arguments]) == 0
        return terminal.getvalue()

    return look


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Versions 1 to 5, of which 3 is full, 4 is gone and 5 has no index yet."""
    host = Host.create(tmp_path, model=toolkit.make_model(kib=8))
    host.publish()
    host.publish(encoding="overwrite")
    host.publish_full()
    host.publish()
    host.publish()
    shutil.rmtree(toolkit.version_path(host.shared, 4))
    (toolkit.version_path(host.shared, 5) / toolkit.INDEX_NAME).unlink()
    return host


# ---- a stream


def test_a_stream_is_a_table(host: Host) -> None:
    lines = vime_plain("inspect", host.shared).stdout.splitlines()
    assert lines[0] == f"stream: {host.shared}"
    assert lines[1].split() == ["version", "kind", "encoding", "tensors", "size", "written", "state"]
    assert re.fullmatch(r"  000001   delta  xor  +8 +\d+ B  \d+ s ago  ready", lines[2])
    assert re.fullmatch(r"  000002   delta  overwrite  +8 +\d+ B  \d+ s ago  ready", lines[3])
    assert re.fullmatch(r"  000003   full  +9 +9\.7 kB  \d+ s ago  ready", lines[4])
    assert re.fullmatch(r"  000005   -  +\d+ s ago  not ready", lines[5])
    assert lines[6].startswith("  000005: not_ready: version 5 in ")
    assert lines[7:] == [
        "  missing: version 4 is not there",
        "  latest ready: 3",
        "  a fresh host starts from: version 3",
    ]
    assert {len(line.rstrip()) for line in lines} == {len(line) for line in lines}


def test_the_document_of_a_stream_says_the_same(host: Host) -> None:
    document = vime("inspect", host.shared).document
    assert (document["missing"], document["latest_ready"], document["fresh_host_from"]) == ([[4, 4]], 3, 3)
    assert [version["version"] for version in document["versions"]] == [1, 2, 3, 5]
    for version in document["versions"]:
        assert version["age_s"] >= 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", version["written_at"])
    assert [version["problem"] for version in document["versions"]] == [None, None, None, "not_ready"]


def test_a_version_is_as_old_as_its_index(host: Host) -> None:
    os.utime(toolkit.version_path(host.shared, 1) / toolkit.INDEX_NAME, (1_700_000_000, 1_700_000_000))
    first = vime("inspect", host.shared).document["versions"][0]
    assert first["written_at"] == "2023-11-14T22:13:20.000Z"
    assert vime("inspect", toolkit.version_path(host.shared, 1)).document["written_at"] == first["written_at"]
    assert " d ago  ready" in vime_plain("inspect", host.shared).stdout.splitlines()[2]


def test_where_a_fresh_host_would_start(tmp_path: Path) -> None:
    host = Host.create(tmp_path, model=toolkit.make_model(kib=4))
    for _ in range(3):
        host.publish()
    assert vime("inspect", host.shared).document["fresh_host_from"] == 0
    assert "a fresh host starts from: the base" in vime_plain("inspect", host.shared).stdout
    shutil.rmtree(toolkit.version_path(host.shared, 2))
    assert vime("inspect", host.shared).document["fresh_host_from"] is None
    assert "a fresh host starts from: nowhere" in vime_plain("inspect", host.shared).stdout


def test_a_gap_of_any_size_is_one_line(host: Host) -> None:
    (host.shared / "weight_v999999999999").mkdir()
    text = vime_plain("inspect", host.shared).stdout
    assert "missing: versions 6 to 999999999998 are not there" in text


# ---- a terminal


def test_a_terminal_sees_colour_and_bars(host: Host, look: Look) -> None:
    text = look("inspect", host.shared)
    assert "\x1b[32mready\x1b[0m" in text and "\x1b[33mnot ready\x1b[0m" in text
    assert "████████████████" in text
    plain = vime_plain("inspect", host.shared).stdout
    assert "\x1b" not in plain and "█" not in plain


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_who_wants_no_colour_gets_none(environment: dict[str, str], host: Host, look: Look) -> None:
    text = look("inspect", host.shared, **environment)
    assert "\x1b" not in text
    assert ("█" in text) == ("TERM" not in environment)  # a dumb terminal is drawn on in ASCII
    assert "####" in text or "█" in text


def test_json_on_a_terminal_is_as_in_a_pipe(host: Host, look: Look) -> None:
    assert "\x1b" not in look("inspect", host.base, "--json", columns=20)
    assert look("inspect", host.base, "--json", columns=20).count("\n") == 1


@pytest.mark.parametrize("columns", [1, 8, 20, 40, 60, 80, 200])
def test_rows_fit_a_narrow_terminal(columns: int, host: Host, look: Look) -> None:
    for path in (host.shared, host.base, toolkit.version_path(host.shared, 1)):
        lines = ESCAPE.sub("", look("inspect", path, columns=columns)).splitlines()
        rows = [line for line in lines if re.search(r" k?B\b", line) and ": " not in line]
        assert rows
        if columns >= 40:
            assert max(map(cell_len, rows)) <= columns, path


def test_a_long_name_is_cut_in_its_middle_on_a_terminal_alone(tmp_path: Path, look: Look) -> None:
    name = "model." + "very_" * 30 + "long.weight"
    model = {name: toolkit.Tensor("BF16", (4,), bytes(8)), "short": toolkit.Tensor("BF16", (2,), bytes(4))}
    toolkit.write_checkpoint(tmp_path / "base", model, shards=1)
    row = next(line for line in look("inspect", tmp_path / "base", columns=60).splitlines() if "model." in line)
    assert re.match(r"  model\.very[a-z_]*\.\.\.[a-z_.]*long\.weight  BF16", row) and name not in row
    assert name in vime_plain("inspect", tmp_path / "base").stdout


def test_a_terminal_shows_the_largest_tensors_a_pipe_all(tmp_path: Path, look: Look) -> None:
    model = toolkit.make_model(tensors=60, kib=64)
    toolkit.write_checkpoint(tmp_path / "base", model)
    piped = vime_plain("inspect", tmp_path / "base").stdout
    assert all(f"  {name}  " in piped for name in model)
    text = ESCAPE.sub("", look("inspect", tmp_path / "base", columns=200))
    rows = [line.split()[0] for line in text.splitlines() if ".safetensors" in line]
    sizes = {name: len(tensor.data) for name, tensor in model.items()}
    assert rows == sorted(model, key=lambda name: (-sizes[name], name))[:20]
    assert f"  and {len(model) - 20} smaller ones, " in text


def test_a_checkpoint_is_summed_up_by_dtype(host: Host) -> None:
    dtypes = vime("inspect", host.base).document["dtypes"]
    model = host.models[0].values()
    assert dtypes["BF16"] == {
        "tensor_count": sum(tensor.dtype == "BF16" for tensor in model),
        "size_bytes": sum(len(tensor.data) for tensor in model if tensor.dtype == "BF16"),
    }
    assert sum(sums["tensor_count"] for sums in dtypes.values()) == len(host.models[0])
    assert [sums["size_bytes"] for sums in dtypes.values()] == sorted(
        (sums["size_bytes"] for sums in dtypes.values()), reverse=True
    )


def test_status_in_colour(host: Host, look: Look) -> None:
    host.pulled(version=2)
    assert "\x1b[32mready\x1b[0m: version 2" in look("status", "--local", host.local)
    assert "\x1b[33m1 behind\x1b[0m" in look("status", "--local", host.local)
    flip_byte(host.local, "one")
    shutil.rmtree(host.base)
    assert vime("verify", "--local", host.local).code == 22
    text = look("status", "--local", host.local)
    assert "\x1b[31m\x1b[1mdamaged\x1b[0m: version 2" in text
    assert ESCAPE.sub("", text) == vime_plain("status", "--local", host.local).stdout


def test_an_error_on_a_terminal_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run(["inspect", "/nowhere"]) == 2
    assert terminal.getvalue().startswith("\x1b[31m\x1b[1merror [usage]:\x1b[0m /nowhere is not a directory")


def test_a_name_that_the_encoding_lacks_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit.write_checkpoint(tmp_path / "base", {"größe": toolkit.Tensor("BF16", (2,), bytes(4))}, shards=1)
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert run(["inspect", str(tmp_path / "base")]) == 0
    assert rb"gr\xf6\xdfe" in raw.getvalue()


# ---- the parts


def test_a_screen_is_what_the_stream_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert screen_of(Terminal()) == Screen(77, True, True)
    assert screen_of(io.StringIO()) == PLAIN
    for nonsense in ("0", "-3", "wide", "", "²"):
        monkeypatch.setenv("COLUMNS", nonsense)
        assert screen_of(Terminal()).columns == 80
    closed = Terminal()
    closed.close()
    assert screen_of(closed) in (PLAIN, Screen(80, True, True))


def test_nothing_in_a_name_steers_the_terminal() -> None:
    screen = Screen(80, True, True)
    assert shown([Text("\x1b[2J\n", Tone.GOOD), "\r"], screen) == "\x1b[32m\\x1b[2J\\n\x1b[0m\\r"
    rows = table_lines(Table((Column(),), [["a\nb"], [Text("\x1b", Tone.BAD)]]), screen)
    assert [shown(row, PLAIN) for row in rows] == ["  a\\nb", "  \\x1b"]


@given(st.text(max_size=30), st.integers(0, 40))
def test_what_is_cut_fits_and_what_fits_is_not_cut(text: str, columns: int) -> None:
    cut = elided(text, columns)
    assert cell_len(cut) <= columns
    assert (cut == text) == (cell_len(text) <= columns)


CELLS = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5), st.integers(1, 60))
def test_columns_stand_below_one_another(rows: list[tuple[str, str, str]], columns: int) -> None:
    described = (Column("one", least=5), Column("two", right=True), Column("three", rank=1, least=4))
    for screen in (PLAIN, Screen(columns, True, True)):
        lines = [ESCAPE.sub("", shown(line, screen)) for line in table_lines(Table(described, rows), screen)]
        assert len(lines) == len(rows) + 1
        assert all(line == line.rstrip() or rows for line in lines)
        if screen is PLAIN:
            for row, line in zip(rows, lines[1:], strict=True):
                assert all(shown(cell, PLAIN).strip() in line for cell in row)


def test_a_bar_is_as_long_as_its_share() -> None:
    screen = Screen(80, True, True)
    assert [bar(share, 4, screen) for share in (0.0, 1e-9, 0.25, 0.5, 1.0, 7.0)] == ["", "▏", "█", "██", "████", "████"]
    assert [bar(share, 4, Screen(80)) for share in (0.0, 1e-9, 0.5, 1.0)] == ["", "#", "##", "####"]
    (line,) = table_lines(Table((Column(), Column()), [["a", Bar(0.5)]]), PLAIN)
    assert shown(line, PLAIN) == "  a"


def test_units_for_people() -> None:
    assert [human_bytes(size) for size in (0, 999, 1000, 1_500_000, 61_000_000_000, 1_500_000_000_000)] == [
        "0 B", "999 B", "1.0 kB", "1.5 MB", "61.0 GB", "1.50 TB",
    ]  # fmt: skip
    assert [human_age(seconds) for seconds in (None, 0.4, 119, 120, 7199, 7200, 172_799, 172_800)] == [
        "", "0 s ago", "119 s ago", "2 min ago", "119 min ago", "2 h ago", "47 h ago", "2 d ago",
    ]  # fmt: skip
    assert told_moment(None) == told_moment(1e30) == {"written_at": None, "age_s": None}
    assert told_moment(32_503_680_000)["age_s"] == 0  # a clock of another host that is ahead
