"""What a daemon was told to do; a frozen value, exchanged as a whole when settings are read again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from vime_sync.daemon.hooks import PreReadFunction
from vime_sync.engines.spec import EngineSettings, EngineSpec
from vime_sync.local.paths import LocalPaths


@dataclass(frozen=True)
class WatchSettings:
    """Times in seconds. `version` None is `latest`; `engine_interval_s` is how often engines are looked at."""

    paths: LocalPaths
    share: Path | None
    base: Path | None
    version: int | None
    threads: int
    poll_interval_s: float = 1.0
    engine_interval_s: float = 5.0
    adopt: bool = False
    durable: bool = False
    refuse_new_stream: bool = False
    engines: tuple[EngineSpec, ...] = ()
    engine_settings: EngineSettings = field(default_factory=EngineSettings)
    pre_read: PreReadFunction | None = None
    on_engine_failure: tuple[str, ...] | None = None
    ack_dir: Path | None = None
    host_name: str = ""
    http: str | None = None
