"""vLLM, driven by the endpoints of its development mode; what they answer was seen on a real 0.32 (docs/ENGINES.md).

The order of a load: pause, load, clear the prefix cache, set the weight version and read it back, resume, probe. A
200 proves little, so each body is read. Nothing here resumes an engine whose load went wrong.
"""

from __future__ import annotations

from typing import Any

from vime_sync.engines.extension import Extension
from vime_sync.engines.http import Answer, Client
from vime_sync.engines.interface import Load, Sighting, Turn
from vime_sync.engines.probe import check_completion, check_key
from vime_sync.engines.spec import EngineSettings, EngineSpec, ExtensionUse
from vime_sync.errors import (
    EngineNotReady,
    EngineOutOfStep,
    EngineRefused,
    EngineSilent,
    EngineUncertain,
    EngineUnreachable,
)

_DEV_MODE_HINT = "Start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment, and keep its port on loopback."
_PULL_HINT = "Pull again: it hashes them, and heals what is wrong."
_NOT_FOUND = (404, 405)
_SHORT_S = 60.0
# Where the class of a worker extension is told by GET /server_info.
_EXTENSION_KEY = "worker_extension_cls"
_EXTENSION_CLASS = "PullWeightsExtension"


class VllmEngine:
    """One vLLM server, of one rank or many, on one host or many."""

    def __init__(self, spec: EngineSpec, settings: EngineSettings) -> None:
        self.spec = spec
        self._settings = settings
        self._client = Client(spec, settings)
        self._has_extension: bool | None = None

    def look(self) -> Sighting:
        try:
            answer = self._client.ask("/health")
        except EngineUnreachable:
            self._has_extension = None  # another process may come back
            raise
        if not answer.is_success:
            raise EngineUnreachable(
                f"GET {self.spec.shown_url}/health answered {answer.status}: {answer.reason or 'nothing'}"
            )
        paused = self._client.ask("/is_paused").fields.get("is_paused")
        return Sighting(self._weight_version(), paused if isinstance(paused, bool) else None)

    def load(self, load: Load, turn: Turn) -> Sighting:
        self._check_awake(is_paused=self._is_paused(), was_left_paused=turn.was_left_paused)
        ranks = self._world_size()
        extension = self._extension(ranks)
        if not turn.is_untouched():
            raise EngineNotReady(f"files in {load.path} changed since they were proven", hint=_PULL_HINT)
        if extension is not None:
            extension.spread(load)  # while it goes on serving
        if self._settings.probe or turn.is_in_doubt:
            check_key(self._client)
        turn.before_pause()
        self._pause(turn)
        self._check_untouched(load, turn)
        if extension is not None:
            self._reload_by(extension, load, turn)
        else:
            self._reload(load, ranks)
        if not turn.is_untouched():
            raise EngineUncertain(f"{load.path} changed while {self.spec} was loading it")
        self._clear_prefix_cache()
        sighting = Sighting(self._tell_version(str(load.weights.version)), turn.leave_paused)
        if not self._is_paused():  # it restarted meanwhile: a fresh one took what came after the load
            raise EngineUncertain(f"{self.spec} is not paused any more as it was for the load: it has restarted")
        if not turn.leave_paused:
            self._resume()
            if self._settings.probe or turn.is_in_doubt:
                self._probe()
        return sighting

    # ---- questions

    def _weight_version(self) -> str | None:
        """None on servers before 0.21, which do not tell."""
        answer = self._client.ask("/weight_info")
        version = answer.fields.get("weight_version")
        return str(version) if answer.is_success and version is not None else None

    def _is_paused(self) -> bool:
        answer = self._client.ask("/is_paused")
        if answer.status in _NOT_FOUND:
            raise EngineNotReady(
                f"GET {self.spec.shown_url}/is_paused answered {answer.status}: it lacks its development endpoints",
                hint=_DEV_MODE_HINT,
            )
        return answer.fields.get("is_paused") is True

    def _check_awake(self, *, is_paused: bool, was_left_paused: bool) -> None:
        """A load while it sleeps is reported to crash it. A paused one says of itself that it sleeps, too."""
        if self._client.ask("/is_sleeping").fields.get("is_sleeping") is not True:
            return
        if is_paused:
            told = _is_awake(self._client.ask("/metrics").text)
            if told or (told is None and was_left_paused):
                return
        raise EngineNotReady(
            f"{self.spec} sleeps, expected it awake for a load", hint="Wake it: POST /wake_up; it is then loaded."
        )

    def _world_size(self) -> int | None:
        size = self._client.ask("/get_world_size").fields.get("world_size")
        return size if isinstance(size, int) and not isinstance(size, bool) else None

    def _extension(self, ranks: int | None) -> Extension | None:
        """Asked of the server's settings: a call that a rank does not know leaves its ranks out of step.

        Asked once of each process: the answer takes the server a second or two (it looks over its system).
        """
        use = self._settings.extension
        if use is ExtensionUse.NEVER:
            return None
        if use is ExtensionUse.AUTO and self._has_extension is None:
            answer = self._client.ask("/server_info?config_format=json", timeout_s=_SHORT_S)
            found = _find(answer.document, _EXTENSION_KEY)
            if answer.status not in _NOT_FOUND and not (answer.is_success and isinstance(found, str)):
                raise EngineNotReady(
                    f"GET {self.spec.shown_url}/server_info answered {answer.status}: {answer.reason[:200]!r}; whether "
                    "it has our worker extension cannot be told",
                    hint="Or say so: --vllm-extension always, or never.",
                )
            self._has_extension = isinstance(found, str) and found.endswith(_EXTENSION_CLASS)
        return (
            Extension(self._client, self._settings, ranks)
            if use is ExtensionUse.ALWAYS or self._has_extension
            else None
        )

    # ---- steps of a load

    def _pause(self, turn: Turn) -> None:
        """Raises EngineNotReady where it can go on with what it has: nothing was loaded yet."""
        mode = self._settings.pause_mode.value
        where = f"POST {self.spec.shown_url}/pause?mode={mode}"
        hint = "Raise --engine-timeout, or let --pause-mode abort end running requests."
        try:
            answer = self._client.tell("/pause", params={"mode": mode, "clear_cache": "true"})
        except EngineSilent as problem:
            if not turn.may_resume:
                raise
            trouble = problem.message
        else:
            if answer.status in _NOT_FOUND:
                raise EngineNotReady(f"{where} answered {answer.status}", hint=_DEV_MODE_HINT)
            if answer.is_success and answer.fields.get("status") == "paused":
                return
            trouble = f"{where} answered {answer.status}: {answer.reason or 'nothing'}"
            if not turn.may_resume:
                raise EngineRefused(trouble)
        self._resume()
        raise EngineNotReady(f"{trouble}; it goes on with the weights it has", hint=hint)

    def _check_untouched(self, load: Load, turn: Turn) -> None:
        """Draining may have taken minutes."""
        if turn.is_untouched():
            return
        if turn.may_resume:
            self._resume()
        raise EngineNotReady(f"files in {load.path} changed before {self.spec} could load them", hint=_PULL_HINT)

    def _reload_by(self, extension: Extension, load: Load, turn: Turn) -> None:
        try:
            extension.reload(load)
        except EngineNotReady:  # no rank has changed
            if turn.may_resume:
                self._resume()
            raise

    def _reload(self, load: Load, ranks: int | None) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(load.path)}}
        answer = self._client.tell("/collective_rpc", body)
        if answer.status in _NOT_FOUND:
            raise self._refused("/collective_rpc", answer, hint=_DEV_MODE_HINT)
        if not answer.is_success:
            if ranks is None or ranks > 1:
                raise EngineOutOfStep(
                    f"loading {load.path}: POST {self.spec.shown_url}/collective_rpc answered {answer.status}: "
                    f"{answer.reason}; answers of its other ranks may still be waiting",
                    hint="Restart the engine; with our worker extension such a failure can be told and mended.",
                )
            raise self._refused("/collective_rpc", answer, f"loading {load.path}: ")
        results = answer.fields.get("results")
        if not isinstance(results, list) or not results or (ranks is not None and len(results) != ranks):
            raise EngineUncertain(
                f"POST {self.spec.shown_url}/collective_rpc answered {answer.text[:200]!r}, expected "
                f"a result of each of {ranks or 'its'} ranks"
            )
        if any(result is not None for result in results):
            raise EngineOutOfStep(f"{self.spec} answered a reload with {str(results)[:200]}: of another call")

    def _clear_prefix_cache(self) -> None:
        """200 with `success: false` while requests run: then by force (E6)."""
        answer = self._client.tell("/reset_prefix_cache")
        if answer.fields.get("success") is not True:
            answer = self._client.tell("/reset_prefix_cache", params={"reset_running_requests": "true"})
        if not answer.is_success or answer.fields.get("success") is not True:
            raise self._refused("/reset_prefix_cache", answer)

    def _tell_version(self, version: str) -> str | None:
        answer = self._client.tell("/update_weight_version", {"new_version": version})
        if answer.status in _NOT_FOUND:
            return None
        told = self._weight_version()
        if not answer.is_success or told != version:
            raise EngineUncertain(
                f"{self.spec} was told weight version {version} (answer {answer.status}), and now tells {told}"
            )
        return told

    def _resume(self) -> None:
        answer = self._client.tell("/resume", timeout_s=_SHORT_S)
        if not answer.is_success or answer.fields.get("status") != "resumed" or self._is_paused():
            raise EngineUncertain(f"POST {self.spec.shown_url}/resume answered {answer.status}: {answer.reason}")

    def _probe(self) -> None:
        try:
            check_completion(self._client)
        except (EngineRefused, EngineUncertain, EngineUnreachable) as problem:
            self._client.tell("/pause", params={"mode": "abort"}, timeout_s=_SHORT_S)
            raise EngineUncertain(f"probe after the load: {problem.message}") from None

    def _refused(self, path: str, answer: Answer, doing: str = "", hint: str | None = None) -> EngineRefused:
        return EngineRefused(
            f"{doing}POST {self.spec.shown_url}{path} answered {answer.status}: {answer.reason or 'nothing'}", hint=hint
        )


def _is_awake(metrics: str) -> bool | None:
    """From the server's metrics: all of its engines; None where they do not tell."""
    values = [
        line.rpartition(" ")[2]
        for line in metrics.splitlines()
        if line.startswith("vllm:engine_sleep_state{") and 'sleep_state="awake"' in line
    ]
    return all(value in ("1", "1.0") for value in values) if values else None


def _find(document: Any, key: str) -> Any:
    """The first value under `key` anywhere in a document, looked for without recursion."""
    waiting = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if key in item:
                return item[key]
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return None
