"""One demo from beginning to end: directory, model, engine, daemon, story; all gone again, however it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from vime_sync.demo.daemon import Daemon
from vime_sync.demo.engine import EmbeddedEngine
from vime_sync.demo.models import Model, prepare_model
from vime_sync.demo.real_vllm import RealVllm, vllm_command
from vime_sync.demo.story import Story
from vime_sync.demo.telling import Listener, Step, human_size
from vime_sync.demo.trainer import Trainer
from vime_sync.demo.workplace import workplace
from vime_sync.errors import DemoFailed


@dataclass(frozen=True)
class Settings:
    directory: Path | None = None
    keep: bool = False
    offline: bool = False
    vllm: bool = False
    verbose: bool = False


@dataclass(frozen=True)
class Outcome:
    """`failure` is None when every proof held. `directory` is where base, share and local were left, if they were."""

    model: str
    model_note: str
    model_bytes: int
    tensors: int
    engine: str
    question: str
    steps: tuple[Step, ...]
    seconds: float
    directory: Path | None
    failure: DemoFailed | None


def run_demo(settings: Settings, listener: Listener, check_stop: Callable[[], None]) -> Outcome:
    """Raises UsageError, Interrupted, and what else keeps it from beginning."""
    started = time.monotonic()
    command = vllm_command() if settings.vllm else None
    with ExitStack() as stack:
        root = stack.enter_context(workplace(settings.directory, keep=settings.keep))
        listener.say("demo", f"everything lies in {root}" + ("" if settings.keep else ", and is removed at the end"))
        only_made = "vLLM is asked to go on with a text, which MiniLM does not" if settings.vllm else None
        model = prepare_model(
            root,
            only_made=only_made,
            offline=settings.offline,
            say=lambda text: listener.say("demo", text),
            check_stop=check_stop,
        )
        trainer = Trainer(root, model)
        figures = f"{human_size(trainer.size_bytes)}, {trainer.tensor_count} tensors"
        listener.say("demo", f"the model is {model.name}, {figures}; {model.note}")
        url = _start_engine(command, model, root, stack, listener, check_stop)
        daemon = Daemon(root, url, listener, check_stop, verbose=settings.verbose)
        stack.callback(daemon.close)
        story = Story(root, trainer, daemon, url, model.task, listener)
        failure = None
        try:
            story.play()
        except DemoFailed as problem:
            check_stop()  # a Ctrl-C reaches the children too, and what they do then is no failure
            failure = problem
        return Outcome(
            model.name,
            model.note,
            trainer.size_bytes,
            trainer.tensor_count,
            "vllm" if settings.vllm else "embedded",
            model.task.question,
            tuple(story.steps),
            time.monotonic() - started,
            root if settings.keep else None,
            failure,
        )


def _start_engine(
    command: list[str] | None,
    model: Model,
    root: Path,
    stack: ExitStack,
    listener: Listener,
    check_stop: Callable[[], None],
) -> str:
    if command is None:
        engine: EmbeddedEngine | RealVllm = EmbeddedEngine(model)
        told = "embedded: it speaks as much of vLLM as the daemon needs"
    else:
        listener.say("engine", f"starting {' '.join(command)}, which takes half a minute or more")
        engine = RealVllm(command, model, root / "vllm", check_stop)
        told = "a real vLLM"
    stack.callback(engine.close)
    listener.say("engine", f"{engine.url}, {told}; it is asked: {model.task.question}")
    return engine.url
