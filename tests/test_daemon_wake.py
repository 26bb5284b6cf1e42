"""The pipe that wakes the loop."""

import os
import resource

from vime_sync.daemon.wake import Wake

# What select() can take; a pass may hold more shards open than that.
SELECT_LIMIT = 1024


def test_a_poke_before_the_wait_counts_and_counts_once() -> None:
    wake = Wake()
    try:
        wake.poke()
        wake.poke()
        assert wake.wait(60)
        assert not wake.wait(0)
    finally:
        wake.close()


def test_it_wakes_also_where_thousands_of_files_are_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > SELECT_LIMIT + 64, "this machine allows too few open files for this test"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, SELECT_LIMIT + 64), hard))
    held: list[int] = []
    try:
        while not held or held[-1] < SELECT_LIMIT:
            held.append(os.open("/dev/null", os.O_RDONLY))
        wake = Wake()
        wake.poke()
        assert wake.wait(60)
        wake.close()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
