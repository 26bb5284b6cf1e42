"""What is right in a long run: the answers that each published model gives, and those that were really given.

Every model is another one, so an answer names the weights that it was computed from; a mix of two names none. One
`Client` per engine asks without end and judges each answer at once.
"""

import http.client
import json
import threading
from collections import Counter
from collections.abc import Sequence

from tests.fake_weights import answer_text, model_digests, weights_digest
from tests.soak_processes import EngineProcess
from tests.toolkit import Model

# Long ones with one beginning share what an engine keeps of it: there a cache that was not cleared shows.
_BEGINNING = "You are a careful assistant who answers in one word, whatever is asked. " * 4
PROMPTS = (
    *(f"{_BEGINNING} Question {number}?" for number in range(3)),
    *(f"Chapter {number}. " + "Once upon a time, and it was a good time. " * 9 for number in range(2)),
    "short",
)
# No answer for so long: an engine was left paused.
ANSWER_S = 60.0
_PAUSE_S = 0.005


class Truth:
    """The models in the order in which they were published; number 0 is the base."""

    def __init__(self, base: Model) -> None:
        self._guard = threading.Lock()
        self._numbers: list[dict[str, int]] = [{} for _ in PROMPTS]
        self.names: list[str] = []
        self.newest_digest = ""
        self.add("the base", base)

    def add(self, name: str, model: Model) -> None:
        """To be called before the model can be seen by anybody."""
        digest = weights_digest(model_digests(model))
        with self._guard:
            self.newest_digest = digest
            self.names.append(name)
            for answers, prompt in zip(self._numbers, PROMPTS, strict=True):
                answers[answer_text(prompt, digest, digest, digest)] = len(self.names) - 1

    def number_of(self, prompt: int, text: str) -> int | None:
        """Whose answer it is; None: of no model that was ever published."""
        with self._guard:
            return self._numbers[prompt].get(text)


class Wrong:
    """The first thing that was found wrong by whichever thread; the story stops when it is set."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._guard = threading.Lock()
        self.message = ""

    def say(self, message: str) -> None:
        with self._guard:
            if not self._event.is_set():
                self.message = message
                self._event.set()

    def wait(self, seconds: float) -> None:
        """Sleep so long; raises AssertionError at once when something is found wrong."""
        if self._event.wait(seconds):
            raise AssertionError(self.message)


class Judge:
    """Of one engine's answers, in their order: each of exactly one model, and never of an older one than before.

    Only a restarted engine may answer with the base, until it was brought on.
    """

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._highest = 0
        self._highest_of_life = (0, 0)
        self.answers: list[tuple[int, str, int]] = []
        self.by_number: Counter[int] = Counter()

    def take(self, prompt: int, text: str, life: int, life_after: int) -> str | None:
        """What is wrong with an answer, if anything. The lives of the engine are those before and after it was got."""
        number = self._truth.number_of(prompt, text)
        if number is None:
            return f"prompt {prompt} was answered {text!r}: of no published model, so of a mix (life {life})"
        self.answers.append((prompt, text, number))
        self.by_number[number] += 1
        if life != life_after:
            return None
        known_life, highest = self._highest_of_life
        highest = highest if known_life == life else 0
        name = self._truth.names[number]
        if number < highest or (number and number < self._highest):
            before = self._truth.names[highest or self._highest]
            return f"prompt {prompt} was answered with {name}, after an answer with {before} (life {life})"
        self._highest = max(self._highest, number)
        self._highest_of_life = (life, number)
        return None


class Client:
    """Asks one engine all the time, from a thread of its own."""

    def __init__(self, engine: EngineProcess, truth: Truth, wrong: Wrong, order: Sequence[int]) -> None:
        self._engine, self._wrong, self._order = engine, wrong, order
        self.judge = Judge(truth)
        self.unanswered = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"soak-client-{engine.port}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(2 * ANSWER_S)
        assert not self._thread.is_alive(), "the client does not end"

    def _run(self) -> None:
        asked = 0
        while not self._ending.wait(_PAUSE_S):
            prompt = self._order[asked % len(self._order)]
            asked += 1
            try:
                self._ask(prompt)
            except Exception as problem:  # a thread's errors are seen by nobody
                self._wrong.say(f"{self._engine.url}: {problem!r}")
                return

    def _ask(self, prompt: int) -> None:
        life = self._engine.life
        connection = http.client.HTTPConnection("127.0.0.1", self._engine.port, timeout=ANSWER_S)
        question = {"model": "m", "prompt": PROMPTS[prompt], "max_tokens": 8, "temperature": 0}
        try:
            connection.request("POST", "/v1/completions", json.dumps(question), {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except TimeoutError:
            self._wrong.say(f"{self._engine.url}: no answer for {ANSWER_S:g} s: it was left paused")
            return
        except (OSError, http.client.HTTPException):  # it is down, or was killed
            self.unanswered += 1
            return
        finally:
            connection.close()
        if response.status != 200:
            self._wrong.say(f"{self._engine.url} answered {response.status}: {content[:300]!r}")
            return
        (choice,) = json.loads(content)["choices"]
        if choice["finish_reason"] == "abort":
            self.unanswered += 1
            return
        problem = self.judge.take(prompt, choice["text"], life, self._engine.life)
        if problem is not None:
            self._wrong.say(f"{self._engine.url}: {problem}")
