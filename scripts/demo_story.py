"""The demo, step by step: a trainer publishes, a host follows, and every byte is proven independently."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from scripts.demo_model import Size
from scripts.demo_screen import Screen
from scripts.demo_world import MEGABYTE, PROGRAM, DemoFailed, World
from tests import toolkit

# An early step of training: many bytes change, so applying it takes long enough to be killed in the middle.
_COARSE_STEP = 5e-5
_KILL_TRIES = 5
_JOURNAL_BYTES_BEFORE_KILL = 300
_POLL_S = 0.0005


def fresh_host(world: World) -> None:
    """A fresh host: base and first delta in one pass, each byte written once"""
    world.publish("xor")
    world.pull("fresh -> v1", "--shared", "share", "--base", "base")


def single_steps(world: World) -> None:
    """Small deltas, applied in place; the host remembers share and base"""
    world.publish("overwrite")
    world.pull("v1 -> v2")
    world.publish("xor", "blake3")
    world.pull("v2 -> v3")


def several_at_once(world: World) -> None:
    """Three versions behind: one pass, each tensor read and written once"""
    world.publish("xor")
    world.publish("overwrite", "blake3")
    world.publish("xor", "adler32")
    world.show("inspect", "share")
    world.pull("v3 -> v6")


def full_version(world: World) -> None:
    """A full checkpoint: built beside the live one and renamed into place"""
    world.publish_full()
    world.pull("v6 -> v7")


def corrupt_delta(world: World) -> None:
    """A published delta with one flipped bit: refused, nothing local changed"""
    directory = world.publish("xor")
    shard = directory / "model-00000-of-00002.safetensors"
    right = shard.read_bytes()
    spoiled = bytearray(right)
    spoiled[-len(right) // 3] ^= 0x10
    shard.write_bytes(spoiled)
    before = toolkit.snapshot(world.local)
    world.show("pull", "--local", "local", expect=12)
    same = toolkit.snapshot(world.local) == before
    world.screen.proof("every local file is byte for byte what it was before", right=same)
    world.expect(same, "the refused delta changed local files")
    world.prove(7)
    shard.write_bytes(right)
    world.screen.fact("trainer", "published v8 again, this time whole")
    world.pull("v7 -> v8")


def kill_in_the_middle(world: World) -> None:
    """kill -9 in the middle of an apply, and the next pull carries on"""
    for _ in range(_KILL_TRIES):
        held = world.newest
        for _ in range(3):
            world.publish("xor", learning_rate=_COARSE_STEP)
        process = world.start("pull", "--local", "local", "--threads", "1")
        if _killed_in_the_middle(world, process):
            break
        world.screen.fact("kill", "the pull was done before the kill came; once more with newer versions")
    else:
        raise DemoFailed(f"the pull was too fast to be killed in the middle, {_KILL_TRIES} times")
    old, new, half_way = world.where_tensors_are(held, world.newest)
    world.screen.fact(
        "kill -9",
        f"while it wrote: {new} tensors at v{world.newest}, {half_way} half way, {old} still at v{held}",
    )
    world.show("status", "--local", "local")
    world.pull(f"v{held} -> v{world.newest} (killed)")


def _killed_in_the_middle(world: World, process: subprocess.Popen[str]) -> bool:
    """Kill once the record of written blocks has grown; whether that came before the pull was done."""
    records = world.local / ".weight_sync"
    while process.poll() is None:
        try:
            written = (records / "journal").stat().st_size
        except FileNotFoundError:
            written = 0
        if written >= _JOURNAL_BYTES_BEFORE_KILL:
            process.kill()
            break
        time.sleep(_POLL_S)
    world.finish(process)
    return process.returncode == -signal.SIGKILL and not (records / "state.json").exists()


def rotten_byte(world: World) -> None:
    """A byte rots on the host's disk: verify finds it, the next pull heals it"""
    shard = sorted(world.local.glob("*.safetensors"))[0]
    with shard.open("r+b") as file:
        file.seek(-1_000_000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x01]))
    world.show("verify", "--local", "local", expect=22)
    world.pull(f"v{world.newest} (rotten byte)")
    world.show("verify", "--local", "local")
    world.show("status", "--local", "local")


STEPS: tuple[Callable[[World], None], ...] = (
    fresh_host,
    single_steps,
    several_at_once,
    full_version,
    corrupt_delta,
    kill_in_the_middle,
    rotten_byte,
)


def summary(world: World, seconds: float) -> None:
    world.screen.heading("What happened")
    header = f"{'':<19}{'kind':<17}{'changed':>7}{'wire':>9}{'time':>8}{'GB/s':>6}  digest"
    lines = [header, "-" * (len(header) + 2)]
    for row in world.rows:
        lines.append(
            f"{row.came:<19}{row.kind:<17}{row.changed:>7}{row.wire_bytes / MEGABYTE:>6.1f} MB{row.seconds:>6.2f} s"
            f"{f'{row.gigabytes_per_second:.2f}' if row.gigabytes_per_second else '-':>6}  {row.fingerprint}"
        )
    world.screen.rows(lines)
    world.screen.note("GB/s: the model's bytes over the seconds of the seed or the apply.")
    world.screen.blank()
    world.screen.note(
        f"A trainer published {world.newest} versions of a model of {world.size_bytes / MEGABYTE:.0f} MB. vime-sync "
        "kept a copy of it on this host: it fetched only what had changed, wrote it straight into the checkpoint's "
        "files and checked every tensor against the digest that was published with it. A broken delta was refused "
        "and the old version stayed whole; a kill in the middle and a rotten byte were healed by the next pull. After "
        "each step every tensor was read back by the safetensors library and came to the digest of what numpy had "
        "computed."
    )
    world.screen.blank()
    world.screen.note(f"All right, in {seconds:.0f} seconds. Next: README.md, and")
    world.screen.rows([f"{PROGRAM} pull --help"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave base, share and local there, to try commands on")
    keep = bool(parser.parse_args().keep)
    signal.signal(signal.SIGTERM, _stop)
    screen = Screen()
    started = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="vime-sync-demo-"))
    try:
        screen.title("vime-sync: a trainer publishes weights, a host follows, every byte is proven")
        screen.note(f"in {root}")
        world = World(root, screen, Size())
        screen.fact(
            "model",
            f"{world.size_bytes / MEGABYTE:.0f} MB of bf16, {len(world.trainer.weights)} tensors in 3 files, laid out "
            "like a Qwen3",
        )
        screen.fact("proof", "after each step, every tensor as safetensors reads it (xxh3-128)")
        for number, step in enumerate(STEPS, start=1):
            screen.heading(f"[{number}/{len(STEPS)}] {step.__doc__}")
            step(world)
        summary(world, time.monotonic() - started)
    except DemoFailed as problem:
        screen.fact("FAILED", str(problem))
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if keep:
            screen.note("Left there, to try commands on:")
            screen.rows([f"cd {root}", f"{PROGRAM} status --local local"])
        else:
            shutil.rmtree(root, ignore_errors=True)
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
