"""The demo with a real vLLM: what it answers after each step is what numpy computes from the trainer's weights."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.real_vllm.process_group import PATIENCE_S
from tests.real_vllm.server import PYTHON_VARIABLE


def test_the_demo_holds_with_a_real_vllm() -> None:
    programs = Path(os.environ[PYTHON_VARIABLE]).parent
    scratch = tempfile.mkdtemp(prefix="demo-")  # short: vLLM has sockets below it
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "vime_sync", "demo", "--vllm", "--json"],
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": scratch},
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        document = json.loads(ended.stdout)
        assert (document["result"], document["engine"], len(document["steps"])) == ("passed", "vllm", 9)
        assert not list(Path(scratch).glob("vime-sync-demo-*"))
    finally:
        shutil.rmtree(scratch)
