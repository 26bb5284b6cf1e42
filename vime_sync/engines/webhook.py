"""Anything else: a POST of one JSON document, to exactly the URL given. Any 2xx is success."""

from __future__ import annotations

from vime_sync.engines.http import Client
from vime_sync.engines.interface import Load, Sighting, Turn
from vime_sync.engines.spec import EngineSettings, EngineSpec
from vime_sync.errors import EngineNotReady, EngineUncertain


class WebhookEngine:
    """Tells nothing of itself: it is told of each version once, and of nothing else."""

    def __init__(self, spec: EngineSpec, settings: EngineSettings) -> None:
        self.spec = spec
        self._client = Client(spec, settings)

    def look(self) -> Sighting:
        return Sighting(None)

    def load(self, load: Load, turn: Turn) -> Sighting:
        """A no is taken for a not yet: what stands behind the URL is not paused, and may come back any time."""
        turn.before_pause()
        document = {
            "schema": "vime-sync/reload/1",
            "version": load.weights.version,
            "path": str(load.path),
            "lineage": load.weights.lineage,
        }
        answer = self._client.tell("", document)
        if not answer.is_success:
            raise EngineNotReady(
                f"POST {self.spec.shown_url} answered {answer.status}: {answer.reason or 'nothing'}",
                hint="See to what answers there; it is told again.",
            )
        if not turn.is_untouched():
            raise EngineUncertain(f"{load.path} changed after {self.spec} was told to load it")
        return Sighting(None)
