"""One HTTP request to an engine, and what its answer, or none, means. No proxies; certificates are always checked.

Every request has a connection of its own: an engine's server drops idle ones, and a request that dies with such a
connection could not be told from one that was taken (FIELD_GUIDE E9, E10).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests

from vime_sync.engines.spec import EngineSettings, EngineSpec
from vime_sync.errors import EngineBusy, EngineSilent, EngineUncertain, EngineUnreachable

_CONNECT_TIMEOUT_S = 5.0
# Answers are a few words; a list with one for each rank at most.
_MAX_ANSWER_BYTES = 4 << 20
_MAX_SHOWN = 400
_CHUNK_BYTES = 1 << 16
# The socket's own timeouts are to end a request first: they leave nothing behind.
_GRACE_S = 1.0


class _Late(EngineSilent):
    """The time was over before the answer, and the connection still stands."""


@dataclass(frozen=True)
class Answer:
    """Status code and body; `document` is None where the body is no JSON. `reason` is what it says, for a message."""

    status: int
    text: str
    document: Any
    reason: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def fields(self) -> Mapping[str, Any]:
        """The document where it is an object, else nothing."""
        return self.document if isinstance(self.document, dict) else {}


class Client:
    """Requests to one engine. Raises EngineUnreachable where no connection comes about: then nothing was sent."""

    def __init__(self, spec: EngineSpec, settings: EngineSettings) -> None:
        self.spec = spec
        self._settings = settings
        self._left_behind: Future[Answer] | None = None

    def ask(self, path: str, *, timeout_s: float | None = None) -> Answer:
        """A question that changes nothing. Raises EngineBusy where the answer takes too long."""
        timeout_s = self._settings.look_timeout_s if timeout_s is None else timeout_s
        try:
            return self._request("GET", path, None, None, timeout_s)
        except _Late as problem:
            raise EngineBusy(problem.message) from None
        except EngineUncertain as problem:
            raise EngineUnreachable(problem.message) from None

    def tell(
        self, path: str, body: Any = None, *, params: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Answer:
        """A request that changes something. Raises EngineSilent where its answer does not come, or breaks off."""
        timeout_s = self._settings.timeout_s if timeout_s is None else timeout_s
        return self._request("POST", path, body, params, timeout_s)

    def _named(self, method: str, path: str) -> str:
        return f"{method} {self.spec.shown_url}{path}"

    def _request(self, method: str, path: str, body: Any, params: Mapping[str, str] | None, timeout_s: float) -> Answer:
        """In a thread that can be left behind: an answer that comes byte by byte never runs into a socket's timeout.

        While one is left behind the engine counts as busy: there is never a second one on top (E9).
        """
        where = self._named(method, path)
        if self._left_behind is not None and not self._left_behind.done():
            raise _Late(f"{where}: not sent, the request before it still hangs")
        result: Future[Answer] = Future()

        def run() -> None:
            try:
                result.set_result(self._exchange(where, method, path, body, params, timeout_s))
            except BaseException as problem:  # handed on to whoever waits
                result.set_exception(problem)

        threading.Thread(target=run, daemon=True, name="request").start()
        try:
            return result.result(timeout_s + _GRACE_S)
        except FutureTimeout:
            self._left_behind = result
            raise _Late(f"{where}: the answer did not end within {timeout_s:g} s") from None

    def _exchange(
        self, where: str, method: str, path: str, body: Any, params: Mapping[str, str] | None, timeout_s: float
    ) -> Answer:
        started = time.monotonic()
        headers = {"Connection": "close"}
        if self._settings.api_key:
            headers["Authorization"] = f"Bearer {self._settings.api_key}"
        with requests.Session() as session:
            session.trust_env = False  # proxies of the environment are not for engines (E10)
            try:
                with session.request(
                    method,
                    f"{self.spec.url}{path}",
                    json=body,
                    params=params,
                    headers=headers,
                    timeout=(min(_CONNECT_TIMEOUT_S, timeout_s), timeout_s),
                    allow_redirects=False,
                    stream=True,
                    verify=self._settings.ca_file or True,
                ) as response:
                    text = self._without_key(_read(response, where))
                    document = _parse(text)
                    reason = self._without_key(_reason(document, text))
                    return Answer(response.status_code, text, document, reason)
            except requests.exceptions.SSLError as problem:
                raise EngineUnreachable(
                    f"{where}: {_cause(problem)}",
                    hint="Have the engine show a certificate of a known authority, or name its own: --engine-ca-file.",
                ) from None
            except requests.exceptions.ConnectTimeout:
                raise EngineUnreachable(f"{where}: no connection within {_CONNECT_TIMEOUT_S:g} s") from None
            except requests.exceptions.Timeout:
                if time.monotonic() - started < timeout_s - _GRACE_S:  # TLS is spoken within the time for connecting
                    raise EngineUnreachable(f"{where}: no TLS connection within {_CONNECT_TIMEOUT_S:g} s") from None
                raise _Late(f"{where}: no answer within {timeout_s:g} s") from None
            except requests.exceptions.ConnectionError as problem:
                if _never_connected(problem):
                    raise EngineUnreachable(f"{where}: {_cause(problem)}") from None
                if "timed out" in str(problem):  # in the middle of the body
                    raise _Late(f"{where}: the answer did not end within {timeout_s:g} s") from None
                raise EngineSilent(f"{where}: the connection broke before an answer: {_cause(problem)}") from None
            except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError) as problem:
                raise EngineSilent(f"{where}: the answer broke off: {_cause(problem)}") from None
            except (requests.exceptions.RequestException, ValueError, OSError) as problem:
                # An URL that names no host, certificates that cannot be read: found out before anything is sent.
                raise EngineUnreachable(f"{where}: {_cause(problem)}") from None

    def _without_key(self, text: str) -> str:
        """Some servers and proxies repeat what they were sent."""
        key = self._settings.api_key
        for spelling in (key, json.dumps(key)[1:-1], quote(key, safe="")) if key else ():
            text = text.replace(spelling, "***")
        return text


def _read(response: requests.Response, where: str) -> str:
    body = bytearray()
    for chunk in response.iter_content(_CHUNK_BYTES):
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            raise EngineUncertain(f"{where}: its answer is longer than {_MAX_ANSWER_BYTES >> 20} MiB: no engine's")
    return body.decode("utf-8", "replace")


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _reason(document: Any, text: str) -> str:
    """An error's text where it has one in a known place, else the body; short enough for a message."""
    fields = document if isinstance(document, dict) else {}
    error = fields.get("error", fields.get("detail", fields.get("message")))
    if isinstance(error, dict):
        error = error.get("message")
    if not isinstance(error, str):
        error = text if document is None else _spelled_out(document, text)
    told = " ".join(error.split())
    return told if len(told) <= _MAX_SHOWN else f"{told[:_MAX_SHOWN]}..."


def _spelled_out(document: Any, text: str) -> str:
    """A document again without escapes, behind which a key would not be seen."""
    try:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def _never_connected(problem: Exception) -> bool:
    """urllib3 says it by the class of what it wraps."""
    reason = getattr(problem.args[0], "reason", problem.args[0]) if problem.args else problem
    return type(reason).__name__ in ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError")


def _cause(problem: Exception) -> str:
    """The innermost reason in words: the outer ones repeat the URL and show Python objects."""
    inner: BaseException = problem
    seen = 0
    while seen < 8:
        following = inner.__cause__ or getattr(inner, "reason", None)
        if following is None:
            following = next((item for item in inner.args if isinstance(item, BaseException)), None)
        if not isinstance(following, BaseException):
            break
        inner, seen = following, seen + 1
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    return str(inner).rpartition(": ")[2] or type(inner).__name__
