"""`vime-sync` in a process of its own, on a machine where no MiniLM is installed: `python -m tests.demo_process`."""

import importlib.util
import sys

from vime_sync.cli import main
from vime_sync.demo import minilm

_find_spec = importlib.util.find_spec


def hide_minilm() -> None:
    """The test environment has it, and it takes ten times as long as the made model."""
    importlib.util.find_spec = lambda name, package=None: None if name == minilm.PACKAGE else _find_spec(name, package)


if __name__ == "__main__":
    hide_minilm()
    sys.argv[0] = "vime-sync"
    main()
