"""`pull` over published versions with one spoilt file."""

import json
import random
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests import toolkit
from tests.hostile import parts
from tests.hostile.mutation import spoil
from tests.hostile.target import Target
from tests.hostile.targets import lay

_REFUSALS = (10, 11, 12, 13)


class PullTarget(Target):
    """A pull is refused and the host still is at version 1, or it is taken and all is as the spoilt version says."""

    _VERSIONS: ClassVar[list[Mapping[str, Any]]] = [
        parts.delta(),
        parts.delta(encoding="overwrite"),
        parts.checkpoint(2),
    ]

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._share, self._base, self._local = directory / "share", directory / "base", directory / "local"
        lay(self._base, parts.checkpoint(0))
        lay(self._share / "weight_v000001", parts.delta(1))
        self._bring()

    def _bring(self) -> None:
        shutil.rmtree(self._local, ignore_errors=True)
        assert self._pull(1).code == 0

    def _pull(self, version: int) -> toolkit.Result:
        return toolkit.pull(self._share, self._local, "--threads", "1", base=self._base, version=version)

    def play(self, rng: random.Random) -> str:
        right = rng.choice(self._VERSIONS)
        victim = rng.choice([name for name in right if name != "config.json"])
        place = self._share / "weight_v000002"
        lay(place, {**right, victim: spoil(rng, right[victim], list(right.values()))})
        result = self._pull(2)
        assert "Traceback" not in result.stderr, result.stderr
        if result.code in _REFUSALS and self._held(self._local) == parts.contents(1):
            return str(result.error["id"])
        try:
            assert result.code == 0, f"not at version 1 any more: {result.stderr}"
            self._expect_as_told(place)
        finally:
            self._bring()
        return "taken"

    def _held(self, directory: Path) -> dict[str, bytes]:
        return {name: tensor.data for name, tensor in toolkit.read_checkpoint(directory).items()}

    def _expect_as_told(self, place: Path) -> None:
        """Every tensor of LOCAL has the digest that the version states, or the old bytes where it states none."""
        index = json.loads((place / parts.INDEX).read_bytes())
        if "delta_encoding" not in index.get("metadata", {}):
            assert self._held(self._local) == self._held(place)
            return
        raw = (place / parts.SHARD).read_bytes()
        told = json.loads(raw[8 : 8 + struct.unpack_from("<Q", raw)[0]]).get("__metadata__", {})
        for name, data in self._held(self._local).items():
            checksum = index["metadata"]["checksum_format"]
            assert toolkit.digest(data, checksum) == told.get(name, toolkit.digest(parts.contents(1)[name], checksum))


COMMANDS: dict[str, type[Target]] = {"pull": PullTarget}
