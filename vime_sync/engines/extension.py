"""Calling our worker extension (vime_sync.vllm_extension) in every rank of a vLLM, on one host or on many.

Each call carries a nonce that each rank gives back, so an answer to an earlier call is never taken for one to this
(FIELD_GUIDE E11). The ranks of other hosts have no daemon of their own: the leader has them pull, in the background
of the serving, until every host holds the same weights, and only then loads.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vime_sync.engines.http import Client
from vime_sync.engines.interface import Load
from vime_sync.engines.spec import EngineSettings
from vime_sync.errors import EngineNotReady, EngineOutOfStep, EngineRefused, EngineUncertain

# Names of the extension's methods: none that a worker of vLLM has.
REPORT_METHOD = "vime_sync_report"
START_PULL_METHOD = "vime_sync_start_pull"
POLL_METHOD = "vime_sync_poll"
RELOAD_METHOD = "vime_sync_reload"

_POLL_S = 0.5


@dataclass(frozen=True)
class RankAnswer:
    """What one rank says. `done` is for a poll, `touched` for a load: its weights may differ from before.

    `lineage` and `version` are what its host's directory holds.
    """

    rank: int
    host: str
    success: bool
    done: bool
    touched: bool
    version: int | None
    lineage: str | None
    message: str


class Extension:
    """`ranks` is how many answer, where that is known."""

    def __init__(self, client: Client, settings: EngineSettings, ranks: int | None) -> None:
        self._client = client
        self._ranks = ranks
        self._settings = settings

    def spread(self, load: Load) -> None:
        """Return when the host of every rank holds the weights of `load`. Raises EngineNotReady: it serves on."""
        lacking = self._lacking(load)
        if not lacking:
            return
        deadline = time.monotonic() + self._settings.timeout_s
        if load.share is None and load.weights.version != 0:
            raise EngineNotReady(f"{_named(lacking)} lack version {load.weights.version}, and no share is known here")
        arguments = {
            "local_checkpoint_dir": str(load.path),
            "source_dir": load.share,
            "target_version": load.weights.version,
            "base_dir": load.base,
            "lineage": load.weights.lineage,
        }
        _all_agree(self._call(START_PULL_METHOD, arguments), "starting to pull")
        while True:
            answers = self._call(POLL_METHOD, {"local_checkpoint_dir": str(load.path)})
            if all(answer.done for answer in answers):
                break
            if time.monotonic() > deadline:
                waiting = [answer for answer in answers if not answer.done]
                raise EngineNotReady(f"{_named(waiting)} did not finish pulling in {self._settings.timeout_s:g} s")
            time.sleep(_POLL_S)
        _all_agree(answers, "pulling")
        lacking = self._lacking(load)
        if lacking:
            raise EngineNotReady(
                f"{_named(lacking)} hold other weights than this host under version {load.weights.version}",
                hint="Check that all hosts see the same share, and start from the same base.",
            )

    def reload(self, load: Load) -> None:
        """Every rank loads from its own host's directory. Raises EngineRefused, EngineNotReady, EngineOutOfStep."""
        arguments = {
            "local_checkpoint_dir": str(load.path),
            "target_version": load.weights.version,
            "lineage": load.weights.lineage,
        }
        answers = self._call(RELOAD_METHOD, arguments)
        failed = [answer for answer in answers if not answer.success]
        if failed and not any(answer.touched for answer in answers):
            raise EngineNotReady(f"loading {load.path}: {_reasons(failed)}")
        if failed:
            raise EngineRefused(f"loading {load.path}: {_reasons(failed)}")

    def _lacking(self, load: Load) -> list[RankAnswer]:
        answers = self._call(REPORT_METHOD, {"local_checkpoint_dir": str(load.path)})
        return [answer for answer in answers if answer.lineage != load.weights.lineage]

    def _call(self, method: str, arguments: dict[str, Any]) -> list[RankAnswer]:
        nonce = secrets.token_hex(8)
        where = f"{method} by POST {self._client.spec.shown_url}/collective_rpc"
        answer = self._client.tell("/collective_rpc", {"method": method, "kwargs": {**arguments, "nonce": nonce}})
        if not answer.is_success:
            raise EngineRefused(f"{where} answered {answer.status}: {answer.reason or 'nothing'}")
        results = answer.fields.get("results")
        if not isinstance(results, list) or not results or (self._ranks or len(results)) != len(results):
            raise EngineUncertain(
                f"{where} answered {answer.text[:200]!r}, expected the answer of each of {self._ranks or 'its'} ranks"
            )
        strange = [item for item in results if not isinstance(item, dict) or item.get("nonce") != nonce]
        if strange:
            raise EngineOutOfStep(
                f"{where}: {len(strange)} of {len(results)} ranks answered another call: {strange[0]}"
            )
        return [_answer(item, rank) for rank, item in enumerate(results)]


def _answer(item: dict[str, Any], rank: int) -> RankAnswer:
    version, lineage = item.get("version"), item.get("lineage")
    return RankAnswer(
        rank=rank,
        host=str(item.get("host", "?")),
        success=item.get("success") is True,
        done=item.get("done") is not False,
        touched=item.get("touched") is not False,
        version=version if isinstance(version, int) else None,
        lineage=lineage if isinstance(lineage, str) else None,
        message=str(item.get("message") or "no reason given"),
    )


def _all_agree(answers: Sequence[RankAnswer], doing: str) -> None:
    failed = [answer for answer in answers if not answer.success]
    if failed:
        raise EngineNotReady(f"{doing} on other hosts: {_reasons(failed)}")


def _named(answers: Sequence[RankAnswer]) -> str:
    hosts = sorted({answer.host for answer in answers})
    return f"host{'s' if len(hosts) > 1 else ''} {', '.join(hosts[:8])}"


def _reasons(failed: Sequence[RankAnswer]) -> str:
    return "; ".join(f"rank {answer.rank} on {answer.host}: {answer.message}" for answer in failed[:4])
