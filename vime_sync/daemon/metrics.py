"""What the daemon counts and shows to Prometheus.

Owns names, labels and buckets: `METRICS` is the whole table. Never does I/O, never raises into the loop for odd
values, and no label ever holds a secret: an engine is named by its HOST:PORT, not by its URL, whose path may be one.

What only grows is counted when it happens. What is so now (versions, states) is taken from the last snapshot at the
moment of the scrape, so that its numbers belong together and an engine that left the settings is gone. What is not
known has no sample.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vime_sync import __version__, errors
from vime_sync.daemon.board import EngineView, Snapshot
from vime_sync.engines.interface import EngineReport, EngineState
from vime_sync.errors import SyncError, exit_code
from vime_sync.plan import Result
from vime_sync.reconcile.request import Report

# What every Prometheus understands; the library's own says 1.0.0 since one of its releases.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PHASES = ("plan", "seed", "apply", "reload", "sync", "hook")
# From a tiny delta on a local disk to the first seed of a large model over a slow network.
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
# A phase with nothing to do takes microseconds; a thousand of those would hide how long the real ones take.
_NOTHING_DONE_S = 0.0001
_STANDINGS = ("ready", "updating", "damaged", "absent")


@dataclass(frozen=True)
class Described:
    """One metric as it is told to people and to Prometheus. `kind` is its Prometheus type."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


METRICS = (
    Described("vime_sync_build_info", "gauge", ("version",), "Always 1; the label is the version of vime-sync."),
    Described("vime_sync_ready", "gauge", (), "1 when this host is at the version it should be at, as /healthz says."),
    Described(
        "vime_sync_local_state", "gauge", ("state",), "1 for the state of LOCAL: ready, updating, damaged, absent."
    ),
    Described("vime_sync_local_version", "gauge", (), "The version committed in LOCAL."),
    Described("vime_sync_latest_version", "gauge", (), "The newest ready version on the share."),
    Described("vime_sync_versions_behind", "gauge", (), "By how many versions LOCAL is behind the share."),
    Described("vime_sync_durable", "gauge", (), "1 when the committed version is known to be on the disk."),
    Described("vime_sync_damaged_tensors", "gauge", (), "Tensors and files found wrong that are not yet rebuilt."),
    Described(
        "vime_sync_unusable_versions", "gauge", ("id",), "Versions above the newest ready one, by what is wrong."
    ),
    Described("vime_sync_engine_state", "gauge", ("engine", "state"), "1 for the state each engine is in."),
    Described("vime_sync_engine_ready", "gauge", ("engine",), "1 when the engine serves the committed local version."),
    Described("vime_sync_engine_version", "gauge", ("engine",), "The version the engine is known to have loaded."),
    Described("vime_sync_polls_total", "counter", (), "Looks at the share."),
    Described("vime_sync_passes_total", "counter", ("result",), "Passes that ended well, by what they did."),
    Described("vime_sync_pass_seconds", "histogram", (), "How long a pass took that changed the local version."),
    Described("vime_sync_phase_seconds", "histogram", ("phase",), "How long a phase of a pass took."),
    Described("vime_sync_read_bytes_total", "counter", (), "Bytes read by passes that ended well."),
    Described("vime_sync_written_bytes_total", "counter", (), "Bytes written by passes that ended well."),
    Described("vime_sync_tensors_changed_total", "counter", (), "Tensors that a new version changed."),
    Described("vime_sync_tensors_repaired_total", "counter", (), "Tensors that were found wrong and rebuilt."),
    Described("vime_sync_new_streams_total", "counter", (), "How often the trainer was seen to begin a new stream."),
    Described("vime_sync_errors_total", "counter", ("id", "code"), "Passes that failed, by error id and exit code."),
    Described("vime_sync_engine_reload_seconds", "histogram", ("engine",), "How long an engine's good reload took."),
    Described("vime_sync_engine_reload_failures_total", "counter", ("engine", "id"), "Reloads that failed, by error."),
)
_TABLE = {described.name: described for described in METRICS}


