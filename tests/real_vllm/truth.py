"""What the right answers are: a server that nobody but the test touches, given weights that the test wrote itself.

The weights go through the `safetensors` library into a directory of their own, and are loaded by hand in the way
that vLLM documents. That a load by hand equals a fresh start is checked before the first answer is believed, and
is a story of its own (test_trouble).
"""

from pathlib import Path

from tests import toolkit
from tests.real_vllm.server import Completion, Server
from tests.real_vllm.tiny_model import tiny_files, tiny_qwen3
from tests.toolkit import Model

_SYSTEM = "You are a careful agent that rolls out one step at a time, and says what it sees before it does anything. "
# More than 200 tokens each, so that whole blocks of the prefix cache are shared between requests.
PROMPTS = (
    _SYSTEM * 3 + "What is the weather like today?",
    _SYSTEM * 3 + "Name three rivers that flow to the north.",
    "Once upon a time there was a trainer who published one version after another. " * 4,
)

Answers = tuple[Completion, ...]


def ask_all(server: Server) -> Answers:
    return tuple(server.complete(prompt) for prompt in PROMPTS)


def same(found: Answers, expected: Answers) -> bool:
    return all(mine.is_same(its) for mine, its in zip(found, expected, strict=True))


def different(some: Answers, others: Answers) -> bool:
    """No prompt gets the same answer: an engine with other weights cannot pass by chance."""
    return all(one.token_ids != other.token_ids for one, other in zip(some, others, strict=True))


class Truth:
    """The right answers of any weights, each asked for once. The server may still be starting."""

    def __init__(self, server: Server, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._known: dict[str, Answers] = {}

    def of(self, model: Model) -> Answers:
        if not self._known:
            self._check()
        key = _key(model)
        if key not in self._known:
            self._known[key] = self._ask(model)
        return self._known[key]

    def _check(self) -> None:
        """A load by hand changes the answers, and one of the weights of the start brings those of the start back."""
        self._server.wait_until_up()
        fresh = ask_all(self._server)
        other = tiny_qwen3(seed=99)
        answers = self._ask(other)
        assert different(answers, fresh)
        start = toolkit.read_checkpoint(self._server.model_dir)
        assert same(self._ask(start), fresh)
        self._known = {_key(start): fresh, _key(other): answers}

    def _ask(self, model: Model) -> Answers:
        place = self._directory / _key(model)
        toolkit.write_checkpoint(place, model, shards=2, extra_files=tiny_files())
        self._load(place)
        return ask_all(self._server)

    def _load(self, place: Path) -> None:
        server = self._server
        assert server.ask("/pause?mode=abort", {}).json() == {"status": "paused"}
        assert server.call("reload_weights", weights_path=str(place)) == [None]
        assert server.ask("/reset_prefix_cache", {}).json() == {"success": True}
        assert server.ask("/resume", {}).json() == {"status": "resumed"}


def _key(model: Model) -> str:
    return toolkit.digest(repr(sorted(toolkit.digests(model).items())).encode())
