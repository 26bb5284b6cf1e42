"""A client that asks one thing after the other, while weights change under the engine that answers."""

import threading
from types import TracebackType

from tests.real_vllm.server import Completion, Server

TOKENS = 8


class Traffic:
    """Asks inside the `with` block; every answer is kept. A request that fails ends it and shows at the block's end."""

    def __init__(self, server: Server, prompt: str) -> None:
        self._server = server
        self._prompt = prompt
        self.answers: list[Completion] = []
        self._over = threading.Event()
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._ask, name="traffic")

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if kind is None and self._trouble is not None:
            raise self._trouble

    def _ask(self) -> None:
        try:
            while not self._over.is_set():
                self.answers.append(self._server.complete(self._prompt, TOKENS))
        except BaseException as trouble:
            self._trouble = trouble