class Metrics:
    """Everything countable of one daemon, in a registry of its own. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._polls = self._counter("vime_sync_polls_total")
        self._passes = self._counter("vime_sync_passes_total")
        self._pass_seconds = self._histogram("vime_sync_pass_seconds")
        self._phase_seconds = self._histogram("vime_sync_phase_seconds")
        self._read = self._counter("vime_sync_read_bytes_total")
        self._written = self._counter("vime_sync_written_bytes_total")
        self._changed = self._counter("vime_sync_tensors_changed_total")
        self._repaired = self._counter("vime_sync_tensors_repaired_total")
        self._new_streams = self._counter("vime_sync_new_streams_total")
        self._errors = self._counter("vime_sync_errors_total")
        self._reload_seconds = self._histogram("vime_sync_engine_reload_seconds")
        self._reload_failures = self._counter("vime_sync_engine_reload_failures_total")
        self._now = _Now()
        self._registry.register(self._now)
        ProcessCollector(registry=self._registry)
        self._guard = threading.Lock()
        self._counted_engines: dict[str, set[str]] = {}  # engine -> error ids
        # A series that begins at its first event hides that event from rate() and increase().
        for result in (Result.UPDATED, Result.ALREADY_CURRENT, Result.ROLLED_BACK):
            self._passes.labels(result.value)
        for phase in PHASES:
            self._phase_seconds.labels(phase)
        for item in vars(errors).values():
            if isinstance(item, type) and issubclass(item, SyncError) and not issubclass(item, errors.Interrupted):
                self._errors.labels(item.id, str(item.code))

    def passed(self, report: Report) -> None:
        """A pass ended well. Phases with nothing to do are not observed; `report.seconds` may name others."""
        self._passes.labels(report.result.value).inc()
        self._read.inc(report.bytes_read)
        self._written.inc(report.bytes_written)
        self._changed.inc(report.tensors_changed)
        self._repaired.inc(report.tensors_repaired)
        if report.new_stream:
            self._new_streams.inc()
        if report.result in (Result.UPDATED, Result.ROLLED_BACK) and "total" in report.seconds:
            self._pass_seconds.observe(report.seconds["total"])
        for phase, seconds in report.seconds.items():
            if phase in PHASES and seconds >= _NOTHING_DONE_S:
                self.phase(phase, seconds)

    def failed(self, error: SyncError) -> None:
        """A pass, or what surrounds it, failed."""
        self._errors.labels(error.id, str(exit_code(error))).inc()

    def phase(self, name: str, seconds: float) -> None:
        """One of PHASES that no report tells of: a sync in the background, a hook."""
        if name not in PHASES:
            raise ValueError(f"{name!r} is none of {PHASES}")
        self._phase_seconds.labels(name).observe(seconds)

    def polled(self) -> None:
        """The share was looked at."""
        self._polls.inc()

    def engine_loaded(self, report: EngineReport) -> None:
        """A load was tried and ended; a report of a mere look counts nothing."""
        if not report.was_tried:
            return
        engine = report.spec.address
        with self._guard:
            error_ids = self._counted_engines.setdefault(engine, set())
            if report.error is None:
                self._reload_seconds.labels(engine).observe(report.seconds)
            else:
                error_ids.add(report.error.id)
                self._reload_failures.labels(engine, report.error.id).inc()

    def observe(self, snapshot: Snapshot) -> None:
        """How things stand now. Engines that it does not name are forgotten, their counts too."""
        self._now.snapshot = snapshot
        named = {view.address for view in snapshot.engines}
        with self._guard:
            for engine in self._counted_engines.keys() - named:
                self._reload_seconds.labels(engine)  # only what is there can be removed
                self._reload_seconds.remove(engine)
                for error_id in self._counted_engines.pop(engine):
                    self._reload_failures.remove(engine, error_id)

    def unusable_versions(self, counts: Mapping[str, int]) -> None:
        """Error id -> how many published versions above the newest ready one cannot be used for that reason."""
        self._now.unusable = dict(counts)

    def text(self) -> tuple[bytes, str]:
        """The body of /metrics and its content type."""
        return generate_latest(_WithoutCreationTimes(self._registry)), CONTENT_TYPE

    def _counter(self, name: str) -> Counter:
        return Counter(name, _TABLE[name].help, _TABLE[name].labels, registry=self._registry)

    def _histogram(self, name: str) -> Histogram:
        return Histogram(name, _TABLE[name].help, _TABLE[name].labels, registry=self._registry, buckets=_BUCKETS_S)


class _WithoutCreationTimes(CollectorRegistry):
    """A registry as it is scraped: without the library's `_created` series, which double the number of counters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._whole = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._whole.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class _Now(Collector):
    """The gauges, made from the last snapshot when they are asked for."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.unusable: Mapping[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        snapshot, document = self.snapshot, self.snapshot.document
        yield _gauge("vime_sync_build_info", [((__version__,), 1)])
        yield _gauge("vime_sync_ready", [((), snapshot.is_ready)])
        standing = document.get("state")
        yield _gauge("vime_sync_local_state", [((state,), state == standing) for state in _STANDINGS if standing])
        for name, key in (
            ("vime_sync_local_version", "local_version"),
            ("vime_sync_latest_version", "latest_version"),
            ("vime_sync_versions_behind", "behind"),
            ("vime_sync_durable", "durable"),
        ):
            yield _gauge(name, _known((), document.get(key)))
        damaged = document.get("damaged")
        yield _gauge("vime_sync_damaged_tensors", [((), len(damaged))] if isinstance(damaged, (list, tuple)) else [])
        unusable = {"not_ready": 0, "malformed": 0, **self.unusable}
        yield _gauge("vime_sync_unusable_versions", [((error_id,), count) for error_id, count in unusable.items()])
        yield from _engine_gauges(snapshot.engines)


def _engine_gauges(views: Iterable[EngineView]) -> Iterator[Metric]:
    """Webhooks may share an address: they are then one engine to a dashboard, and the worst of them is shown."""
    engines: dict[str, list[EngineView]] = {}
    for view in views:
        engines.setdefault(view.address, []).append(view)
    states, ready, versions = [], [], []
    for engine, same in engines.items():
        states += [((engine, state.value), any(view.state == state.value for view in same)) for state in EngineState]
        ready.append(((engine,), all(view.is_ready for view in same)))
        loaded = [view.version for view in same if view.version is not None]
        versions += _known((engine,), min(loaded) if len(loaded) == len(same) else None)
    yield _gauge("vime_sync_engine_state", states)
    yield _gauge("vime_sync_engine_ready", ready)
    yield _gauge("vime_sync_engine_version", versions)


def _known(labels: tuple[str, ...], value: Any) -> list[tuple[tuple[str, ...], float]]:
    return [(labels, float(value))] if isinstance(value, (int, float)) else []


def _gauge(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, _TABLE[name].help, labels=_TABLE[name].labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family
