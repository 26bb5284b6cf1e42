"""The shape of the code: who may import whom, who may touch files, who may speak, what an error carries.

The arrows are those of docs/DESIGN.md. They are read from the source, so a function that imports late is seen too.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from vime_sync import errors
from vime_sync.cli.application import EXIT_CODES
from vime_sync.format.frame import MAX_WINDOW_BYTES
from vime_sync.local.journal import BLOCK_BYTES
from vime_sync.local.room import SPARE_BYTES
from vime_sync.plan import MAX_DELTAS_IN_PLACE, MAX_DELTAS_IN_SEED

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "vime_sync"
DESIGN = (PACKAGE / "docs" / "DESIGN.md").read_text(encoding="utf-8")
MAX_LINES = 300

# Part of the package -> the other parts that it may import.
VALUES = {"model", "errors"}
BELOW_LOCAL = {"fsio", "format", "checkpoint", *VALUES}
BELOW_RECONCILE = {"plan", "materialize", "local", "stream", *BELOW_LOCAL}
RECONCILE_AND_BELOW = {"reconcile", "engines", *BELOW_RECONCILE}
ARROWS: dict[str, set[str]] = {
    "": set(),  # the package itself: its version, which all may know
    "model": set(),
    "errors": set(),
    "format": {"model"},
    "fsio": {"model"},
    "checkpoint": {"fsio", "format", "model"},
    "local": BELOW_LOCAL,
    "stream": BELOW_LOCAL,
    "plan": VALUES,
    "materialize": {"local", "stream", *BELOW_LOCAL},
    "engines": VALUES,
    "acks": {"stream", *BELOW_LOCAL},
    "pruning": {"acks", "stream", *BELOW_LOCAL},
    "reconcile": {"engines", *BELOW_RECONCILE},
    "status": RECONCILE_AND_BELOW,
    "inspection": RECONCILE_AND_BELOW,
    "publish": RECONCILE_AND_BELOW,
    "vllm_extension": RECONCILE_AND_BELOW,
    "daemon": {"acks", "status", *RECONCILE_AND_BELOW},
    "demo": {"publish", *RECONCILE_AND_BELOW},
    "cli": {"daemon", "acks", "pruning", "status", "inspection", "publish", "demo", *RECONCILE_AND_BELOW},
    "__main__": {"cli"},
}

# What changes files or names, as called on `os`, or as a method of a path or a file.
OS_CHANGES = {
    "chmod", "chown", "copy_file_range", "fdatasync", "fsync", "ftruncate", "lchown", "link", "makedirs", "mkdir",
    "mkfifo", "mknod", "open", "posix_fallocate", "pwrite", "pwritev", "remove", "removedirs", "removexattr", "rename",
    "renames", "replace", "rmdir", "sendfile", "setxattr", "symlink", "sync", "truncate", "unlink", "utime", "write",
    "writev",
}  # fmt: skip
PATH_CHANGES = {
    "chmod", "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip
FILE_MODULES = {"shutil", "tempfile", "mmap", "fileinput"}
# The peers open the lock file for writing, and so do we; nothing is ever written to it.
OPENS_FOR_WRITING = {("local/lock.py", "ab")}


def _modules(directory: Path = PACKAGE) -> list[Path]:
    return sorted(directory.rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(_tree(path))


def _dotted(path: Path) -> str:
    """`vime_sync/local/state.py` -> `local.state`; a package is its directory."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def _part(dotted: str) -> str:
    return dotted.partition(".")[0]


