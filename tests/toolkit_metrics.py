"""One daemon's metrics with something in them, and how to read them as Prometheus does."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from vime_sync import errors
from vime_sync.daemon.board import EngineView, Snapshot
from vime_sync.daemon.metrics import Metrics
from vime_sync.engines.interface import EngineReport, EngineState
from vime_sync.engines.spec import parse_engine
from vime_sync.plan import Result
from vime_sync.reconcile.request import Report

ENGINE = parse_engine("vllm=http://127.0.0.1:8000")
HOOK = parse_engine("webhook=https://hooks.example/T0/SECRET-TOKEN?key=SECRET-KEY")
DOCUMENT: dict[str, Any] = {
    "local_version": 7,
    "latest_version": 9,
    "behind": 2,
    "durable": True,
    "state": "ready",
    "damaged": [],
}
VIEW = EngineView(ENGINE.url, "vllm", ENGINE.address, "at_version", 7, None, True)


def text(metrics: Metrics) -> str:
    return metrics.text()[0].decode()


def samples(metrics: Metrics) -> dict[str, float]:
    """`name{label="value",...}` -> value, labels sorted by name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text(metrics)):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found, f"{key} is there twice: Prometheus would refuse all of it"
            found[key] = sample.value
    return found


def report(**facts: Any) -> Report:
    seconds = {"plan": 0.01, "seed": 0.0, "apply": 2.0, "reload": 0.0, "total": 2.2}
    return Report(**{"seconds": seconds, "result": Result.UPDATED, **facts})


def busy_metrics() -> Metrics:
    """Everything was seen once."""
    metrics = Metrics()
    metrics.passed(report(new_stream=True))
    metrics.failed(errors.Malformed("bad"))
    metrics.polled()
    metrics.engine_loaded(EngineReport(ENGINE, EngineState.AT_VERSION, 7, None, True, was_tried=True, seconds=3))
    metrics.engine_loaded(
        EngineReport(ENGINE, EngineState.FAILED, None, errors.EngineRefused("no"), False, was_tried=True, seconds=3)
    )
    metrics.observe(Snapshot(DOCUMENT, True, "", (VIEW,)))
    return metrics
