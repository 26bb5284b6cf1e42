"""Parsers and codecs under spoilt bytes, and what may become of them."""

import contextlib
import json
import random
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import safetensors
import zstandard

from tests.hostile import parts
from tests.hostile.mutation import spoil
from tests.hostile.target import Target
from vime_sync.acks.record import Ack, AckEngine, parse_ack, to_bytes
from vime_sync.checkpoint import read_checkpoint
from vime_sync.cli.settings_file import PREFIX, read_settings
from vime_sync.errors import LineageMismatch, Malformed, NotReady, UsageError
from vime_sync.format.codec import OverwriteDecoder, XorDecoder
from vime_sync.format.frame import MAX_FRAME_HEADER_BYTES, FrameWalker, content_size_of
from vime_sync.format.header import parse_header
from vime_sync.format.index import parse_index
from vime_sync.format.problems import FormatError, PayloadError
from vime_sync.model import Checkpoint, VersionKind
from vime_sync.stream.catalog import read_version


def _content(case: Mapping[str, bytes | parts.Link], name: str) -> bytes:
    found = case[name]
    assert isinstance(found, bytes)
    return found


def _header_of(shard: bytes) -> bytes:
    return shard[8 : 8 + struct.unpack_from("<Q", shard)[0]]


def lay(place: Path, files: Mapping[str, Any]) -> None:
    """The directory holds these files, and no others."""
    place.mkdir(parents=True, exist_ok=True)
    for path in place.iterdir():
        path.unlink()
    for name, content in files.items():
        (place / name).write_bytes(content)


class IndexTarget(Target):
    """`parse_index`: an index that is taken names files inside its directory, and plain numbers."""

    _RIGHT: ClassVar = [
        _content(parts.delta(), parts.INDEX),
        _content(parts.delta(encoding="overwrite"), parts.INDEX),
        parts.checkpoint(0)[parts.INDEX],
        parts.dump(parts.index({f"layer.{number}.weight": f"m-{number % 3}.safetensors" for number in range(40)})),
    ]

    def play(self, rng: random.Random) -> str:
        try:
            index = parse_index(spoil(rng, rng.choice(self._RIGHT), self._RIGHT))
        except FormatError as problem:
            return type(problem).__name__
        for name in index.weight_map.values():
            place = self.directory / name
            assert self.directory in place.parents and ".." not in place.parts and "\0" not in name
            name.encode()
        if index.delta is not None:
            assert 0 <= index.delta.version < 10**18 and 0 <= index.delta.base_version < 10**18
            return "delta"
        return "full"


class HeaderTarget(Target):
    """`parse_header`: what is taken covers its data without hole or overlap, and the safetensors library takes it."""

    _RIGHT: ClassVar = [
        _header_of(_content(parts.delta(), parts.SHARD)),
        _header_of(parts.checkpoint(0)[parts.BASE_SHARD]),
        parts.dump(parts.full_header({f"t{number}": ("F16", [number, 2], 4 * number) for number in range(20)})),
    ]
    _MOST_DATA_BYTES: ClassVar = 1 << 20

    def play(self, rng: random.Random) -> str:
        raw = spoil(rng, rng.choice(self._RIGHT), self._RIGHT)
        try:
            header = parse_header(raw)
        except FormatError as problem:
            return type(problem).__name__
        end = 0
        for spec in header.tensors.values():
            assert spec.begin == end
            end += spec.size_bytes
        assert end == header.data_size_bytes
        if end > self._MOST_DATA_BYTES:
            return "taken, too large to hold against the library"
        deserialize = cast("Callable[[bytes], list[tuple[str, Any]]]", safetensors.deserialize)
        names = {name for name, _ in deserialize(parts.safetensors(raw, bytes(end)))}
        assert names == set(header.tensors)
        return "taken"


class _Pieces:
    """A source that gives a frame in pieces as small as it likes."""

    def __init__(self, frame: bytes, rng: random.Random) -> None:
        self._frame, self._rng = frame, rng

    def read(self, size: int, /) -> bytes:
        size = min(size, self._rng.choice((1, 7, 64, 1 << 20)))
        piece, self._frame = self._frame[:size], self._frame[size:]
        return piece


