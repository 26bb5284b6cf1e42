"""What is answered to a path of the daemon's HTTP side: a status code and a body, from the last snapshot. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from vime_sync.daemon.board import EngineView, Snapshot
from vime_sync.daemon.metrics import Metrics

PATHS = {
    "/healthz": "200 when this host is ready, else 503 and why",
    "/healthz/engines": "200 when all engines serve the local version, else 503; all of them",
    "/healthz/HOST:PORT": "the same for the engine at that address",
    "/status": "the status document",
    "/metrics": "for Prometheus",
}


@dataclass(frozen=True)
class Answer:
    status: HTTPStatus
    body: bytes
    content_type: str


def json_answer(status: HTTPStatus, document: Mapping[str, Any]) -> Answer:
    return Answer(status, json.dumps(dict(document)).encode() + b"\n", "application/json")


def answer(path: str, snapshot: Snapshot, metrics: Metrics) -> Answer:
    """`path` is decoded and has no query."""
    if path == "/":
        listed = "".join(f"{name:<20} {meaning}\n" for name, meaning in PATHS.items())
        return Answer(HTTPStatus.OK, f"vime-sync\n\n{listed}".encode(), "text/plain; charset=utf-8")
    if path == "/metrics":
        return Answer(HTTPStatus.OK, *metrics.text())
    if path == "/healthz":
        return _host(snapshot)
    if path == "/status":
        return json_answer(HTTPStatus.OK, snapshot.document) if snapshot.document else _not_yet(snapshot)
    if path == "/healthz/engines":
        are_ready = all(view.is_ready for view in snapshot.engines)
        facts = [{"engine": view.address, **_facts(view)} for view in snapshot.engines]
        return json_answer(_status(are_ready), {"ready": are_ready, "engines": facts})
    if path.startswith("/healthz/"):
        return _engine(path.removeprefix("/healthz/"), snapshot.engines)
    return json_answer(HTTPStatus.NOT_FOUND, {"error": "no such path", "paths": list(PATHS)})


def _host(snapshot: Snapshot) -> Answer:
    return json_answer(HTTPStatus.OK, {"ready": True}) if snapshot.is_ready else _not_yet(snapshot)


def _not_yet(snapshot: Snapshot) -> Answer:
    return json_answer(HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reason": snapshot.reason})


def _engine(address: str, views: Iterable[EngineView]) -> Answer:
    """Webhooks may share an address: then all of them have to be ready."""
    views = tuple(views)
    same = [view for view in views if view.address.lower() == address.lower()]
    if not same:
        known = sorted({view.address for view in views})
        return json_answer(HTTPStatus.NOT_FOUND, {"error": "no such engine", "engines": known})
    worst = min(same, key=lambda view: view.is_ready)
    return json_answer(_status(worst.is_ready), _facts(worst))


def _facts(view: EngineView) -> dict[str, Any]:
    facts: dict[str, Any] = {"ready": view.is_ready, "state": view.state, "version": view.version}
    if not view.is_ready:
        facts["reason"] = view.error or "it does not hold the committed local version yet"
    return facts


def _status(is_ready: bool) -> HTTPStatus:
    return HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
