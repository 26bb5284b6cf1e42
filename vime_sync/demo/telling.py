"""What the demo tells: to a listener while it goes on, and as values at its end. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Proof:
    """A claim that was checked. `detail` is what was found."""

    claim: str
    held: bool
    detail: str


@dataclass(frozen=True)
class Step:
    """One step of the story. `version` is what the engine served at its end; `seconds` how long it took until then."""

    title: str
    happened: str
    version: int | None
    seconds: float
    proofs: tuple[Proof, ...]

    @property
    def held(self) -> bool:
        return all(proof.held for proof in self.proofs)


class Listener(Protocol):
    """Hears what goes on. Called from one thread only."""

    def heading(self, title: str) -> None: ...

    def say(self, who: str, text: str) -> None:
        """`who` is the trainer, the daemon, the engine, or the demo itself."""

    def proof(self, proof: Proof) -> None: ...


def human_size(size_bytes: float) -> str:
    for unit in ("B", "kB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} MB"