class FrameTarget(Target):
    """Walker and decoders: what is taken is one frame, and does what numpy does with the library's answer."""

    _MOST_WINDOW_BYTES: ClassVar = 8 << 20

    def _right(self) -> list[bytes]:
        old, new = self._old, self._new
        xored = bytes(np.bitwise_xor(np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)))
        changed = [(place, new[place]) for place in range(len(new)) if old[place] != new[place]]
        contents = [xored, parts.overwrite(changed), parts.overwrite(changed[:7]), parts.overwrite([])]
        frames = [parts.frame(content) for content in contents]
        frames += [zstandard.ZstdCompressor(level=level).compress(item) for level in (1, 9) for item in contents]
        return [*frames, zstandard.ZstdCompressor(level=1, write_checksum=True).compress(xored)]

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        rng = random.Random(5)
        self._old = rng.randbytes(3000)
        self._new = bytes(byte ^ (rng.random() < 0.2) * rng.randrange(256) for byte in self._old)
        self._frames = self._right()

    def play(self, rng: random.Random) -> str:
        frame = spoil(rng, rng.choice(self._frames), self._frames) if rng.random() < 0.97 else rng.choice(self._frames)
        try:
            size = content_size_of(frame[:MAX_FRAME_HEADER_BYTES])
            self._walk(frame, rng)
        except (FormatError, PayloadError) as problem:
            with contextlib.suppress(FormatError, PayloadError):  # the verdict of a decoder without a walker before it
                self._apply(frame, content_size_of(frame[:MAX_FRAME_HEADER_BYTES]), rng)
            return type(problem).__name__
        try:
            kind, result = self._apply(frame, size, rng)
        except (FormatError, PayloadError) as problem:
            return f"decoding: {type(problem).__name__}"
        library = zstandard.ZstdDecompressor().decompressobj()
        content = library.decompress(frame)
        assert library.eof and not library.unused_data and len(content) == size
        assert zstandard.get_frame_parameters(frame).window_size <= self._MOST_WINDOW_BYTES
        assert result == (self._xored(content) if kind == "xor" else self._overwritten(content))
        return kind

    def _walk(self, frame: bytes, rng: random.Random) -> None:
        """The verdict does not depend on how the frame is cut into pieces."""
        verdicts = []
        for most in (len(frame), rng.choice((1, 5, 100))):
            walker, place = FrameWalker(len(frame)), 0
            try:
                while place < len(frame):
                    size = max(MAX_FRAME_HEADER_BYTES, most) if not place else most
                    walker.feed(memoryview(frame)[place : place + size])
                    place += size
                walker.finish()
                verdicts.append("")
            except (FormatError, PayloadError) as problem:
                verdicts.append(f"{type(problem).__name__} {problem}")
                last = problem
        assert verdicts[0] == verdicts[1], verdicts
        if verdicts[0]:
            raise last

    def _apply(self, frame: bytes, size: int, rng: random.Random) -> tuple[str, bytes]:
        block_bytes = rng.choice((1, 100, 1024, 4096)) if len(self._old) < 200 else rng.choice((100, 1024, 4096))
        result = np.frombuffer(self._old, np.uint8).copy()
        starts = range(0, len(result), block_bytes)
        if size == len(result):
            decoder = XorDecoder(lambda: _Pieces(frame, rng), len(result), np.empty(block_bytes, np.uint8))
            for start in starts:
                decoder.apply(result[start : start + block_bytes])
            return "xor", result.tobytes()
        keep = rng.choice((0, 1 << 20))
        overwrite = OverwriteDecoder(lambda: _Pieces(frame, rng), size, len(result), keep)
        for start in starts:
            places, values = overwrite.window(start, min(start + block_bytes, len(result)))
            result[start : start + block_bytes][places] = values
        return "overwrite", result.tobytes()

    def _xored(self, content: bytes) -> bytes:
        return bytes(np.frombuffer(self._old, np.uint8) ^ np.frombuffer(content, np.uint8))

    def _overwritten(self, content: bytes) -> bytes:
        (count,) = struct.unpack_from("<I", content)
        result = bytearray(self._old)
        for number, place in enumerate(struct.unpack_from(f"<{count}I", content, 4)):
            result[place] = content[4 + 4 * count + number]
        return bytes(result)


class AckTarget(Target):
    """`parse_ack`: a record that is taken can be written again and says the same."""

    _RIGHT: ClassVar = [
        to_bytes(Ack("a1", "/nvme/a", 3, "0f", ((1, "x"), (3, "y")), (AckEngine("http://a", "at_version", 3),), True)),
        to_bytes(Ack("b2", "/nvme/b", 0, "ab" * 16, ((0, "z"),))),
    ]

    def play(self, rng: random.Random) -> str:
        try:
            ack = parse_ack(spoil(rng, rng.choice(self._RIGHT), self._RIGHT), "x")
        except FormatError as problem:
            return type(problem).__name__
        assert parse_ack(to_bytes(ack), "x") == ack
        assert "/" not in ack.file_name and not ack.file_name.startswith(".")
        return "taken"


class SettingsTarget(Target):
    """`read_settings`: what is taken can stand in an environment."""

    _RIGHT: ClassVar = [
        b'# of llama\nVIME_SYNC_LOCAL=/nvme/ckpt\nexport VIME_SYNC_ENGINE="vllm=http://a:1 vllm=http://b:2"\nOTHER=1\n',
        b"VIME_SYNC_HTTP='[::1]:80' # here\n\n; x\nVIME_SYNC_WAIT=\\ 5\n",
    ]

    def play(self, rng: random.Random) -> str:
        path = self.directory / "settings.env"
        path.write_bytes(spoil(rng, rng.choice(self._RIGHT), self._RIGHT))
        try:
            settings = read_settings(path)
        except UsageError:
            return "UsageError"
        for name, value in settings.items():
            assert name.startswith(PREFIX) and not re.search("[=\0]", name) and "\0" not in value
        return f"{min(len(settings), 3)} settings"


class VersionTarget(Target):
    """`read_version` and `read_checkpoint` over directories with one spoilt file."""

    _VERSIONS: ClassVar[list[Mapping[str, Any]]] = [
        parts.delta(),
        parts.delta(encoding="overwrite"),
        parts.checkpoint(2),
    ]

    def play(self, rng: random.Random) -> str:
        right = rng.choice(self._VERSIONS)
        victim = rng.choice([name for name in right if name != "config.json"])
        spoilt = {**right, victim: spoil(rng, right[victim], list(right.values()))}
        share = self.directory / "share"
        place = share / "weight_v000002"
        lay(place, spoilt)
        with contextlib.suppress(FormatError, FileNotFoundError):
            read_checkpoint(place, 0, VersionKind.BASE)
        try:
            found = read_version(place, 2, share)
        except (NotReady, Malformed, LineageMismatch) as problem:
            json.dumps(problem.message)
            return problem.id
        return "full" if isinstance(found, Checkpoint) else "delta"


PARSERS: dict[str, type[Target]] = {
    "index": IndexTarget,
    "header": HeaderTarget,
    "frame": FrameTarget,
    "ack": AckTarget,
    "settings": SettingsTarget,
    "version": VersionTarget,
}
