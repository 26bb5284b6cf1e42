"""Writes the hostile files beside this module, and their README: `python -m tests.hostile.make`.

Deterministic; `tests/test_hostile_files.py` holds what is checked in against it.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.hostile import cases_frames, cases_headers, cases_indexes
from tests.hostile.parts import Case, Link, checkpoint, delta

HERE = Path(__file__).parent
FILES, README = HERE / "files", HERE / "README.md"
LINKS = "LINKS"
CASES: tuple[Case, ...] = (*cases_headers.CASES, *cases_indexes.CASES, *cases_frames.CASES)

_INTRODUCTION = """\
# Hostile files

Small published versions, each with one thing wrong, or one that only looks wrong. Each directory of `files/` is what
lies in `weight_v000002` of a stream; `base` is version 0 (the engine's model directory) and `first` a right
`weight_v000001` over it. A file `LINKS` in such a directory holds one symlink a line, as `name -> target`: they are
made when the version is laid out, so that no tool which follows links stumbles over this collection.

`inspect` is the exit code that `vime-sync inspect weight_v000002` must end with, `pull` that of `vime-sync pull` to
version 2, on a host at version 1 and on a fresh one, and `id` names the pull's error. Nothing may have been written to
a checkpoint before the refusal, but where `late` says so: that shows only while a payload passes by, and LOCAL is then
whole at version 1 again. `inspect` decodes nothing, and knows no local checkpoint: what lies inside a frame or does not
fit this host it does not see. Never may there be a traceback, a hang, or memory that grows with what a file claims:
`tests/test_hostile_files.py` runs all of them under a limit on address space and on time.

All of this is written by `python -m tests.hostile.make`.
"""
_GROUPS = {
    "header": "Headers of safetensors files",
    "tensor": "Tensors",
    "index": "Indexes",
    "path": "Paths",
    "full": "Full versions",
    "frame": "Frames",
    "cut": "Frames cut short",
    "bomb": "Bombs",
    "count": "Counts of an overwrite",
    "position": "Positions of an overwrite",
}


def collection() -> dict[str, bytes]:
    """Every file of the collection: path below this directory -> bytes."""
    found = {"README.md": readme().encode()}
    versions: dict[str, Mapping[str, bytes | Link]] = {"base": checkpoint(0), "first": delta(1)}
    versions.update((case.name, case.files) for case in CASES)
    for name, files in versions.items():
        found.update(_stored(f"files/{name}", files))
    return found


def _stored(place: str, files: Mapping[str, bytes | Link]) -> dict[str, bytes]:
    links = [f"{name} -> {link.target}\n" for name, link in files.items() if isinstance(link, Link)]
    stored = {f"{place}/{name}": content for name, content in files.items() if isinstance(content, bytes)}
    return {**stored, f"{place}/{LINKS}": "".join(links).encode()} if links else stored


def readme() -> str:
    parts = [_INTRODUCTION]
    for group, title in _GROUPS.items():
        rows = [case for case in CASES if case.name.partition("-")[0] == group]
        parts.append(f"\n## {title}\n\n| files | what it tries | inspect | pull | id | |\n|---|---|---|---|---|---|\n")
        parts += [_row(case) for case in rows]
    return "".join(parts)


def _row(case: Case) -> str:
    error, late = f"`{case.id}`" if case.id else "", "late" if case.found_late else ""
    return f"| `{case.name}` | {case.tries} | {case.inspect_code} | {case.pull} | {error} | {late} |\n"


def lay_out(name: str, directory: Path) -> None:
    """Copy one version of the collection, as it is checked in, and make its links."""
    shutil.copytree(FILES / name, directory)
    links = directory / LINKS
    if links.exists():
        for line in links.read_text(encoding="utf-8").splitlines():
            link, _, target = line.partition(" -> ")
            (directory / link).symlink_to(target)
        links.unlink()


def main() -> None:
    shutil.rmtree(FILES, ignore_errors=True)
    for name, content in collection().items():
        path = HERE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
