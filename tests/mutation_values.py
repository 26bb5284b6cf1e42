"""A safeguard of the package, and how it is taken out: the value that `mutation_list` is made of."""

from dataclasses import dataclass

LOCAL, MATERIALIZE, RECONCILE = "vime_sync/local/", "vime_sync/materialize/", "vime_sync/reconcile/"
_MODEL = "tests/test_power_model.py"


@dataclass(frozen=True)
class Mutation:
    """In `file` the text `old`, which stands there once, becomes `new`.

    `tests` are pytest arguments without spaces in them: the first of them that fails is enough.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


def model(*jobs: str, when: str = "behind") -> str:
    """The sweep of the power-loss model over these jobs."""
    return " ".join(
        f"{_MODEL}::test_h03_power_lost_at_every_sync_boundary_and_at_random_points[{job}-{when}]" for job in jobs
    )
