"""The list of safeguards fits the code: each can be taken out, and the tests that are to miss it exist."""

import shutil
from pathlib import Path

import pytest

from tests.mutation_list import MUTATIONS
from tests.mutation_values import Mutation
from tests.mutations import ROOT, mutate


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_safeguard_is_where_the_list_says(mutation: Mutation, tmp_path: Path) -> None:
    copy = tmp_path / mutation.file
    copy.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / mutation.file, copy)
    mutate(mutation, tmp_path)
    compile(copy.read_text(encoding="utf-8"), mutation.file, "exec")
    for test in mutation.tests.split(" "):
        assert (ROOT / test.partition("::")[0]).is_file(), f"{test} is no test"


def test_no_two_safeguards_have_one_name() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
