"""One host whose model is real enough for a real engine, and its trainer."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests import toolkit
from tests.host import Host
from tests.real_vllm.tiny_model import tiny_files, tiny_qwen3, train
from tests.toolkit import Model

_SHARDS = 3


class TinyHost(Host):
    """As Host, but each step is one after which the model still answers, and otherwise than before."""

    @classmethod
    def begin(cls, root: Path, seed: int = 0) -> "TinyHost":
        """A base that an engine can be started on, and an empty share; LOCAL does not exist yet."""
        host = cls(root, {0: tiny_qwen3(seed)})
        toolkit.write_checkpoint(host.base, host.models[0], shards=_SHARDS, extra_files=tiny_files())
        host.shared.mkdir(parents=True)
        return host

    @property
    def newest(self) -> int:
        return max(self.models)

    def publish(self, *, encoding: str = "xor", only: Iterable[str] | None = None, density: float = 0.2) -> Path:
        version = self.newest + 1
        model = train(self.models[version - 1], version, share=density, only=only)
        return self.publish_model(model, encoding=encoding)

    def publish_model(self, model: Model, *, encoding: str = "xor") -> Path:
        """Exactly these weights as the next delta."""
        version = self.newest + 1
        before, self.models[version] = self.models[version - 1], model
        return toolkit.publish_delta(self.shared, version, before, model, encoding=encoding, ranks=2)

    def publish_full(
        self,
        version: int | None = None,
        *,
        shards: int = 2,
        extra_files: Mapping[str, bytes] | None = None,
    ) -> Path:
        number = self.newest + 1 if version is None else version
        self.models[number] = train(self.models[max(self.models)], number + 100)
        files = tiny_files() if extra_files is None else extra_files
        return toolkit.publish_full(self.shared, number, self.models[number], shards=shards, extra_files=files)
