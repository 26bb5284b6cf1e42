"""The trainer of a long run: publishes, prunes, and begins anew. The truth about the newest model is kept here."""

import random
import shutil
from pathlib import Path

from tests import toolkit
from tests.soak_truth import Truth
from tests.toolkit import Model


class Trainer:
    """`model` and `file_names` are what every host must hold in the end, `version` under which number."""

    def __init__(self, shared: Path, base: Path, model: Model, truth: Truth, seed: int) -> None:
        self.shared, self._base = shared, base
        self._base_model = self.model = model
        self._truth = truth
        self._dice = random.Random(seed + 1)
        self.file_names = set(toolkit.snapshot(base))
        self.version = 0
        self.streams = 1
        self._newest_anchor = 0

    def publish(self, kind: str) -> None:
        """The next version; each model is another one than all before, in all streams."""
        density = self._dice.choice((0.0005, 0.01, 0.05))
        chosen = None if self._dice.random() < 0.7 else self._dice.sample(sorted(self.model), 4)
        model = toolkit.step(self.model, len(self._truth.names), density, chosen)
        if model == self.model:  # only such as have no bytes were chosen
            model = toolkit.step(self.model, len(self._truth.names), density)
        self.version += 1
        self._truth.add(f"version {self.version} ({kind}) of stream {self.streams}", model)
        if kind == "full":
            directory = toolkit.publish_full(self.shared, self.version, model, shards=self._dice.randint(1, 3))
            self.file_names = set(toolkit.snapshot(directory))
            self._newest_anchor = self.version
        else:
            checksum = self._dice.choice(("xxh3-128", "blake3", "adler32"))
            ranks = self._dice.randint(1, 3)
            toolkit.publish_delta(
                self.shared, self.version, self.model, model, encoding=kind, checksum=checksum, ranks=ranks
            )
        self.model = model

    def prune(self) -> None:
        """What lies below the newest full version is of no use to anybody who begins anew."""
        for version in range(1, self._newest_anchor):
            shutil.rmtree(toolkit.version_path(self.shared, version), ignore_errors=True)

    def begin_anew(self) -> None:
        """Another run: the stream is emptied, and its numbers begin again at 1 over the base."""
        directories = sorted(self.shared.iterdir())
        self._dice.shuffle(directories)
        for directory in directories:
            shutil.rmtree(directory)
        self.streams += 1
        self.version = self._newest_anchor = 0
        self.model = self._base_model
        self.file_names = set(toolkit.snapshot(self._base))
