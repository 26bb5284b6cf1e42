"""The batch script of vime_sync/docs/DEPLOY.md runs: with `srun`, `scancel`, `sleep` and `vllm` of the test's own."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

from tests import toolkit
from tests.daemon_story import SAFETY_S
from tests.deploy_story import ROOT, Place, blocks, clean_environment, program, python_program

# What the script gives to Slurm, and may: options of sbatch, srun and scancel.
SBATCH_OPTIONS = {"--job-name", "--nodes", "--ntasks-per-node", "--gpus-per-node", "--exclusive", "--time", "--signal"}
SRUN_OPTIONS = {"--overlap", "--ntasks-per-node", "--cpus-per-task", "--gpus-per-node"}
(SCRIPT,) = [block for block in blocks("bash") if block.startswith("#!/bin/bash\n#SBATCH")]


def test_the_batch_script_is_one_for_bash_and_for_slurm() -> None:
    assert subprocess.run(["bash", "-n"], input=SCRIPT, text=True, check=False).returncode == 0
    head, _, body = SCRIPT.partition("set -euo pipefail\n")
    assert set(re.findall(r"^#SBATCH (--[\w-]+)", head, re.MULTILINE)) <= SBATCH_OPTIONS
    steps = re.findall(r'^srun (.*?) bash -c "\$keep"', body, re.MULTILINE)
    assert len(steps) == 2
    for step in steps:
        assert {word.partition("=")[0] for word in step.split()} <= SRUN_OPTIONS
        assert "--overlap" in step.split()  # else the second step waits for the first to end
    (named,) = re.findall(r"--worker-extension-cls ([\w.]+)", SCRIPT)
    assert named in (ROOT / "README.md").read_text(encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Job:
    """The script as a job of one node. A step is a session, known to `scancel` by its first process."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._programs, self._steps = place.root / "programs", place.root / "steps"
        self._steps.mkdir()
        self._make_programs()
        script = place.root / "job.sh"
        script.write_text(place.here(SCRIPT, engine_port=_free_port()), encoding="utf-8")
        self.log = place.root / "job.log"
        with self.log.open("w", encoding="utf-8") as log:
            environment = clean_environment(self._programs, SLURM_JOB_ID="77")
            self.process = subprocess.Popen(
                ["bash", script], env=environment, cwd=place.root, stdout=log, stderr=log, start_new_session=True
            )

    def _make_programs(self) -> None:
        no_options = 'while [ "${1#--}" != "$1" ]; do shift; done'
        program(self._programs, "srun", f'#!/bin/sh\n{no_options}\ntouch "{self._steps}/$$"\nexec setsid "$@"\n')
        each_step = f'for step in "{self._steps}"/*; do kill -TERM "-${{step##*/}}"; done'
        program(self._programs, "scancel", f'#!/bin/sh\n[ "$*" = "--signal=TERM 77" ] || exit 2\n{each_step}\n')
        program(self._programs, "sleep", "#!/bin/sh\nexec /bin/sleep 0.2\n")  # not ten seconds
        python_program(self._programs, "vime-sync", "-m vime_sync")
        # vllm serve MODEL --host ADDRESS --port PORT ...
        python_program(self._programs, "fake-vllm", "-m tests.fake_vllm")
        program(
            self._programs,
            "vllm",
            '#!/bin/sh\n[ "$VLLM_SERVER_DEV_MODE$5" = 1--port ] || exit 2\nexec fake-vllm --model "$2" --port "$6"\n',
        )

    def wait_until_served(self, version: int) -> None:
        """By all hosts of the job, as the document says to ask."""
        (line,) = [line for line in blocks("sh") if line.startswith("vime-sync wait ")]
        words = shlex.split(self.place.here(line, engine_port=0))[1:]
        replaced = {"latest": str(version), "2": "1", "3600": str(SAFETY_S)}  # one node
        result = toolkit.vime(*[replaced.get(word, word) for word in words])
        assert result.code == 0, result.stderr + self.log.read_text(encoding="utf-8")

    def find(self, *words: str) -> list[int]:
        """The processes of its steps whose command line holds all these words."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                session = os.getsid(int(entry.name))
                command = (entry / "cmdline").read_bytes().decode().split("\0")
                if (self._steps / str(session)).exists() and all(word in command for word in words):
                    found.append(int(entry.name))
        return found

    def close(self) -> None:
        for step in self._steps.iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(step.name), signal.SIGKILL)
        self.process.kill()
        self.process.wait(SAFETY_S)


def test_the_batch_script_runs_engine_and_daemon_until_its_time_is_over(tmp_path: Path) -> None:
    """Killed, each comes back and is brought up to date; TERM ends the job, and nothing of it is left."""
    place = Place(tmp_path)
    job = Job(place)
    try:
        job.wait_until_served(2)
        for version, words in ((3, ("vime_sync", "watch")), (4, ("tests.fake_vllm",))):
            (killed,) = job.find(*words)
            os.kill(killed, signal.SIGKILL)
            place.host.publish()
            job.wait_until_served(version)
            assert killed not in job.find(*words)
        job.process.send_signal(signal.SIGTERM)
        assert job.process.wait(SAFETY_S) == 0, job.log.read_text(encoding="utf-8")
        assert job.find() == []
        assert "stopped by SIGTERM at a safe point" in job.log.read_text(encoding="utf-8")
        place.host.expect_local(4)
    finally:
        job.close()
