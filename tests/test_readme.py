"""The README and the format document say what is so: commands are run, records and scripts are there.

`python -m tests.test_readme` runs the README's commands on a stream of the demo's size and writes what they print now.
Its tables are in `test_readme_tables.py`.
"""

import ast
import json
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import toolkit
from tests.fake_webhook import FakeWebhook
from tests.host import Host
from tests.readme_examples import INSTALL, PLACES, README, ROOT, Session, examples
from tests.readme_model import Size
from tests.readme_tables import table
from vime_sync.local.paths import LocalPaths

FORMAT = (ROOT / "vime_sync" / "docs" / "FORMAT.md").read_text(encoding="utf-8")

# The layout of the demo's model with all its tensors, in a hundredth of its size.
SMALL = Size(vocabulary=500, hidden=64, intermediate=128, heads=1, key_value_heads=1)
WEBHOOK_BLOCK = re.compile(r"(?<=\n## With anything else\n)(.*?^```json\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)


# ---- commands


def _shape(text: str) -> str:
    """What must not differ between the README's run and this one: all but sizes, times and digests."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "MOMENT", text)
    text = re.sub(r"\d+(\.\d+)? (B|kB|MB|GB|TB)\b", "SIZE", text)
    text = re.sub(r"\d+\.\d+(%| bytes\b)", "RATIO", text)
    text = re.sub(r"\b\d+ (s|min|h|d) ago\b", "AGE", text)
    text = re.sub(r"\d+\.\d+ s\b", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{32,}\b", "DIGEST", text)
    text = re.sub(r"(?<!port )(?<!:)\b\d{4,}\b", "NUMBER", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def _json_shape(document: Mapping[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in document.items()}


def test_every_command_runs_and_prints_what_the_readme_says(tmp_path: Path) -> None:
    ran = set()
    with Session(tmp_path, SMALL) as session:
        for example in examples():
            if not example.can_run:
                continue
            output = session.run(example)
            ran.update(re.findall(r"^vime-sync (\w+)", example.commands, re.MULTILINE))
            if example.language == "json":
                told, found = json.loads(example.output), json.loads(output)
                missing = _json_shape(told).items() - _json_shape(found).items()
                assert not missing, f"{example.commands}the README shows what is not printed: {missing}"
            else:
                assert _shape(output) == _shape(example.output), example.commands
    assert ran == {"pull", "watch", "reload", "wait", "status", "verify", "inspect", "publish", "prune"}


def test_the_webhooks_document_is_the_one_that_is_posted(tmp_path: Path) -> None:
    host = Host.create(tmp_path)
    host.publish()
    with FakeWebhook() as webhook:
        host.pulled("--engine", f"webhook={webhook.url}/reload")
    (posted,) = webhook.documents
    block = WEBHOOK_BLOCK.search(README)
    assert block
    told = json.loads(block[2])
    assert _json_shape(told) == _json_shape(posted)
    assert (told["schema"], len(told["lineage"])) == (posted["schema"], len(posted["lineage"]))
    assert (posted["path"], told["path"]) == (str(host.local), "/nvme/ckpt")


def test_the_scripts_of_the_quick_start_are_there_and_explain_themselves() -> None:
    scripts = re.findall(r"^\./(scripts/[\w-]+)$", README, re.MULTILINE)
    assert scripts[:2] == ["scripts/demo", "scripts/test"]
    for name in [*scripts, ".ci/run"]:
        path = ROOT / name
        assert path.stat().st_mode & stat.S_IXUSR, f"{name} cannot be run"
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    for name in scripts:
        told = subprocess.run([ROOT / name, "--help"], check=True, capture_output=True, text=True).stdout
        assert told.startswith(f"Usage: {name}")


def test_what_is_installed_brings_the_command() -> None:
    assert INSTALL in README
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^name = "vime-sync"$', project, re.MULTILINE)
    assert re.search(r'^vime-sync = "vime_sync\.cli:main"$', project, re.MULTILINE)


def test_what_the_package_imports_is_declared() -> None:
    """What comes along with another dependency today may not tomorrow."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("\ndependencies = [\n", 1)[1].split("]", 1)[0]
    declared = {name.replace("-", "_") for name in re.findall(r'^ +"([\w-]+)>=[\d.]+",$', project, re.MULTILINE)}
    imported: set[str] = set()
    for path in (ROOT / "vime_sync").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    assert imported - sys.stdlib_module_names - {"vime_sync"} <= declared


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", README)
    headings = {f"#{heading.lower().replace(' ', '-')}" for heading in re.findall(r"^## (.*)$", README, re.MULTILINE)}
    assert targets
    for target in targets:
        assert target in headings if target.startswith("#") else (ROOT / target).exists(), target


def test_a_class_that_is_named_is_there() -> None:
    """Of the worker extension: read, not imported."""
    (named,) = set(re.findall(r"--worker-extension-cls ([\w.]+)", README))
    module, _, name = named.rpartition(".")
    source = (ROOT / module.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    methods = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    assert "pull_weights" in methods and "`pull_weights`" in README


# ---- the format document


def test_the_format_document_names_every_record_on_the_host(tmp_path: Path) -> None:
    paths = LocalPaths(tmp_path)
    names = [name for name, member in vars(LocalPaths).items() if isinstance(member, property) and name != "sync"]
    told = {row[0].strip("`").rstrip("/") for row in table(FORMAT, "## 7. Records on the host")}
    assert {getattr(paths, name).name for name in names} <= told


def test_the_format_document_names_every_key_of_the_state(tmp_path: Path) -> None:
    model = toolkit.make_model(kib=4)
    toolkit.write_checkpoint(tmp_path / "base", model)
    toolkit.publish_delta(tmp_path / "share", 1, model, toolkit.step(model, 1))
    assert toolkit.pull(tmp_path / "share", tmp_path / "local", base=tmp_path / "base").code == 0
    state = json.loads((tmp_path / "local" / ".weight_sync" / "state.json").read_text(encoding="utf-8"))
    told = {
        key for row in table(FORMAT, "## 8. What is committed: `state.json` and the digest tables")
        for key in re.findall(r"`(\w+)`", row[0])
    }  # fmt: skip
    assert state.keys() == {"version", "vime_sync"}
    assert state["vime_sync"].keys() == told


# ---- writing it anew


def _write_outputs() -> None:
    """Bring the outputs shown in the README up to date."""
    text = README
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with Session(root, Size()) as session:
            for example in examples():
                if example.can_run:
                    output = session.run(example)
                    shown = f"{example.commands}```\n\n```{example.language}\n"
                    text = text.replace(f"{shown}{example.output}```", f"{shown}{output}```")
        with FakeWebhook() as webhook:
            local = root / PLACES["/nvme/ckpt"]
            told = toolkit.vime("reload", "--local", local, "--engine", f"webhook={webhook.url}")
            assert told.code == 0, told.stderr
        document = json.dumps({**webhook.documents[0], "path": "/nvme/ckpt"})
        text = WEBHOOK_BLOCK.sub(lambda block: f"{block[1]}{document}\n", text)
    (ROOT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write_outputs()
