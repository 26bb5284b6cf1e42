"""One request to an engine: what is sent, and what each kind of answer, or none, is taken for.

Nothing listens, nothing answers and nothing sensible comes back are different things to whoever loads an engine:
after the first nothing was sent, after the second it may be at it still.
"""

import gzip
import json
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine_story import QUICK, SAFETY_S, meanwhile
from tests.fake_engine import Fault
from tests.fake_http import Answer as Reply
from tests.fake_webhook import FakeWebhook
from tests.raw_server import RawServer, raw_server, response
from vime_sync.engines.http import Client
from vime_sync.engines.spec import parse_engine
from vime_sync.errors import EngineBusy, EngineSilent, EngineUncertain, EngineUnreachable

KEY = "sk-VERY-SECRET-KEY"
HASTY = replace(QUICK, timeout_s=1.0, look_timeout_s=1.0)


def client_of(server: RawServer | FakeWebhook, settings: Any = QUICK) -> Client:
    return Client(parse_engine(f"vllm=http://127.0.0.1:{server.port}"), settings)


# ---- what is sent


def test_the_key_is_sent_and_each_request_has_its_own_connection() -> None:
    with raw_server(response(b"{}")) as server:
        client = client_of(server, replace(QUICK, api_key=KEY))
        assert client.ask("/a?b=c").document == {}
        assert client.tell("/d", {"e": 1}, params={"f": "g"}).is_success
        asked, told = server.requests
    assert asked.startswith(b"GET /a?b=c HTTP/1.1\r\n") and told.startswith(b"POST /d?f=g HTTP/1.1\r\n")
    for request in (asked, told):
        assert f"\r\nAuthorization: Bearer {KEY}\r\n".encode() in request
        assert b"\r\nConnection: close\r\n" in request
    assert json.loads(told.partition(b"\r\n\r\n")[2]) == {"e": 1}


def test_without_a_key_nobody_is_authorized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even from ~/.netrc, where `requests` would look."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with raw_server(response(b"{}")) as server:
        client_of(server).ask("/health")
        assert b"authorization" not in server.requests[0].lower()


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    with FakeWebhook() as elsewhere:
        away = response(b"", status="307 Temporary Redirect", headers=[f"Location: {elsewhere.url}/"])
        with raw_server(away) as server:
            client = client_of(server, replace(QUICK, api_key=KEY))
            assert client.ask("/health").status == 307
            answer = client.tell("/pause", {})
            assert (answer.status, answer.is_success) == (307, False)
        assert elsewhere.calls == []


# ---- answers of all kinds


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (b"", None),
        (b"<html>busy</html>", None),
        (b"\xff\xfe\x00", None),
        (b"[1, 2]", [1, 2]),
        (b"null", None),
        (b'"paused"', "paused"),
        (b"[" * 100_000, None),
        (b'{"a": 1} trailing', None),
    ],
)
def test_a_body_that_is_no_object_has_no_fields(body: bytes, document: Any) -> None:
    with FakeWebhook(reply=Reply(200, body)) as fake:
        answer = client_of(fake).tell("/x")
        assert (answer.status, answer.document, dict(answer.fields)) == (200, document, {})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"error": {"message": "out of\nmemory", "code": 500}}, "out of memory"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"error": {"code": 7}}, '{"error":{"code":7}}'),
        ({"detail": "Not Found"}, "Not Found"),
        ({"success": False, "message": "no such path"}, "no such path"),
        (["what"], '["what"]'),
        (b"Internal Server Error", "Internal Server Error"),
        (b"", ""),
    ],
)
def test_an_error_says_why(body: Any, reason: str) -> None:
    with FakeWebhook(reply=Reply(500, body)) as fake:
        answer = client_of(fake).tell("/x")
        assert (answer.status, answer.reason) == (500, reason)


def test_a_long_reason_is_cut() -> None:
    with FakeWebhook(reply=Reply(502, b"<p>" * 10_000)) as fake:
        assert len(client_of(fake).tell("/x").reason) < 500


@pytest.mark.parametrize("body", [{"error": f"wrong key: Bearer {KEY}"}, f"<p>{KEY}</p>".encode(), {"detail": [KEY]}])
def test_an_answer_that_repeats_the_key_does_not_give_it_away(body: Any) -> None:
    with FakeWebhook(reply=Reply(401, body)) as fake:
        answer = client_of(fake, replace(QUICK, api_key=KEY)).tell("/x")
        assert KEY not in answer.reason and KEY not in answer.text and KEY not in repr(answer)


