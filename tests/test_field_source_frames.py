"""FIELD_GUIDE S11, S12: payloads whose zstd frame is not one whole frame of the right size, and bombs.

The frames sit in well-formed shards under right digests, so nothing but the frame itself can give them away.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests import toolkit
from tests.source_story import VICTIM, Setting, Story, frame_of_blocks, in_settings, replace_frame, tell
from tests.toolkit import Result, compress

BOMB_BYTES = 512 << 20
LIMIT_BYTES = 400 << 20
# Sets the limit inside the new process, then becomes `python -m vime_sync`.
LIMITED = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_DATA, ({LIMIT_BYTES}, {LIMIT_BYTES}))
sys.argv[0] = "vime-sync"
runpy.run_module("vime_sync", run_name="__main__", alter_sys=True)
"""

MakeFrame = Callable[[bytes], bytes]


def without_content_size(payload: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=False).compress(payload)


def two_frames(payload: bytes) -> bytes:
    return compress(payload) + compress(payload)


def payload_in_two_frames(payload: bytes) -> bytes:
    return compress(payload[:100]) + compress(payload[100:])


def an_empty_frame_after_it(payload: bytes) -> bytes:
    return compress(payload) + compress(b"")


def a_skippable_frame_after_it(payload: bytes) -> bytes:
    return compress(payload) + bytes.fromhex("502a4d18") + (4).to_bytes(4, "little") + b"skip"


def a_byte_after_it(payload: bytes) -> bytes:
    return compress(payload) + b"\0"


def junk_after_it(payload: bytes) -> bytes:
    return compress(payload) + b"left over from a longer frame" * 40


def junk_before_it(payload: bytes) -> bytes:
    return b"\0" + compress(payload)


def no_frame_at_all(payload: bytes) -> bytes:
    return payload


def no_bytes(payload: bytes) -> bytes:
    return b""


STRUCTURE = [
    without_content_size,
    two_frames,
    an_empty_frame_after_it,
    a_skippable_frame_after_it,
    a_byte_after_it,
    junk_after_it,
    junk_before_it,
    no_frame_at_all,
    no_bytes,
]


