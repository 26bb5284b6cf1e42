"""SGLang: pause, flush, load from disk, continue. The order is the one that trainers use; each body is read."""

from __future__ import annotations

import time

from vime_sync.engines.http import Answer, Client
from vime_sync.engines.interface import Load, Sighting, Turn
from vime_sync.engines.probe import check_completion, check_key
from vime_sync.engines.spec import EngineSettings, EngineSpec, PauseMode
from vime_sync.errors import EngineNotReady, EngineRefused, EngineSilent, EngineUncertain, EngineUnreachable

# WAIT has no name there: the server's own default decides what becomes of running requests (it ends them).
_MODES = {PauseMode.WAIT: {}, PauseMode.ABORT: {"mode": "abort"}, PauseMode.KEEP: {"mode": "retract"}}
_FLUSH_TRIES = 20
_FLUSH_PAUSE_S = 0.5
_SHORT_S = 60.0
_NOT_FOUND = (404, 405)


class SglangEngine:
    """One SGLang server."""

    def __init__(self, spec: EngineSpec, settings: EngineSettings) -> None:
        self.spec = spec
        self._settings = settings
        self._client = Client(spec, settings)

    def look(self) -> Sighting:
        answer = self._client.ask("/health")
        if not answer.is_success:
            raise EngineUnreachable(
                f"GET {self.spec.shown_url}/health answered {answer.status}: {answer.reason or 'nothing'}"
            )
        return Sighting(self._weight_version())

    def load(self, load: Load, turn: Turn) -> Sighting:
        version = str(load.weights.version)
        if self._settings.probe or turn.is_in_doubt:
            check_key(self._client)
        turn.before_pause()
        self._pause(turn)
        if not turn.is_untouched():
            if turn.may_resume:
                self._continue()
            raise EngineNotReady(f"files in {load.path} changed before {self.spec} could load them")
        self._flush(turn)
        answer = self._client.tell(
            "/update_weights_from_disk", {"model_path": str(load.path), "weight_version": version}
        )
        if not answer.is_success or answer.fields.get("success") is not True:
            raise self._refused("/update_weights_from_disk", answer, f"loading {load.path}: ")
        if not turn.is_untouched():
            raise EngineUncertain(f"{load.path} changed while {self.spec} was loading it")
        told = self._weight_version()
        if told is not None and told != version:
            raise EngineUncertain(f"{self.spec} was loaded with version {version}, and now tells {told}")
        self._continue()
        if self._settings.probe or turn.is_in_doubt:
            self._probe()
        return Sighting(told)

    def _weight_version(self) -> str | None:
        for path in ("/get_weight_version", "/get_model_info"):
            version = self._client.ask(path).fields.get("weight_version")
            if version is not None:
                return str(version)
        return None

    def _pause(self, turn: Turn) -> None:
        """Raises EngineNotReady where it can go on with what it has: nothing was loaded yet."""
        try:
            answer = self._client.tell("/pause_generation", _MODES[self._settings.pause_mode])
        except EngineSilent as problem:
            if not turn.may_resume:
                raise
            trouble = problem.message
        else:
            if answer.is_success:
                return
            trouble = f"POST {self.spec.shown_url}/pause_generation answered {answer.status}: {answer.reason}"
            if answer.status in _NOT_FOUND:
                raise EngineNotReady(trouble, hint="Update SGLang to a version that can be paused for a load.")
            if not turn.may_resume:
                raise EngineRefused(trouble)
        self._continue()
        raise EngineNotReady(
            f"{trouble}; it goes on with the weights it has",
            hint="Raise --engine-timeout, or let --pause-mode abort end running requests.",
        )

    def _flush(self, turn: Turn) -> None:
        """Refused while requests are still on their way out. Nothing was loaded yet: it can go on with what it has."""
        for tried in range(1, _FLUSH_TRIES + 1):
            answer = self._client.tell("/flush_cache", timeout_s=_SHORT_S)
            if answer.is_success and answer.fields.get("success") is not False:
                return
            if tried < _FLUSH_TRIES:
                time.sleep(_FLUSH_PAUSE_S)
        refused = self._refused("/flush_cache", answer)
        if not turn.may_resume:
            raise refused
        self._continue()
        raise EngineNotReady(f"{refused.message}; it goes on with the weights it has")

    def _continue(self) -> None:
        answer = self._client.tell("/continue_generation", {}, timeout_s=_SHORT_S)
        if not answer.is_success:
            raise EngineUncertain(
                f"POST {self.spec.shown_url}/continue_generation answered {answer.status}: {answer.reason}"
            )

    def _probe(self) -> None:
        try:
            check_completion(self._client)
        except (EngineRefused, EngineUncertain, EngineUnreachable) as problem:
            self._client.tell("/pause_generation", {"mode": "abort"}, timeout_s=_SHORT_S)
            raise EngineUncertain(f"probe after the load: {problem.message}") from None

    def _refused(self, path: str, answer: Answer, doing: str = "") -> EngineRefused:
        return EngineRefused(
            f"{doing}POST {self.spec.shown_url}{path} answered {answer.status}: {answer.reason or 'nothing'}"
        )