# ---- no answer


def test_where_nothing_listens_nothing_was_sent() -> None:
    with FakeWebhook() as fake:
        fake.stop()
        for call in (client_of(fake).ask, client_of(fake).tell):
            with pytest.raises(EngineUnreachable, match="Connection refused") as caught:
                call("/x")
            assert not isinstance(caught.value, EngineBusy)


@pytest.mark.parametrize("host", ["a..b", "*.x.invalid", "a" * 70 + ".invalid", "no-such-host.invalid"])
def test_a_name_that_leads_nowhere_is_unreachable(host: str) -> None:
    client = Client(parse_engine(f"webhook=http://{host}/?token=SECRET"), QUICK)
    with pytest.raises(EngineUnreachable) as caught:
        client.tell("", {})
    assert "SECRET" not in caught.value.message


def test_a_question_without_answer_means_busy_and_an_order_means_silent() -> None:
    with FakeWebhook() as fake:
        fake.faults["/x"] = Fault(hang=threading.Event())
        with pytest.raises(EngineBusy):
            client_of(fake, HASTY).ask("/x")
        with pytest.raises(EngineSilent, match="1 s"):
            client_of(fake, HASTY).tell("/x")


def test_a_connection_cut_before_the_answer() -> None:
    with FakeWebhook() as fake:
        fake.faults["/x"] = Fault(close=True)
        with pytest.raises(EngineSilent) as caught:
            client_of(fake).tell("/x")
        assert "(" not in caught.value.message.partition("/x")[2]  # words, no Python objects
        with pytest.raises(EngineUnreachable):
            client_of(fake).ask("/x")


@pytest.mark.parametrize(
    "content",
    [
        response(b'{"status": "paused"}')[:-5],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 2",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
    ],
)
def test_an_answer_that_breaks_off_or_is_none_is_no_answer(content: bytes) -> None:
    with raw_server(content) as server:
        with pytest.raises(EngineSilent):
            client_of(server).tell("/x", {})
        with pytest.raises(EngineUnreachable):
            client_of(server).ask("/x")


# ---- answers without end


def _ends(call: Callable[[], Any], stop: Callable[[], Any]) -> BaseException | None:
    """What the call raises while the server goes on and on."""
    with meanwhile(call) as calling:
        try:
            return calling.exception(SAFETY_S / 3)
        finally:
            stop()


@pytest.mark.parametrize("what", ["body", "headers"])
def test_an_answer_that_trickles_is_not_waited_for_without_end(what: str) -> None:
    """Each byte comes in time; all of them never do."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"
    content = head + b" " * 9999 if what == "body" else b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 9999
    with raw_server(content, pace_s=0.02) as server:
        client = client_of(server, HASTY)
        assert isinstance(_ends(lambda: client.tell("/x", {}), server.over.set), EngineSilent)
    with raw_server(content, pace_s=0.02) as server:
        client = client_of(server, HASTY)
        assert isinstance(_ends(lambda: client.ask("/x"), server.over.set), EngineBusy)


def test_a_body_without_end_is_not_kept() -> None:
    with FakeWebhook() as fake:
        fake.faults["/x"] = Fault(huge_bytes=1 << 28)
        client = client_of(fake)
        with pytest.raises(EngineUncertain):
            client.tell("/x", {})
        with pytest.raises(EngineUnreachable):
            client.ask("/x")


def test_a_small_body_that_inflates_is_not_kept_either() -> None:
    packed = gzip.compress(bytes(1 << 27))
    with raw_server(response(packed, headers=["Content-Encoding: gzip"])) as server:
        client = client_of(server)
        tracemalloc.start()
        try:
            with pytest.raises(EngineUncertain):
                client.tell("/x", {})
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < 48 << 20


def test_a_webhook_is_called_at_exactly_its_url() -> None:
    with FakeWebhook() as fake:
        Client(parse_engine(f"webhook={fake.url}/a%20b/?x=1&y=a%2Bb"), QUICK).tell("", {})
        assert [(call.path, call.query) for call in fake.calls] == [("/a%20b/", {"x": "1", "y": "a+b"})]
