"""Weights of the fake engines: really read from safetensors files, tensor by tensor, as real engines read them.

The `safetensors` library opens and judges every file; a tensor's bytes are read when its turn comes, from the
file as it then is. So a file that is patched in the meantime tears, and one that is renamed over does not. (The
library's own map of a truncated file would kill the process; here the load fails.) What was loaded is kept as
digests. Nothing of the package under test takes part.
"""

import hashlib
import json
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors

from tests.toolkit import INDEX_NAME, Model

WRONG_SHAPE = "start (0) + length (256) exceeds dimension size (128)."
_FLOATS = {"BF16": ("<u2", 0x7F80, 0x7F), "F16": ("<u2", 0x7C00, 0x3FF), "F32": ("<u4", 0x7F800000, 0x7FFFFF)}


@dataclass(frozen=True)
class ReadTensor:
    """One tensor as it was read."""

    name: str
    shape: tuple[int, ...]
    digest: str
    nan: bool


@dataclass
class Loaded:
    """What one rank holds: the directory of the last load, and each tensor's digest with the directory it is from."""

    path: str = ""
    tensors: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def tensor_digest(data: bytes) -> str:
    """The digest by which loaded tensors are known."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def model_digests(model: Model) -> dict[str, str]:
    """What `Loaded.tensors` must be after a load of that model."""
    return {name: tensor_digest(tensor.data) for name, tensor in model.items()}


def all_nan(dtype: str, data: bytes) -> bool:
    """Two or more numbers, all of them NaN. (The random bytes of most test models hold one here and there.)"""
    if dtype not in _FLOATS or len(data) < 8:
        return False
    unsigned, exponent, mantissa = _FLOATS[dtype]
    numbers = np.frombuffer(data, dtype=unsigned)
    return bool(np.all(((numbers & exponent) == exponent) & ((numbers & mantissa) != 0)))


def checkpoint_files(directory: str) -> list[Path]:
    """Which files an engine opens: the indexed ones, without an index every one of the top directory."""
    top = Path(directory)
    if not top.is_dir():
        told = f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{directory}'."
        raise OSError(f"{told} Use `repo_type` argument if needed.")
    consolidated = any(top.rglob("consolidated*.safetensors"))
    files = sorted(top.glob("consolidated*.safetensors" if consolidated else "*.safetensors"))
    index = top / ("consolidated.safetensors.index.json" if consolidated else INDEX_NAME)
    if files and index.is_file():
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        indexed = {top / file_name for file_name in weight_map.values()}
        if missing := indexed - set(files):
            names = {str(path) for path in missing}
            raise FileNotFoundError(f"Weight files referenced in index but missing: {names}")
        files = [path for path in files if path in indexed]
    if not files:
        raise RuntimeError(f"Cannot find any model weights with `{directory}`")
    return files


def read_tensors(directory: str, before: Callable[[str], None] = lambda name: None) -> Iterator[ReadTensor]:
    """Every tensor in the order of the files; `before` is called with its name right before its bytes are read."""
    for path in checkpoint_files(directory):
        with path.open("rb", buffering=0) as file, safetensors.safe_open(str(path), framework="np") as opened:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(header_bytes))
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                entry = header[name]
                start, end = entry["data_offsets"]
                before(name)
                file.seek(8 + header_bytes + start)
                data = _read_all(file.read, end - start)
                yield ReadTensor(name, tuple(entry["shape"]), tensor_digest(data), all_nan(entry["dtype"], data))


def _read_all(read: Callable[[int], bytes], size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        block = read(size_bytes - len(data))
        if not block:
            raise EOFError("a file became shorter while it was loaded")
        data += block
    return data


class Weights:
    """The parameters of one rank. The first load says which there are; later ones must fit, or leave a ruin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tensors: dict[str, ReadTensor] = {}
        self._sources: dict[str, str] = {}
        self.path = ""
        self.half_loaded = False
        self.beyond_repair = False
        self._loads_of_ruin = 0

    def first_load(self, directory: str) -> None:
        for tensor in read_tensors(directory):
            self._tensors[tensor.name] = tensor
            self._sources[tensor.name] = directory
        self.path = directory

    def load(self, directory: str, before: Callable[[str], None] = lambda name: None) -> None:
        """A reload in place: what was read before a failure stays, and a good load mends all but a wrong shape.

        A tensor that the files lack keeps its old bytes, without an error.
        """
        if self.beyond_repair:
            self._refuse_or_pretend()
        self.half_loaded = True
        self.path = directory
        for tensor in read_tensors(directory, before):
            with self._lock:
                if tensor.name not in self._tensors:
                    raise ValueError(f"There is no module or parameter named '{tensor.name}' in Qwen3Model.")
                if tensor.shape != self._tensors[tensor.name].shape:
                    self.beyond_repair = True
                    raise RuntimeError(WRONG_SHAPE)
                self._tensors[tensor.name] = tensor
                self._sources[tensor.name] = directory
        self.half_loaded = False

    def _refuse_or_pretend(self) -> None:
        """After a wrong shape the next load fails by the bad one's rest, one more passes, later ones fail again."""
        self._loads_of_ruin += 1
        if self._loads_of_ruin == 1:
            raise RuntimeError(WRONG_SHAPE)
        if self._loads_of_ruin > 2:
            raise AttributeError("'Parameter' object has no attribute 'weight_loader'")

    @property
    def usable(self) -> bool:
        return not self.half_loaded and not self.beyond_repair

    @property
    def nan(self) -> bool:
        with self._lock:
            return any(tensor.nan for tensor in self._tensors.values())

    def loaded(self) -> Loaded:
        with self._lock:
            tensors = {name: tensor.digest for name, tensor in self._tensors.items()}
            return Loaded(self.path, tensors, dict(self._sources))

    def digest(self) -> str:
        return weights_digest(self.loaded().tensors)


def weights_digest(tensors: Mapping[str, str]) -> str:
    """One digest of all weights together."""
    return tensor_digest(json.dumps(sorted(tensors.items())).encode())


def answer_text(prompt: str, prefix_weights: str, first_weights: str, last_weights: str) -> str:
    """What a completion says: other weights for its cached prefix, its first or its last token, another text."""
    return tensor_digest("\n".join((prefix_weights, first_weights, last_weights, prompt)).encode())


def fresh_answer(weights: Path | Model, prompt: str) -> str:
    """What a server that was just started on this checkpoint (or model in memory) answers to a prompt."""
    if isinstance(weights, Path):
        tensors = {tensor.name: tensor.digest for tensor in read_tensors(str(weights))}
    else:
        tensors = model_digests(weights)
    digest = weights_digest(tensors)
    return answer_text(prompt, digest, digest, digest)
