"""Which engines there are and how they are to be spoken to. Pure values; nothing here does I/O."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from vime_sync.errors import UsageError

# Holds the key itself: it is never an option, where every process list would show it.
API_KEY_VARIABLE = "VIME_SYNC_ENGINE_API_KEY"


_LOOPBACK = {"localhost": "127.0.0.1", "::1": "127.0.0.1"}
_PORTS = {"http": 80, "https": 443}


class EngineKind(str, enum.Enum):
    VLLM = "vllm"
    SGLANG = "sglang"
    WEBHOOK = "webhook"


class PauseMode(str, enum.Enum):
    """What becomes of the requests that run when an engine is paused for a reload.

    WAIT lets them finish first, ABORT ends them, KEEP freezes them and goes on afterwards: the answers of KEEP then
    come partly from the old weights and partly from the new ones.
    """

    WAIT = "wait"
    ABORT = "abort"
    KEEP = "keep"


class ExtensionUse(str, enum.Enum):
    """Whether vLLM is reloaded through our worker extension: where it is found (AUTO), always, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True)
class EngineSpec:
    """One engine as given with --engine KIND=URL; `url` has no slash at its end, a webhook's is exactly as given."""

    kind: EngineKind
    url: str

    def __str__(self) -> str:
        return f"{self.kind.value}={self.shown_url}"

    def __repr__(self) -> str:
        return f"EngineSpec({self})"

    @property
    def shown_url(self) -> str:
        """As it may be told to anyone: what follows a `?` can be a webhook's secret."""
        return self.url.partition("?")[0]

    @property
    def key(self) -> str:
        """Names it in records: one for each server, however it is spelled, without the secret."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        place = f"{_LOOPBACK.get(host, host)}:{parts.port or _PORTS[parts.scheme]}"
        query = f"?{hashlib.sha256(parts.query.encode()).hexdigest()[:12]}" if parts.query else ""
        return f"{self.kind.value}={parts.scheme}://{place}{parts.path}{query}"

    @property
    def address(self) -> str:
        """HOST:PORT, as in `/healthz/HOST:PORT`."""
        return urlsplit(self.url).netloc


@dataclass(frozen=True)
class EngineSettings:
    """How all engines of a process are spoken to; times in seconds.

    `timeout_s` bounds each step of a reload: the drain of running requests, the load itself. `look_timeout_s` bounds
    what should answer at once. `ca_file` is for private certificate authorities; certificates are always checked.
    """

    pause_mode: PauseMode = PauseMode.WAIT
    timeout_s: float = 1800.0
    look_timeout_s: float = 5.0
    api_key: str | None = None
    ca_file: str | None = None
    probe: bool = False
    extension: ExtensionUse = ExtensionUse.AUTO

    def __repr__(self) -> str:
        """Without the key: settings are logged."""
        return f"EngineSettings(pause_mode={self.pause_mode.value}, timeout_s={self.timeout_s:g}, probe={self.probe})"


def parse_engine(text: str) -> EngineSpec:
    """`vllm=http://127.0.0.1:8000`. Raises UsageError."""
    kind_name, equals, url = text.strip().partition("=")
    kinds = ", ".join(f"{kind.value}=URL" for kind in EngineKind)
    if not equals or kind_name not in {kind.value for kind in EngineKind}:
        raise UsageError(f"--engine {_shown(text)!r}, expected one of {kinds}")
    kind = EngineKind(kind_name)
    try:
        parts = urlsplit(url)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        raise UsageError(f"--engine {_shown(text)!r} has no usable URL, expected http://HOST:PORT") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"--engine {_shown(text)!r} has a name or password in its URL, where every process list shows it",
            hint="Give the key as VIME_SYNC_ENGINE_API_KEY or with --engine-api-key-file.",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_right or not url.isprintable():
        raise UsageError(f"--engine {_shown(text)!r} has no usable URL, expected http://HOST:PORT")
    if parts.fragment:
        raise UsageError(f"--engine {_shown(text)!r} has a fragment (#), which is never sent")
    if kind is not EngineKind.WEBHOOK:
        if parts.query:
            raise UsageError(f"--engine {_shown(text)!r} has a query, expected http://HOST:PORT")
        url = url.rstrip("/")
    return EngineSpec(kind, url)


def parse_engines(texts: Iterable[str]) -> tuple[EngineSpec, ...]:
    """Each text holds one or several, separated by spaces (VIME_SYNC_ENGINE). Raises UsageError."""
    specs = tuple(parse_engine(word) for text in texts for word in text.split())
    seen: set[str] = set()
    for spec in specs:
        # One server given twice would be loaded twice at once.
        place = spec.key.partition("=")[2]
        if place in seen:
            raise UsageError(f"--engine {spec} is given twice")
        seen.add(place)
    return specs


def _shown(text: str) -> str:
    """As it may stand in a message: without what could be a password or a token."""
    kind, equals, url = text.strip().partition("=")
    if not equals or not kind.isalnum():
        kind, equals, url = "", "", text.strip()
    url = re.split(r"[?#]", url, maxsplit=1)[0]
    if "@" in url:
        url = f"...@{url.rpartition('@')[2]}"
    return f"{kind}{equals}{url}"
