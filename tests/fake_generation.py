"""How the fake engines answer prompts: a loop that does one thing at a time, a queue, pausing, a prefix cache.

Answers are digests of the prompt and of the weights that were in place at each moment of the work. The first
`PREFIX_CHARACTERS` of a longer prompt are computed once and kept, with the weights of that time, until the cache
is reset: after a reload without a reset such an answer is a mix that belongs to neither model.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.fake_http import POLL_S, Hangup
from tests.fake_weights import answer_text

PREFIX_CHARACTERS = 200


class EngineDied(Exception):
    """The engine's process is gone; the one of the web server follows it."""


@dataclass(eq=False)
class Request:
    """One prompt on its way."""

    prompt: str
    prefix_weights: str = ""
    first_weights: str = ""
    aborted: bool = False


@dataclass
class Hold:
    """The test's hand on running completions: while held they run and do not end."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    held: bool = False


class Generation:
    """One life of an engine, from its start to its death or end."""

    def __init__(self, weights: Callable[[], str], usable: Callable[[], bool], hold: Hold) -> None:
        self._weights = weights
        self._usable = usable
        self._hold = hold
        self._changed = hold.changed  # guards all that follows
        self._next_ticket = 0
        self._serving = 0
        self._cache: dict[str, str] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.pause_mode: str | None = None
        self.died = False
        self._stopped = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The loop does one thing after another, in the order in which they came."""
        with self._changed:
            ticket = self._next_ticket
            self._next_ticket += 1
            self._changed.wait_for(lambda: self._serving == ticket or self._over())
            self._raise_if_over()
        try:
            yield
        finally:
            with self._changed:
                self._serving += 1
                self._changed.notify_all()

    def end(self, *, died: bool) -> None:
        """Let go of everybody who waits."""
        with self._changed:
            self.died = self.died or died
            self._stopped = self._stopped or not died
            self._changed.notify_all()

    def pause(self, mode: str, *, clear_cache: bool) -> None:
        with self.turn(), self._changed:
            if mode == "abort":
                self._abort_all()
            self.pause_mode = mode
            self._changed.notify_all()
        with self._changed:
            if mode != "keep":  # the others are frozen as they are
                self._changed.wait_for(lambda: not self.running or self._over())
                self._raise_if_over()
        if clear_cache:
            self.reset_prefix_cache(force=True)

    def resume(self) -> None:
        with self.turn(), self._changed:
            self.pause_mode = None
            self._changed.notify_all()

    def paused(self) -> bool:
        with self.turn():
            return self.pause_mode is not None

    def abort_all(self) -> int:
        with self._changed:
            return self._abort_all()

    def _abort_all(self) -> int:
        for request in (*self.waiting, *self.running):
            request.aborted = True
        self._changed.notify_all()
        return len(self.waiting) + len(self.running)

    def reset_prefix_cache(self, *, force: bool = False) -> bool:
        """Not while requests hold something computed, unless forced: then that is thrown away too."""
        with self.turn(), self._changed:
            if any(request.prefix_weights for request in self.running) and not force:
                return False
            for request in self.running:
                request.prefix_weights = ""
            self._cache.clear()
            return True

    def complete(self, prompt: str, client_gone: Callable[[], bool]) -> tuple[str, str]:
        """The answer's text and its finish reason, "length" or "abort"; `Hangup` when the client went away."""
        request = Request(prompt)
        with self._changed:
            self._raise_if_over()
            self.waiting.append(request)
            self._changed.notify_all()
        try:
            self._step(request, client_gone, self._begin)
            return self._step(request, client_gone, self._finish), "abort" if request.aborted else "length"
        finally:
            with self._changed:
                for queue in (self.waiting, self.running):
                    if request in queue:
                        queue.remove(request)
                self._changed.notify_all()

    def _step(self, request: Request, client_gone: Callable[[], bool], work: Callable[[Request], str]) -> str:
        """Do one piece of work in the loop once nothing is in its way; it may come back later for its turn."""
        while True:
            with self._changed:
                while not (request.aborted or self._over() or not self._barred(request)):
                    self._changed.wait(POLL_S)
                    if client_gone():
                        raise Hangup
            with self.turn():
                if request.aborted:
                    return ""
                if not self._barred(request):
                    return work(request)

    def _barred(self, request: Request) -> bool:
        if request in self.waiting:
            return self.pause_mode is not None
        return self._hold.held or self.pause_mode == "keep"

    def _begin(self, request: Request) -> str:
        if not self._usable():
            raise EngineDied
        with self._changed:
            request.first_weights = self._weights()
            request.prefix_weights = self._prefix_weights(request)
            self.waiting.remove(request)
            self.running.append(request)
            self._changed.notify_all()
        return ""

    def _finish(self, request: Request) -> str:
        if not self._usable():
            raise EngineDied
        with self._changed:
            prefix_weights = request.prefix_weights or self._prefix_weights(request)
            self.running.remove(request)
            self._changed.notify_all()
            return answer_text(request.prompt, prefix_weights, request.first_weights, self._weights())

    def _prefix_weights(self, request: Request) -> str:
        if len(request.prompt) <= PREFIX_CHARACTERS:
            return self._weights()
        return self._cache.setdefault(request.prompt[:PREFIX_CHARACTERS], self._weights())

    def _over(self) -> bool:
        return self.died or self._stopped

    def _raise_if_over(self) -> None:
        if self.died:
            raise EngineDied
        if self._stopped:
            raise Hangup
