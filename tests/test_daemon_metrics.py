"""What is counted of the daemon, read as Prometheus does: the table of metrics, passes, phases, errors."""

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.toolkit_metrics import DOCUMENT, ENGINE, VIEW, busy_metrics, report, samples, text
from vime_sync import errors
from vime_sync.daemon.board import Snapshot
from vime_sync.daemon.metrics import METRICS, PHASES, Metrics
from vime_sync.engines.interface import EngineReport, EngineState
from vime_sync.plan import Result

# ---- the table


def test_the_table_of_metrics_is_what_is_shown() -> None:
    told = {metric.name: (metric.kind, metric.help, set(metric.labels)) for metric in METRICS}
    shown = {}
    for family in text_string_to_metric_families(text(busy_metrics())):
        if not family.name.startswith("process_"):
            # The parser takes the ending off a counter's name.
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            shown[name] = (family.type, family.documentation, labels)
    assert shown == told


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert metric.name.startswith("vime_sync_")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
        assert metric.kind != "histogram" or metric.name.endswith("_seconds"), metric
        assert not metric.name.endswith(("_ms", "_milliseconds", "_mb", "_kb", "_percent")), metric
        assert metric.help.endswith("."), metric
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_the_process_is_measured_too() -> None:
    found = samples(Metrics())
    assert found["process_resident_memory_bytes"] > 1 << 20
    assert found["process_open_fds"] > 0


def test_several_live_in_one_process() -> None:
    first, second = Metrics(), Metrics()
    first.polled()
    assert samples(first)["vime_sync_polls_total"] == 1
    assert samples(second)["vime_sync_polls_total"] == 0


def test_no_series_tells_when_another_one_began() -> None:
    assert "_created" not in text(busy_metrics())


def test_the_content_type_is_the_one_that_every_prometheus_knows() -> None:
    assert Metrics().text()[1] == "text/plain; version=0.0.4; charset=utf-8"


# ---- passes


def test_a_pass_is_counted_with_what_it_moved() -> None:
    metrics = Metrics()
    metrics.passed(report(bytes_read=100, bytes_written=40, tensors_changed=3, tensors_repaired=1))
    metrics.passed(report(bytes_read=1, bytes_written=2, tensors_changed=4, result=Result.ROLLED_BACK, new_stream=True))
    found = samples(metrics)
    assert found['vime_sync_passes_total{result="updated"}'] == 1
    assert found['vime_sync_passes_total{result="rolled_back"}'] == 1
    assert found['vime_sync_passes_total{result="already_current"}'] == 0
    assert found["vime_sync_read_bytes_total"] == 101
    assert found["vime_sync_written_bytes_total"] == 42
    assert found["vime_sync_tensors_changed_total"] == 7
    assert found["vime_sync_tensors_repaired_total"] == 1
    assert found["vime_sync_new_streams_total"] == 1
    assert found["vime_sync_pass_seconds_count"] == 2
    assert found["vime_sync_pass_seconds_sum"] == pytest.approx(4.4)


def test_only_phases_that_took_time_are_observed() -> None:
    """An idle pass has a seed of no time at all: a thousand of them must not hide how long the one seed took."""
    metrics = Metrics()
    seconds = {"plan": 0.001, "seed": 0.0, "apply": 2.0, "reload": 0.000004, "total": 2.2}
    metrics.passed(report(result=Result.ALREADY_CURRENT, seconds=seconds))
    found = samples(metrics)
    for phase, count in {"plan": 1, "seed": 0, "apply": 1, "reload": 0}.items():
        assert found[f'vime_sync_phase_seconds_count{{phase="{phase}"}}'] == count
    assert found['vime_sync_phase_seconds_sum{phase="apply"}'] == 2.0
    assert found["vime_sync_pass_seconds_count"] == 0


def test_phases_that_no_report_knows_are_told_one_by_one() -> None:
    metrics = Metrics()
    metrics.phase("sync", 12.0)
    metrics.phase("hook", 0.004)
    found = samples(metrics)
    assert found['vime_sync_phase_seconds_sum{phase="sync"}'] == 12.0
    assert found['vime_sync_phase_seconds_bucket{le="0.005",phase="hook"}'] == 1
    with pytest.raises(ValueError, match="none of"):
        metrics.phase("tensor model.layers.0", 1.0)


def test_a_report_may_name_other_phases() -> None:
    metrics = Metrics()
    metrics.passed(report(seconds={"plan": 1.0, "something": 5.0}))
    phases = {key.partition('phase="')[2][:-2] for key in samples(metrics) if "phase_seconds_count" in key}
    assert phases == set(PHASES)


def test_buckets_tell_five_milliseconds_from_an_hour() -> None:
    metrics = Metrics()
    for seconds in (0.004, 0.4, 40.0, 2000.0, 4000.0):
        metrics.phase("apply", seconds)
    found = samples(metrics)
    counts = [found[f'vime_sync_phase_seconds_bucket{{le="{le}",phase="apply"}}'] for le in ("0.005", "0.5", "60.0")]
    assert counts == [1, 2, 3]
    assert found['vime_sync_phase_seconds_bucket{le="3600.0",phase="apply"}'] == 4
    assert found['vime_sync_phase_seconds_bucket{le="+Inf",phase="apply"}'] == 5


# ---- errors


def test_errors_are_counted_by_id_and_code() -> None:
    metrics = Metrics()
    metrics.failed(errors.ChecksumMismatch("wrong", version=8, tensors=["a"]))
    metrics.failed(errors.ChecksumMismatch("wrong again"))
    metrics.failed(errors.Interrupted(15, "SIGTERM"))
    found = samples(metrics)
    assert found['vime_sync_errors_total{code="12",id="checksum_mismatch"}'] == 2
    assert found['vime_sync_errors_total{code="143",id="interrupted"}'] == 1


def test_every_error_is_there_before_it_happens() -> None:
    """increase() over a series that begins at 1 is 0: the first error of its kind would go unseen."""
    found = samples(Metrics())
    for error in (errors.NotReady, errors.Malformed, errors.NotOurs, errors.EngineUncertain, errors.SyncError):
        assert found[f'vime_sync_errors_total{{code="{error.code}",id="{error.id}"}}'] == 0
    assert not any("interrupted" in key for key in found)


# ---- threads


def test_counting_and_scraping_from_many_threads_loses_nothing() -> None:
    metrics = Metrics()
    start = threading.Barrier(4)

    def count() -> None:
        start.wait(timeout=30)
        for number in range(100):
            metrics.passed(report(bytes_read=1))
            metrics.observe(Snapshot(DOCUMENT, True, "", (VIEW,) if number % 2 else ()))
            metrics.engine_loaded(EngineReport(ENGINE, EngineState.AT_VERSION, was_tried=True, seconds=1))

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    start.wait(timeout=30)
    for _ in range(20):
        samples(metrics)
    for thread in threads:
        thread.join(timeout=60)
    assert samples(metrics)["vime_sync_read_bytes_total"] == 300
