"""FIELD_GUIDE H18: engines on the same host come first, for cores and for the disk."""

import os
import re
from pathlib import Path

import pytest

from vime_sync.materialize.context import default_threads

UNIT = (Path(__file__).parent.parent / "systemd" / "vime-sync@.service").read_text(encoding="utf-8")


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (16, 16), (192, 16)])
def test_h18_threads_are_capped_on_a_large_host(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert default_threads() == threads


def test_h18_the_unit_steps_back_behind_engines() -> None:
    found = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
    assert int(found["Nice"]) > 0
    assert (found["IOSchedulingClass"], found["IOSchedulingPriority"]) == ("best-effort", "7")
    default_weight = 100
    assert int(found["CPUWeight"]) < default_weight and int(found["IOWeight"]) < default_weight
