"""Anything else that is told of each version: one POST, to exactly its URL, and any 2xx is success."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests import toolkit
from tests.engine_story import QUICK, Story, message, outcome, small_host
from tests.fake_engine import Fault
from tests.fake_http import Answer
from tests.fake_webhook import FakeWebhook
from tests.host import Host
from vime_sync.engines.spec import parse_engine
from vime_sync.reconcile.serving import make_fleet, serve


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return small_host(tmp_path)


@pytest.fixture
def story(host: Host) -> Story:
    return Story(host)


def test_the_document(host: Host, story: Story) -> None:
    with FakeWebhook() as hook:
        assert outcome(story.serve(hook)[0]) == ("at_version", 1, None)
        expected = {
            "schema": "vime-sync/reload/1",
            "version": 1,
            "path": str(host.local),
            "lineage": story.weights().lineage,
        }
        assert hook.documents == [expected] and host.local.is_absolute()
        assert hook.calls[0].headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_success_whatever_it_says(host: Host, story: Story, status: int) -> None:
    body = None if status == 204 else b"<html>failed: error</html>"
    with FakeWebhook(reply=Answer(status, body)) as hook:
        assert outcome(story.serve(hook)[0]) == ("at_version", 1, None)
        assert outcome(story.serve(hook)[0]) == ("at_version", 1, None)
        assert len(hook.documents) == 1  # of each version once


@pytest.mark.parametrize("status", [301, 307, 400, 404, 500])
def test_anything_else_is_not(host: Host, story: Story, status: int) -> None:
    with FakeWebhook(reply=Answer(status, {"error": "not in the mood"})) as hook:
        report = story.serve(hook)[0]
        assert outcome(report) == ("failed", None, 31)
        assert str(status) in message(report) and "not in the mood" in message(report)
        assert len(hook.documents) == 1


def test_after_a_failure_the_next_pull_tells_it_again(host: Host) -> None:
    with FakeWebhook() as hook:
        hook.faults["/"] = Fault(status=503)
        engine = f"webhook={hook.url}/"
        assert host.pull("--engine", engine).code == 31
        hook.faults.clear()
        assert host.pulled("--engine", engine)["engines"][0]["state"] == "at_version"
        assert len(hook.documents) == 2


def test_what_said_no_may_have_acted_all_the_same(host: Host, story: Story) -> None:
    """It was told of version 2 and answered 500; back at version 1 it has to hear of that."""
    with FakeWebhook() as hook:
        story.serve(hook)
        host.publish()
        host.pulled()
        hook.faults["/"] = Fault(status=500, when="after")
        assert outcome(story.serve(hook)[0])[2] == 31
        hook.faults.clear()
        host.pulled(version=1)
        assert outcome(story.serve(hook)[0]) == ("at_version", 1, None)
        assert [document["version"] for document in hook.documents] == [1, 2, 1]


def test_no_answer_is_not_a_yes_and_it_is_told_again(host: Host) -> None:
    hasty = Story(host, replace(QUICK, timeout_s=1.0))
    with FakeWebhook() as hook:
        hook.faults["/"] = Fault(hang=threading.Event())
        assert outcome(hasty.serve(hook)[0]) == ("unknown", None, 32)
        assert len(hook.documents) == 1
        hook.faults.clear()
        assert outcome(hasty.serve(hook)[0]) == ("at_version", 1, None)


def test_a_receiver_that_is_down_is_told_when_it_is_up(host: Host, story: Story) -> None:
    with FakeWebhook() as hook:
        hook.stop()
        assert outcome(story.serve(hook)[0]) == ("unreachable", None, 30)
        hook.start()
        assert outcome(story.serve(hook)[0]) == ("at_version", 1, None)
        hook.restart()
        assert not story.look(hook).lacking  # it holds no weights that a restart could lose
        host.publish()
        host.pulled()
        assert story.look(hook).lacking
        story.serve(hook)
        assert [document["version"] for document in hook.documents] == [1, 2]


def test_a_rollback_is_told_too(host: Host, story: Story) -> None:
    with FakeWebhook() as hook:
        host.publish()
        for version in (2, 1, 2):
            host.pulled(version=version)
            assert outcome(story.serve(hook)[0]) == ("at_version", version, None)
        assert [document["version"] for document in hook.documents] == [2, 1, 2]
        assert hook.documents[0] == hook.documents[2]


def test_it_is_told_of_names_that_no_engine_of_the_base_could_load(host: Host, story: Story) -> None:
    toolkit.publish_full(host.shared, 2, {"other": host.models[1]["scalar"]})
    host.pulled()
    with FakeWebhook() as hook:
        assert outcome(story.serve(hook)[0]) == ("at_version", 2, None)


def test_two_at_one_place_are_two(host: Host, story: Story) -> None:
    """They differ in the query alone, which is never shown."""
    with FakeWebhook() as hook:
        specs = [parse_engine(f"webhook={hook.url}/?token={token}") for token in ("one", "two")]
        for _ in range(2):
            fleet = make_fleet(specs, QUICK)
            serve(story.context(), fleet)
            assert [outcome(report) for report in fleet.reports] == [("at_version", 1, None)] * 2
        assert sorted(call.query["token"] for call in hook.calls) == ["one", "two"]
