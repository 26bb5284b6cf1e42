"""What metrics tell of how things stand now: versions, states, engines."""

from dataclasses import replace

import pytest

from tests.toolkit_metrics import DOCUMENT, ENGINE, HOOK, VIEW, busy_metrics, samples, text
from vime_sync import __version__, errors
from vime_sync.daemon.board import EngineView, Snapshot
from vime_sync.daemon.metrics import Metrics
from vime_sync.engines.interface import EngineReport, EngineState

# ---- where it stands


def test_a_snapshot_is_shown_as_it_is() -> None:
    metrics = Metrics()
    metrics.observe(Snapshot(DOCUMENT, True, "", (VIEW,)))
    found = samples(metrics)
    assert found["vime_sync_ready"] == 1
    assert found["vime_sync_local_version"] == 7
    assert found["vime_sync_latest_version"] == 9
    assert found["vime_sync_versions_behind"] == 2
    assert found["vime_sync_durable"] == 1
    assert found["vime_sync_damaged_tensors"] == 0
    assert found['vime_sync_local_state{state="ready"}'] == 1
    assert found['vime_sync_local_state{state="damaged"}'] == 0
    assert found[f'vime_sync_build_info{{version="{__version__}"}}'] == 1


def test_what_is_not_known_has_no_sample() -> None:
    """Neither before the first pass nor where the share cannot tell: 0 would be a version."""
    metrics = Metrics()
    unknown = ("local_version", "latest_version", "versions_behind", "durable", "damaged_tensors", "local_state")
    names = {f"vime_sync_{name}" for name in unknown}
    assert not names & {key.partition("{")[0] for key in samples(metrics)}
    assert samples(metrics)["vime_sync_ready"] == 0
    metrics.observe(Snapshot({**DOCUMENT, "latest_version": None, "behind": None, "damaged": ["a", "b"]}))
    found = samples(metrics)
    assert "vime_sync_latest_version" not in found
    assert "vime_sync_versions_behind" not in found
    assert found["vime_sync_damaged_tensors"] == 2


@pytest.mark.parametrize("state", list(EngineState), ids=str)
def test_an_engine_is_in_exactly_one_state(state: EngineState) -> None:
    metrics = Metrics()
    metrics.observe(Snapshot(DOCUMENT, True, "", (replace(VIEW, state=state.value),)))
    found = samples(metrics)
    states = {key: value for key, value in found.items() if key.startswith("vime_sync_engine_state")}
    assert len(states) == len(EngineState)
    assert {key for key, value in states.items() if value} == {
        f'vime_sync_engine_state{{engine="127.0.0.1:8000",state="{state.value}"}}'
    }


def test_an_engine_that_left_the_settings_is_gone() -> None:
    metrics = busy_metrics()
    other = replace(VIEW, url="http://127.0.0.1:8001", address="127.0.0.1:8001", version=None, is_ready=False)
    metrics.observe(Snapshot(DOCUMENT, False, "an engine is behind", (other,)))
    found = samples(metrics)
    assert not any("127.0.0.1:8000" in key for key in found)
    assert found['vime_sync_engine_ready{engine="127.0.0.1:8001"}'] == 0
    assert 'vime_sync_engine_version{engine="127.0.0.1:8001"}' not in found
    metrics.observe(Snapshot(DOCUMENT, True, "", (VIEW,)))
    assert samples(metrics)['vime_sync_engine_version{engine="127.0.0.1:8000"}'] == 7


def test_webhooks_at_one_address_are_one_engine_and_the_worst_is_shown() -> None:
    """Two equal series would make Prometheus refuse the whole scrape."""
    first = EngineView("http://hooks:80/a", "webhook", "hooks:80", "at_version", 7, None, True)
    second = EngineView("http://hooks:80/b", "webhook", "hooks:80", "failed", 6, "500", False)
    metrics = Metrics()
    metrics.observe(Snapshot(DOCUMENT, False, "", (first, second)))
    found = samples(metrics)
    assert found['vime_sync_engine_ready{engine="hooks:80"}'] == 0
    assert found['vime_sync_engine_version{engine="hooks:80"}'] == 6
    assert found['vime_sync_engine_state{engine="hooks:80",state="failed"}'] == 1


def test_newer_versions_that_cannot_be_used_are_counted_by_reason() -> None:
    metrics = Metrics()
    assert samples(metrics)['vime_sync_unusable_versions{id="not_ready"}'] == 0
    metrics.unusable_versions({"malformed": 2, "lineage_mismatch": 1})
    found = samples(metrics)
    assert found['vime_sync_unusable_versions{id="malformed"}'] == 2
    assert found['vime_sync_unusable_versions{id="lineage_mismatch"}'] == 1
    metrics.unusable_versions({})
    assert samples(metrics)['vime_sync_unusable_versions{id="malformed"}'] == 0
    assert not any("lineage_mismatch" in key for key in samples(metrics) if "unusable" in key)


# ---- engines


def test_reloads_are_timed_and_their_failures_counted() -> None:
    metrics = Metrics()
    tried = EngineReport(ENGINE, EngineState.AT_VERSION, 7, None, True, was_tried=True, seconds=4.0)
    metrics.engine_loaded(tried)
    refused = replace(tried, state=EngineState.FAILED, error=errors.EngineRefused("no"), is_current=False, seconds=99.0)
    metrics.engine_loaded(refused)
    metrics.engine_loaded(replace(refused, was_tried=False))  # only looked at since
    found = samples(metrics)
    assert found['vime_sync_engine_reload_seconds_count{engine="127.0.0.1:8000"}'] == 1
    assert found['vime_sync_engine_reload_seconds_sum{engine="127.0.0.1:8000"}'] == 4.0
    assert found['vime_sync_engine_reload_failures_total{engine="127.0.0.1:8000",id="engine_refused"}'] == 1


def test_a_webhooks_secret_path_is_never_shown() -> None:
    metrics = busy_metrics()
    metrics.engine_loaded(EngineReport(HOOK, EngineState.FAILED, error=errors.EngineSilent("x"), was_tried=True))
    view = EngineView(HOOK.url, "webhook", HOOK.address, "failed", None, f"POST {HOOK.url}: 500", False)
    metrics.observe(Snapshot(DOCUMENT, False, f"{HOOK.url} failed", (view,)))
    assert "hooks.example" in text(metrics)
    assert "SECRET" not in text(metrics)