@in_settings()
@pytest.mark.parametrize("make", STRUCTURE)
def test_s11_a_payload_that_is_not_exactly_one_frame(make: MakeFrame, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    replace_frame(story.shard, make(story.payload))
    story.refuse(11, "malformed", tensors=[VICTIM])
    story.mend_and_recover()


@pytest.mark.parametrize("make", STRUCTURE)
def test_s11_an_overwrite_payload_that_is_not_exactly_one_frame(make: MakeFrame, tmp_path: Path) -> None:
    story = tell(tmp_path, Setting.LAST, encoding="overwrite")
    replace_frame(story.shard, make(story.payload))
    story.refuse(11, "malformed", tensors=[VICTIM])
    story.mend_and_recover()


@in_settings(Setting.ONLY, Setting.LAST)
def test_s11_a_payload_split_over_two_frames(setting: Setting, tmp_path: Path) -> None:
    """The first frame's size is not the tensor's: that alone is the refusal (as S8)."""
    story = tell(tmp_path, setting)
    replace_frame(story.shard, payload_in_two_frames(story.payload))
    story.refuse(13, "lineage_mismatch", tensors=[VICTIM])
    story.mend_and_recover()


@in_settings()
@pytest.mark.parametrize("change_bytes", [-1, 1, 4])
def test_s11_an_overwrite_content_size_that_fits_no_count(change_bytes: int, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting, encoding="overwrite")
    payload = (story.payload + bytes(4))[: len(story.payload) + change_bytes]
    replace_frame(story.shard, compress(payload))
    story.refuse(11, "malformed", tensors=[VICTIM])
    story.mend_and_recover()


def test_s11_hand_made_frames_are_read_when_they_are_right(tmp_path: Path) -> None:
    """The control for the hand-made faults: same builder, nothing wrong."""
    story = tell(tmp_path, Setting.LAST)
    payload = story.payload
    replace_frame(story.shard, frame_of_blocks([payload[:100], payload[100:]], len(payload)))
    story.recover()


def zeros(size_bytes: int) -> bytes:
    """A frame of so many zeros, made piece by piece: 512 MiB become 16 KiB."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=size_bytes)
    pieces = [compressor.compress(bytes(1 << 20)) for _ in range(size_bytes >> 20)]
    return b"".join(pieces) + compressor.flush()


def says_its_size(story: Story) -> bytes:
    return zeros(BOMB_BYTES)


def says_the_right_size(story: Story) -> bytes:
    """The header's content size is the payload's; the blocks behind it inflate to 512 MiB."""
    honest = zeros(BOMB_BYTES)
    window_log = 10 + (honest[5] >> 3)
    forged = frame_of_blocks([], len(story.payload), window_log=window_log)
    return forged + honest[zstandard.frame_header_size(honest) :]


def says_no_size(story: Story) -> bytes:
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    pieces = [compressor.compress(bytes(1 << 20)) for _ in range(BOMB_BYTES >> 20)]
    return b"".join(pieces) + compressor.flush()


def wants_a_window_of_two_gib(story: Story) -> bytes:
    return frame_of_blocks([story.payload], len(story.payload), window_log=31)


BOMBS: list[tuple[str, Callable[[Story], bytes], int, str]] = [
    ("xor", says_its_size, 13, "lineage_mismatch"),
    ("xor", says_the_right_size, 12, "corrupt_payload"),
    ("xor", says_no_size, 11, "malformed"),
    ("xor", wants_a_window_of_two_gib, 11, "malformed"),
    ("overwrite", says_its_size, 11, "malformed"),
    ("overwrite", says_the_right_size, 12, "corrupt_payload"),
]


@in_settings(Setting.ONLY, Setting.LAST, Setting.FRESH)
@pytest.mark.parametrize(
    ("encoding", "make", "code", "identifier"), BOMBS, ids=[f"{bomb[0]}-{bomb[1].__name__}" for bomb in BOMBS]
)
def test_s11_a_bomb_is_refused_in_bounded_memory(
    encoding: str, make: Callable[[Story], bytes], code: int, identifier: str, setting: Setting, tmp_path: Path
) -> None:
    story = tell(tmp_path, setting, encoding=encoding)
    frame = make(story)
    assert len(frame) < 32 << 10
    replace_frame(story.shard, frame)
    story.refuse(code, identifier, tensors=[VICTIM], pull=lambda: pull_under_limit(story))
    story.mend_and_recover()


def pull_under_limit(story: Story) -> Result:
    """The command in a process of its own that cannot have more than 400 MiB of data."""
    options = ["pull", "--json", "--version", str(story.target)]
    for name, path in (("shared", story.shared), ("local", story.local), ("base", story.base)):
        options += [f"--{name}", str(path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VIME_SYNC_")}
    # numpy's linear algebra reserves memory per core when it is loaded; it is not what is measured.
    environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *options], capture_output=True, env=environment, timeout=120, check=False
    )
    return toolkit.parse_result(done.returncode, done.stdout, done.stderr)


def test_s11_the_limited_process_can_pull_what_is_right(tmp_path: Path) -> None:
    """The control: the limit alone refuses nothing."""
    story = tell(tmp_path, Setting.FRESH)
    result = pull_under_limit(story)
    assert (result.code, result.document.get("version")) == (0, 6), result.stderr
    story.check_local_at(6)


def last_byte_gone(payload: bytes) -> bytes:
    return compress(payload)[:-1]


def half_gone(payload: bytes) -> bytes:
    frame = compress(payload)
    return frame[: len(frame) // 2]


def all_but_the_frame_header_gone(payload: bytes) -> bytes:
    frame = compress(payload)
    return frame[: zstandard.frame_header_size(frame)]


def in_the_block_header(payload: bytes) -> bytes:
    frame = compress(payload)
    return frame[: zstandard.frame_header_size(frame) + 2]


def between_two_blocks(payload: bytes) -> bytes:
    """The library just waits for more here: no error, only too few bytes."""
    return frame_of_blocks([payload[:100]], len(payload), ended=False)


def after_the_last_byte_of_content(payload: bytes) -> bytes:
    """All of the content is there, and gives the right digest; the frame was never ended."""
    return frame_of_blocks([payload], len(payload), ended=False)


def frame_checksum_gone(payload: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(payload)[:-4]


TRUNCATIONS = [
    last_byte_gone,
    half_gone,
    all_but_the_frame_header_gone,
    in_the_block_header,
    between_two_blocks,
    after_the_last_byte_of_content,
    frame_checksum_gone,
]


@in_settings()
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("cut", TRUNCATIONS)
def test_s12_a_truncated_frame(cut: MakeFrame, encoding: str, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting, encoding=encoding)
    replace_frame(story.shard, cut(story.payload))
    story.refuse(12, "corrupt_payload", tensors=[VICTIM])
    story.mend_and_recover()


def a_block_of_reserved_type(payload: bytes) -> bytes:
    frame = bytearray(frame_of_blocks([payload], len(payload)))
    frame[zstandard.frame_header_size(bytes(frame))] |= 0b110
    return bytes(frame)


def garbage_in_a_compressed_block(payload: bytes) -> bytes:
    frame = bytearray(frame_of_blocks([b"\xff" * 40], len(payload)))
    frame[zstandard.frame_header_size(bytes(frame))] |= 0b100
    return bytes(frame)


def less_than_the_stated_content(payload: bytes) -> bytes:
    return frame_of_blocks([payload[:-1]], len(payload))


def more_than_the_stated_content(payload: bytes) -> bytes:
    return frame_of_blocks([payload, b"x"], len(payload))


def a_wrong_frame_checksum(payload: bytes) -> bytes:
    frame = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(payload)
    return frame[:-1] + bytes([frame[-1] ^ 1])


@in_settings()
@pytest.mark.parametrize(
    "make",
    [
        a_block_of_reserved_type,
        garbage_in_a_compressed_block,
        less_than_the_stated_content,
        more_than_the_stated_content,
        a_wrong_frame_checksum,
    ],
)
def test_s12_a_frame_that_does_not_decode(make: MakeFrame, setting: Setting, tmp_path: Path) -> None:
    story = tell(tmp_path, setting)
    replace_frame(story.shard, make(story.payload))
    story.refuse(12, "corrupt_payload", tensors=[VICTIM])
    story.mend_and_recover()
