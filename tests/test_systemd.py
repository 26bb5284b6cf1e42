"""The unit is one that systemd takes as it is, and the example of its settings names every setting of `watch`.

`python -m tests.test_systemd` writes the example anew from the options.
"""

import re
import shutil
import stat
import subprocess
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from vime_sync import cli
from vime_sync.cli.application import EXIT_CODES, application
from vime_sync.cli.engine_options import engine_specs
from vime_sync.cli.settings_file import read_settings
from vime_sync.engines.spec import API_KEY_VARIABLE, EngineSettings

FOLDER = Path(__file__).parent.parent / "systemd"
UNIT = FOLDER / "vime-sync@.service"
EXAMPLE = FOLDER / "vime-sync.env.example"
PROGRAM = "/usr/local/bin/vime-sync"

HEAD = """\
# Settings of one instance of vime-sync@.service: copy to /etc/vime-sync/INSTANCE.env, mode 0640, group vime-sync.
#
# One NAME=value a line, quotes round a value with spaces. `systemctl reload` has them read again; a shell can source
# the file too (set -a; . FILE). What is commented out is the default, or an example where there is none.
"""
# What an option's help cannot show: a value as it may look.
EXAMPLES = {
    "VIME_SYNC_LOCAL": "/nvme/ckpt",
    "VIME_SYNC_SHARED": "/mnt/pub",
    "VIME_SYNC_BASE": "/models/qwen3-4b",
    "VIME_SYNC_PRE_READ_HOOK": "site_hooks.refresh",
    "VIME_SYNC_ENGINE": '"vllm=http://127.0.0.1:8000 vllm=http://127.0.0.1:8001"',
    "VIME_SYNC_ENGINE_API_KEY_FILE": "/etc/vime-sync/engine.key",
    "VIME_SYNC_ENGINE_CA_FILE": "/etc/vime-sync/engine-ca.pem",
    "VIME_SYNC_ON_ENGINE_FAILURE": '"systemctl restart vllm.service"',
    "VIME_SYNC_ACK_DIR": "/mnt/acks",
    "VIME_SYNC_HOST_NAME": "rollout-7",
    "VIME_SYNC_HTTP": "127.0.0.1:9178",
}
# Settings that are no options: after which one they stand, and their entry.
BESIDE_OPTIONS = {
    "VIME_SYNC_ENGINE": (
        API_KEY_VARIABLE,
        "The engines' API key.",
        "no option: on a command line every process of the host could read it; no default",
        "sk-example",
    )
}


# ---- the example of the settings


@cache
def options() -> dict[str, Any]:
    """Environment variable -> option, of `watch`, in the order of its help."""
    command = typer.main.get_command(application).commands["watch"]  # type: ignore[attr-defined]
    return {str(option.envvar): option for option in command.params if getattr(option, "envvar", None)}


def _default(option: Any) -> str | None:
    if option.default is None or option.required:
        return None
    if isinstance(option.default, bool):
        return str(int(option.default))
    value = getattr(option.default, "value", option.default)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _entry(name: str, told: str, kind: str, value: str, *, is_required: bool = False) -> str:
    comment = textwrap.fill(told, 112, initial_indent="# ", subsequent_indent="# ")
    return f"{comment}\n# {kind}\n{'' if is_required else '#'}{name}={value}\n"


def make_example() -> str:
    entries = [HEAD]
    for name, option in options().items():
        default = _default(option)
        value = EXAMPLES.get(name, default)
        assert value is not None, f"{name} has no default: EXAMPLES needs a value for it"
        kind = f"{option.opts[0]} {'1|0' if option.is_flag else option.metavar}; "
        kind += "required" if option.required else "no default" if default is None else f"default {default}"
        entries.append(_entry(name, option.help, kind, value, is_required=option.required))
        if name in BESIDE_OPTIONS:
            entries.append(_entry(*BESIDE_OPTIONS[name]))
    return "\n".join(entries)


def example_lines() -> list[str]:
    return EXAMPLE.read_text(encoding="utf-8").splitlines()


def settings_of_example(*, with_commented: bool) -> dict[str, str]:
    """Name -> value as written."""
    pattern = r"#?(VIME_SYNC_\w+)=(.*)" if with_commented else r"(VIME_SYNC_\w+)=(.*)"
    return {found[1]: found[2] for line in example_lines() if (found := re.fullmatch(pattern, line))}


def test_the_example_is_what_the_options_make_of_it() -> None:
    written = EXAMPLE.read_text(encoding="utf-8")
    assert written == make_example(), "write it anew: python -m tests.test_systemd"


def test_every_setting_is_there_once_and_only_what_is_required_is_set() -> None:
    named = [found[1] for line in example_lines() if (found := re.fullmatch(r"#?(\w+)=.*", line))]
    assert sorted(named) == sorted([*options(), API_KEY_VARIABLE])
    required = {name for name, option in options().items() if option.required}
    assert settings_of_example(with_commented=False).keys() == required == {"VIME_SYNC_LOCAL"}


def test_every_option_of_watch_can_be_set() -> None:
    command = typer.main.get_command(application).commands["watch"]  # type: ignore[attr-defined]
    for option in command.params:
        if option.name != "help":
            assert option.envvar == f"VIME_SYNC_{option.opts[0].removeprefix('--').replace('-', '_').upper()}"


