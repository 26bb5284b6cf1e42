"""What a session needs of one kind of input."""

import random
import time
from pathlib import Path
from types import TracebackType
from typing import ClassVar


class Target:
    """One kind of input. `play` spoils one by a seed and names the outcome; what is not documented it lets pass."""

    # For one seed, on a machine that may be busy.
    seed_s: ClassVar[float] = 60.0

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> "Target":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def play(self, rng: random.Random) -> str:
        raise NotImplementedError


class Broken(Target):
    """A control: raises what nobody documented."""

    def play(self, rng: random.Random) -> str:
        raise KeyError("not documented")


class Slow(Target):
    """A control: never comes to an end."""

    seed_s = 1.0

    def play(self, rng: random.Random) -> str:
        while True:
            time.sleep(0.01)


class Greedy(Target):
    """A control: wants more memory than a session may have."""

    def play(self, rng: random.Random) -> str:
        return str(len(bytearray(8 << 30)))


CONTROLS: dict[str, type[Target]] = {"broken": Broken, "slow": Slow, "greedy": Greedy}