KNOWN = {_dotted(path) for path in _modules()}


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name within the package of all that a module imports of it."""
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == PACKAGE.name:
                    yield node.lineno, alias.name.partition(".")[2]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno} imports by a relative name"
            package, _, module = (node.module or "").partition(".")
            if package == PACKAGE.name:
                for alias in node.names:
                    submodule = f"{module}.{alias.name}".lstrip(".")
                    yield node.lineno, submodule if submodule in KNOWN else module


def _others_imported(path: Path) -> set[str]:
    """Top names of the modules from elsewhere that a module imports."""
    found: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


# ---- arrows


def test_every_part_of_the_package_has_its_arrows() -> None:
    assert {_part(dotted) for dotted in KNOWN} == ARROWS.keys()


def test_the_design_document_draws_these_arrows() -> None:
    told: dict[str, set[str]] = {}
    section = DESIGN.split("\n## 4. Parts\n", 1)[1].split("\n## ", 1)[0]
    for parts, arrows in re.findall(r"^\| (`.*?`) \| (.*) \|$", section, re.MULTILINE):
        named = set(re.findall(r"`(\w+)`", arrows))
        if arrows.endswith("and what these may"):
            named = named.union(*(told[part] for part in named))
        elif arrows.startswith("all above"):
            named = set(told) - set(re.findall(r"`(\w+)`", arrows))
        told.update(dict.fromkeys(re.findall(r"`(\w+)`", parts), named))
    assert told == {part: arrows for part, arrows in ARROWS.items() if part and not part.startswith("_")}


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_imports_follow_the_arrows(path: Path) -> None:
    part = _part(_dotted(path))
    for line, dotted in _imports(path):
        imported = _part(dotted)
        assert imported in {part, ""} or imported in ARROWS[part], f"{_name(path)}:{line}: {part} -> {imported}"


def test_no_module_imports_itself_round_a_corner() -> None:
    """Within a part modules import one another, but never in a circle, and never late to get round one."""
    imported = {_dotted(path): {dotted for _, dotted in _imports(path)} for path in _modules()}
    left = dict(imported)
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"in or behind a circle: {sorted(left)}"
    for path in _modules():
        top = {node.lineno for node in _tree(path).body if isinstance(node, (ast.Import, ast.ImportFrom))}
        late = [line for line, _ in _imports(path) if line not in top]
        assert not late, f"{_name(path)} imports late in lines {late}"


# ---- files


def _file_changes(path: Path) -> Iterator[str]:
    """What a module does to files by itself, as `line: what`."""
    for node in _nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module in {"os", *FILE_MODULES}:
            yield f"{node.lineno}: from {node.module} import"
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open":
            yield from _opening(path, node, place=1)
        if not isinstance(function, ast.Attribute):
            continue
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        if owner == "os":
            if function.attr in OS_CHANGES:
                yield f"{node.lineno}: os.{function.attr}"
        elif owner != "fsio":
            # A text's replace takes two arguments, a path's one.
            renames = function.attr == "replace" and len(node.args) == 1 and not node.keywords
            if renames or function.attr in PATH_CHANGES:
                yield f"{node.lineno}: {ast.unparse(function)}"
            if function.attr == "open":
                yield from _opening(path, node, place=0)


def _opening(path: Path, call: ast.Call, place: int) -> Iterator[str]:
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] or call.args[place : place + 1]
    mode = ast.literal_eval(modes[0]) if modes and isinstance(modes[0], ast.Constant) else None if modes else "r"
    if (mode is None or set("wax+") & set(mode)) and (_name(path), mode) not in OPENS_FOR_WRITING:
        yield f"{call.lineno}: open with mode {mode!r}"


@pytest.mark.parametrize("path", [path for path in _modules() if _name(path) != "fsio.py"], ids=_name)
def test_only_fsio_changes_files(path: Path) -> None:
    assert not FILE_MODULES & _others_imported(path)
    assert list(_file_changes(path)) == []


def test_what_changes_files_would_be_seen() -> None:
    """The checks above see all that fsio does."""
    seen = {change.partition(": ")[2] for change in _file_changes(PACKAGE / "fsio.py")}
    assert {"os.open", "os.pwrite", "os.ftruncate", "os.fsync", "source.replace", "path.unlink", "folder.mkdir"} <= seen
    assert "shutil" in _others_imported(PACKAGE / "fsio.py")


# ---- speaking


@pytest.mark.parametrize("path", [path for path in _modules() if _part(_dotted(path)) != "cli"], ids=_name)
def test_only_the_command_line_prints_exits_and_takes_signals(path: Path) -> None:
    assert not {"signal", "logging", "typer", "rich", "argparse"} & _others_imported(path)
    for node in _nodes(path):
        where = f"{_name(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Name):
            assert node.id not in {"print", "input", "exit", "quit", "SystemExit", "KeyboardInterrupt"}, where
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in {"sys.exit", "sys.stdout", "sys.stderr", "os._exit", "os.abort"}, where


# ---- clocks

# The wall clock is for messages: since when a lock is held, when a line was logged.
TELLS_THE_TIME = {"local/lock.py", "cli/output.py"}


@pytest.mark.parametrize("path", [path for path in _modules() if _name(path) not in TELLS_THE_TIME], ids=_name)
def test_h17_nothing_is_decided_by_the_wall_clock(path: Path) -> None:
    for node in _nodes(path):
        if isinstance(node, ast.Attribute):
            told = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.now", "datetime.utcnow"}
            assert ast.unparse(node) not in told, f"{_name(path)}:{node.lineno}"
    assert "datetime" not in _others_imported(path)


# ---- modules


@pytest.mark.parametrize("directory", ["vime_sync", "tests", "scripts"])
def test_no_module_is_long(directory: str) -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in _modules(ROOT / directory)}
    assert {str(path): length for path, length in lengths.items() if length > MAX_LINES} == {}


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(_tree(path))


def test_the_design_document_tells_the_limits_of_the_code() -> None:
    for told in (
        f"At most {MAX_DELTAS_IN_PLACE} deltas are folded into one pass in place**, {MAX_DELTAS_IN_SEED} into a seed",
        f"blocks of {BLOCK_BYTES >> 20} MiB",
        f"what is staged plus {SPARE_BYTES >> 20} MiB",
        f"(a window of at most {MAX_WINDOW_BYTES >> 20} MiB)",
    ):
        assert told in DESIGN


# ---- errors


def _error_classes() -> list[type[errors.SyncError]]:
    members = [item for item in vars(errors).values() if isinstance(item, type)]
    return [item for item in members if issubclass(item, errors.SyncError)]


def test_every_error_has_an_exit_code_of_the_table_and_every_code_an_error() -> None:
    codes = {item.code for item in _error_classes()}
    assert codes == EXIT_CODES.keys() - {0, 3}  # done; `status --check` found a host behind
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Exit codes\n", 1)[1]
    table = re.findall(r"^\| (\d+) \| (.*?) \|", readme, re.MULTILINE)
    assert {int(code): meaning for code, meaning in table} == EXIT_CODES


def test_every_error_can_be_told_from_the_others() -> None:
    """A class without an id of its own is of its parent's kind for programs: only the code may then not differ."""
    own = [vars(item)["id"] for item in _error_classes() if "id" in vars(item)]
    assert [name for name, count in Counter(own).items() if count > 1] == []
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in own)
    for item in _error_classes():
        parent = item.__bases__[0]
        if "id" not in vars(item) and issubclass(parent, errors.SyncError):
            assert item.code == parent.code, item
        assert item.__doc__ or "hint" in vars(item), f"{item.__name__} does not say what to do"
