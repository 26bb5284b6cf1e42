"""A worker extension for vLLM: `--worker-extension-cls vime_sync.vllm_extension.PullWeightsExtension`.

vLLM mixes the class into the worker of every rank, on every host that an engine spans, and calls its methods
through POST /collective_rpc; `self` is then the worker. It runs in the engine's environment and imports only what a
pull needs. Every method answers with plain JSON whatever happens, and gives back the caller's nonce: a rank that
raised would leave the other ranks' answers waiting for the next call (FIELD_GUIDE E11).

Each answer has `nonce`, `rank`, `host`, `success`, `message`, `done`, what the rank's host holds (`version`,
`weight_version`, `lineage`), the `error`'s id with `retryable`, and `touched`: whether the rank's own weights may be
others than before the call.
"""

from __future__ import annotations

from typing import Any

from vime_sync.materialize.context import default_threads
from vime_sync.vllm_extension import arguments
from vime_sync.vllm_extension.answers import Outcome, answering
from vime_sync.vllm_extension.engine_model import base_beside
from vime_sync.vllm_extension.holding import read_holding
from vime_sync.vllm_extension.loading import load
from vime_sync.vllm_extension.pulling import LOCK_WAIT_S, VERSION_WAIT_S, Order, background_of, pull_and_wait

__all__ = ["PullWeightsExtension"]


class PullWeightsExtension:
    """Only methods that are called from outside: vLLM refuses a name that its worker has already.

    Arguments are taken by name or in this order; unknown ones are ignored, wrong ones are answered.
    """

    @answering
    def pull_weights(
        self,
        local_checkpoint_dir: Any = None,
        source_dir: Any = None,
        target_version: Any = None,
        nonce: Any = None,
        base_dir: Any = None,
        reload: Any = False,
        wait_s: Any = LOCK_WAIT_S,
        version_wait_s: Any = VERSION_WAIT_S,
        *_: Any,
        **__: Any,
    ) -> Outcome:
        """Bring this host's directory to a version (a number or "latest") and return when it is there.

        One rank of a host pulls, under the directory's lock, and the others find it done. The engine serves nothing
        meanwhile. With `reload` this rank then loads it. `wait_s` is for the lock, `version_wait_s` for a version
        that does not show up or is not ready. Without `base_dir` the model that the engine was started from is the
        base.
        """
        paths = arguments.local(local_checkpoint_dir)
        order = Order(
            paths,
            arguments.optional_directory("source_dir", source_dir),
            arguments.version(target_version),
            arguments.optional_directory("base_dir", base_dir) or base_beside(self, paths),
            lock_wait_s=arguments.seconds("wait_s", wait_s),
            version_wait_s=arguments.seconds("version_wait_s", version_wait_s),
        )
        then_load = arguments.flag("reload", reload)
        pulled = pull_and_wait(order, default_threads())
        if not pulled.success or not then_load:
            return pulled
        return load(self, paths, pulled.version, pulled.lineage)

    @answering
    def vime_sync_report(self, nonce: Any = None, local_checkpoint_dir: Any = None, *_: Any, **__: Any) -> Outcome:
        """What this host's directory holds now, without its lock; `version` is None while it holds nothing whole."""
        return read_holding(arguments.local(local_checkpoint_dir)).outcome()

    @answering
    def vime_sync_start_pull(
        self,
        nonce: Any = None,
        local_checkpoint_dir: Any = None,
        source_dir: Any = None,
        target_version: Any = None,
        base_dir: Any = None,
        lineage: Any = None,
        wait_s: Any = LOCK_WAIT_S,
        version_wait_s: Any = VERSION_WAIT_S,
        *_: Any,
        **__: Any,
    ) -> Outcome:
        """Begin to bring this host's directory to a version behind the serving; `vime_sync_poll` says how it goes.

        A rank whose directory holds `lineage` already has nothing to do and does not wait for the lock: on the
        leader's host the leader itself has it. A second start of the same joins the first; one of another version
        comes after what is being pulled. A `base_dir` that this host lacks gives way to the model that the engine
        was started from: the leader compares what comes out.
        """
        paths = arguments.local(local_checkpoint_dir)
        base = arguments.optional_directory("base_dir", base_dir)
        if base is None or not base.is_dir():
            base = base_beside(self, paths) or base
        order = Order(
            paths,
            arguments.optional_directory("source_dir", source_dir),
            arguments.version(target_version),
            base,
            arguments.optional_text("lineage", lineage),
            arguments.seconds("wait_s", wait_s),
            arguments.seconds("version_wait_s", version_wait_s),
        )
        return background_of(self, paths).start(order)

    @answering
    def vime_sync_poll(self, nonce: Any = None, local_checkpoint_dir: Any = None, *_: Any, **__: Any) -> Outcome:
        """How the pull that was started here goes; where none was, what the directory holds."""
        paths = arguments.local(local_checkpoint_dir)
        return background_of(self, paths).poll()

    @answering
    def vime_sync_reload(
        self,
        nonce: Any = None,
        local_checkpoint_dir: Any = None,
        target_version: Any = None,
        lineage: Any = None,
        *_: Any,
        **__: Any,
    ) -> Outcome:
        """Load exactly that version into this rank, proven bytes that stay as they are until all are read."""
        paths = arguments.local(local_checkpoint_dir)
        return load(self, paths, arguments.number(target_version), arguments.optional_text("lineage", lineage))