def all_set(folder: Path) -> Path:
    """The example with nothing commented out."""
    path = folder / "all.env"
    path.write_text(re.sub(r"^#(?=VIME_SYNC_)", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    return path


def test_the_shell_and_vime_sync_read_the_same(tmp_path: Path) -> None:
    path = all_set(tmp_path)
    script = f"set -eua; . {path}; env"
    shown = subprocess.run(["/bin/sh", "-c", script], env={}, capture_output=True, text=True, check=True).stdout
    sourced = dict(line.split("=", 1) for line in shown.splitlines() if line.startswith("VIME_SYNC_"))
    assert sourced == read_settings(path)
    assert sourced.keys() == {*options(), API_KEY_VARIABLE}


def test_systemd_can_read_it_as_an_environment_file() -> None:
    """systemd.exec(5): comments begin a line, no `export`, nothing is expanded, quotes go round a whole value."""
    for line in example_lines():
        assert not line or line.startswith("#") or re.fullmatch(r"[A-Z_]+=.*", line), line
    for name, value in settings_of_example(with_commented=True).items():
        assert re.fullmatch(r"[^\s\"'\\$`#;]*|\"[^\"\\$`]*\"", value), f"{name}={value}"


def test_what_it_shows_is_what_watch_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults are the real ones, and every example parses."""
    command = typer.main.get_command(application).commands["watch"]  # type: ignore[attr-defined]
    for name in (*options(), API_KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VIME_SYNC_LOCAL", "/nvme/ckpt")
    plain = command.make_context("watch", []).params
    for name, value in read_settings(all_set(tmp_path)).items():
        monkeypatch.setenv(name, value)
    given = command.make_context("watch", []).params
    changed = {f"VIME_SYNC_{name.upper()}" for name in given if given[name] != plain[name]}
    assert changed == EXAMPLES.keys() - {"VIME_SYNC_LOCAL"}
    assert len(engine_specs(given["engine"])) == 2
    assert EngineSettings().timeout_s == given["engine_timeout"]


# ---- the unit


def directives() -> list[tuple[str, str]]:
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    return [(found[1], found[2]) for line in lines if (found := re.fullmatch(r"(\w+)=(.*)", line))]


def directive(name: str) -> str:
    (value,) = [value for other, value in directives() if other == name]
    return value


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on this machine (Debian: package systemd): the unit is NOT VERIFIED")
    return subprocess.run(
        [program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={"LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )


def verify(folder: Path, text: str) -> list[str]:
    """What systemd finds wrong with the unit, were its programs installed."""
    program = folder / "vime-sync"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = folder / UNIT.name
    path.write_text(text.replace(PROGRAM, str(program)).replace("/bin/kill", str(program)))
    run = _analyze("verify", folder / UNIT.name.replace("@", "@test"))
    about_it = [line for line in (run.stdout + run.stderr).splitlines() if "vime-sync" in line]
    assert run.returncode == 0 or about_it, run.stderr
    return about_it


def test_systemd_verifies_the_unit(tmp_path: Path) -> None:
    assert verify(tmp_path, UNIT.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("fault", ["Nonsense=1", "WatchdogSec=soon", "ExecStart=relative/program"])
def test_systemd_would_see_a_fault(tmp_path: Path, fault: str) -> None:
    text = UNIT.read_text(encoding="utf-8").replace("Type=notify\n", f"Type=notify\n{fault}\n")
    assert verify(tmp_path, text)


def test_the_security_score_is_the_one_written_down() -> None:
    said = re.search(r"\(systemd (\d+)\) says: overall exposure level (\d+\.\d) (\w+)\.", UNIT.read_text())
    assert said
    run = _analyze("security", "--no-pager", "--offline=true", UNIT)
    found = re.search(r"Overall exposure level for vime-sync@\S+: (\d+\.\d) (\w+)", run.stdout)
    assert found, run.stdout + run.stderr
    version = re.match(r"systemd (\d+)", _analyze("--version").stdout)
    assert version
    if version[1] == said[1]:
        assert found.groups() == said.groups()[1:]
    else:  # others know more tests, and weigh them otherwise
        assert float(found[1]) == pytest.approx(float(said[2]), abs=1.0)


def test_the_unit_runs_watch_with_the_settings_of_its_instance() -> None:
    assert directive("ExecStart") == f"{PROGRAM} --settings /etc/vime-sync/%i.env watch"
    assert directive("Type") == "notify"
    assert directive("NotifyAccess") == "main"
    assert "HUP $MAINPID" in directive("ExecReload")


def test_the_command_line_of_the_unit_is_one_that_vime_sync_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to the first setting that cannot be so: the file is read, and `watch` is reached."""
    settings = tmp_path / "test.env"
    settings.write_text(f"VIME_SYNC_LOCAL={tmp_path}/local\nVIME_SYNC_HTTP=nowhere\n")
    arguments = directive("ExecStart").replace("/etc/vime-sync/%i.env", str(settings)).split()[1:]
    assert cli.run(arguments) == 2
    assert "--http 'nowhere'" in capsys.readouterr().err


def test_what_an_operator_has_to_mend_is_not_tried_for_ever() -> None:
    """`watch` ends by itself only with these; 21 carries on when there is room again, and is tried again."""
    prevented = {int(code) for code in directive("RestartPreventExitStatus").split()}
    assert prevented == {2, 13, 22, 23}
    assert prevented | {21} <= EXIT_CODES.keys()
    assert directive("Restart") == "on-failure"
    assert float(directive("RestartSec")) >= 5
    # A second TERM or INT.
    assert directive("SuccessExitStatus") == "130 143"


def test_a_stop_is_given_the_time_that_a_reload_may_take() -> None:
    timeout_s = EngineSettings().timeout_s  # once for the end of running requests, once for the load
    assert float(directive("TimeoutStopSec")) > 2 * timeout_s
    assert directive("KillMode") == "mixed"


def test_a_checkpoint_on_a_ram_disk_survives_a_stop() -> None:
    """With RemoveIPC systemd removes what the user owns below /dev/shm."""
    assert directive("RemoveIPC") == "no"


if __name__ == "__main__":
    EXAMPLE.write_text(make_example(), encoding="utf-8")
