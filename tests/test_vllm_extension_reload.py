"""The worker extension's safe reload: exactly the wanted weights, proven and unchanged until the last is read."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests import toolkit
from tests.extension_story import (
    Answer,
    Fleet,
    arguments,
    call,
    expect_loaded,
    make_worker,
    sibling,
    states,
)
from tests.host import Host, expect_error, flip_byte
from tests.kill_peer import peer_lock, write_bare_state
from tests.kill_points import no_disk_waits, reboot
from tests.sealed import change_sealed
from tests.toolkit import Tensor

HEAD = "lm_head.weight"
NORM = "model.norm.weight"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """LOCAL at version 1."""
    host = Host.create(tmp_path, model=toolkit.make_model(tensors=3, kib=16))
    host.publish()
    host.pulled()
    return host


def reload(worker: Any, host: Host, version: int, **more: Any) -> Answer:
    named = {"nonce": "r", "local_checkpoint_dir": str(host.local), "target_version": version}
    return call(worker, "vime_sync_reload", **{**named, **more})


def lineage(host: Host) -> str:
    answer = call(make_worker(host.base), "vime_sync_report", nonce="l", local_checkpoint_dir=str(host.local))
    assert isinstance(answer["lineage"], str), answer
    return answer["lineage"]


def expect_untouched(worker: Any, host: Host, answer: Answer, error: str = "engine_not_ready") -> None:
    """It said no before the engine was told anything."""
    assert (answer["success"], answer["error"], answer["touched"]) == (False, error, False), answer
    assert worker.model_config.model == str(host.base)
    expect_loaded(worker, host.models[0])


def test_every_rank_loads_the_committed_version_by_its_absolute_path(host: Host) -> None:
    fleet = Fleet.on([host], ranks_per_host=3)
    answers = fleet.call("vime_sync_reload", target_version=1, lineage=lineage(host))
    assert states(answers) == [(True, True, 1)] * 3
    for worker in fleet.workers:
        assert worker.model_config.model == str(host.local)
        expect_loaded(worker, host.models[1])


def test_the_lineage_is_one_digest_over_all_tensors_on_every_host(host: Host) -> None:
    lines = "".join(f"{name}\0{digest}\n" for name, digest in sorted(toolkit.digests(host.models[1]).items()))
    assert lineage(host) == toolkit.digest(lines.encode())
    other = sibling(host, "other")
    other.pulled()
    assert lineage(other) == lineage(host)


def test_the_leader_holds_the_lock_over_a_reload_and_it_is_not_waited_for(host: Host) -> None:
    worker = make_worker(host.base)
    with peer_lock(host.local):
        assert reload(worker, host, 1, lineage=lineage(host))["success"]
    expect_loaded(worker, host.models[1])


# ---- what is not loaded


def test_another_version_or_other_weights_than_wanted_are_not_loaded(host: Host) -> None:
    worker = make_worker(host.base)
    expect_untouched(worker, host, reload(worker, host, 2))
    expect_untouched(worker, host, reload(worker, host, 1, lineage="0" * 32))


def _rot(host: Host) -> None:
    flip_byte(host.local, NORM)


def _rot_that_was_found(host: Host) -> None:
    flip_byte(host.local, NORM)
    assert toolkit.vime("verify", "--local", host.local).code == 22


def _config(host: Host) -> None:
    (host.local / "config.json").write_text("{}")


def _between(host: Host) -> None:
    (host.local / toolkit.STATE_DIRECTORY / "state.json").unlink()


def _peer(host: Host) -> None:
    write_bare_state(host.local, 1)


def _table(host: Host) -> None:
    for path in (host.local / toolkit.STATE_DIRECTORY / "digests").iterdir():
        path.unlink()


@pytest.mark.parametrize("spoil", [_rot, _rot_that_was_found, _config, _between, _peer, _table])
def test_bytes_that_are_not_proven_are_not_loaded(spoil: Any, host: Host) -> None:
    spoil(host)
    worker = make_worker(host.base)
    report = call(worker, "vime_sync_report", nonce=1, local_checkpoint_dir=str(host.local))
    assert (report["success"], report["version"], report["lineage"]) == (True, None, None), report
    expect_untouched(worker, host, reload(worker, host, 1))
    # A pull heals it, and then it is loaded.
    answer = call(worker, "pull_weights", **arguments(host, 1, reload=True))
    assert answer["success"], answer
    expect_loaded(worker, host.models[1])


def test_h03_what_was_not_durable_before_a_reboot_is_not_loaded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    state = host.local / toolkit.STATE_DIRECTORY / "state.json"
    change_sealed(state, lambda document: document["vime_sync"].update(durable=False))
    worker = make_worker(host.base)
    assert call(worker, "vime_sync_report", nonce=1, local_checkpoint_dir=str(host.local))["version"] == 1
    reboot(monkeypatch)
    expect_untouched(worker, host, reload(worker, host, 1))


# ---- what happens meanwhile


def test_a_file_that_changes_while_it_is_loaded_is_seen_afterwards(host: Host) -> None:
    def rot(name: str) -> None:
        if name == NORM:
            flip_byte(host.local, name)

    worker = make_worker(host.base, before=rot)
    answer = reload(worker, host, 1)
    assert (answer["success"], answer["error"], answer["touched"]) == (False, "engine_uncertain", True)
    assert "changed while it was loaded" in answer["message"]


def test_a_pull_that_holds_the_lock_and_comes_and_goes_while_it_is_loaded_is_seen_afterwards(host: Host) -> None:
    """To version 2 and back again: the number and the bytes are the same then, the files are not."""
    host.publish()
    begun, over = threading.Event(), threading.Event()

    def pull() -> None:
        assert begun.wait(60)
        host.pulled(version=2)
        host.pulled(version=1)
        over.set()

    def meanwhile(name: str) -> None:
        if name == NORM:
            lock.__exit__(None, None, None)
            begun.set()
            assert over.wait(60)

    lock = peer_lock(host.local)  # a stranger's, so that the rank gets no share of it
    lock.__enter__()
    puller = threading.Thread(target=pull)
    puller.start()
    try:
        answer = reload(make_worker(host.base, before=meanwhile), host, 1)
    finally:
        begun.set()
        puller.join()
    assert (answer["success"], answer["touched"]) == (False, True), answer
    host.expect_local(1)


def test_where_no_leader_holds_the_lock_no_pull_begins_while_it_is_loaded(host: Host) -> None:
    host.publish()
    refused: list[str] = []

    def pull(name: str) -> None:
        refused.append(expect_error(host.pull(), 20, "lock_held")["message"])

    worker = make_worker(host.base, before=pull)
    assert reload(worker, host, 1)["success"]
    assert len(refused) == len(host.models[1])
    expect_loaded(worker, host.models[1])
    assert host.pulled()["version"] == 2


# ---- what the engine says


@pytest.mark.parametrize("problem", [RuntimeError("shapes differ"), MemoryError(), AssertionError()])
def test_an_exception_of_one_rank_is_its_answer_and_a_good_reload_mends_it(problem: Exception, host: Host) -> None:
    fleet = Fleet.on([host])

    def fail(weights_path: str) -> None:
        raise problem

    fleet.workers[1].reload_weights = fail
    answers = fleet.call("vime_sync_reload", target_version=1)
    assert [(answer["success"], answer["error"]) for answer in answers] == [(True, None), (False, "engine_refused")]
    assert type(problem).__name__ in answers[1]["message"]
    assert answers[1]["touched"]

    del fleet.workers[1].reload_weights
    assert states(fleet.call("vime_sync_reload", target_version=1)) == [(True, True, 1)] * 2


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_goes_through(end: type[BaseException], host: Host) -> None:
    worker = make_worker(host.base)

    def leave(weights_path: str) -> None:
        raise end

    worker.reload_weights = leave
    with pytest.raises(end):
        worker.vime_sync_reload(nonce="n", local_checkpoint_dir=str(host.local), target_version=1)


# ---- tensor names (E4)


def publish_other(host: Host, version: int, **changes: Tensor | None) -> None:
    """A full version whose tensors are not quite those of the base: None leaves one out."""
    model = toolkit.step(host.models[0], version)
    for name, tensor in changes.items():
        if tensor is None:
            del model[name]
        else:
            model[name] = tensor
    host.models[version] = model
    toolkit.publish_full(host.shared, version, model)
    host.pulled(version=version)


def test_e04_a_version_that_lacks_a_tensor_of_the_engines_model_is_not_loaded(host: Host) -> None:
    publish_other(host, 2, **{NORM: None})
    worker = make_worker(host.base)
    answer = reload(worker, host, 2)
    expect_untouched(worker, host, answer)
    assert NORM in answer["message"]


def test_e04_a_tensor_of_another_shape_is_not_loaded(host: Host) -> None:
    rows, columns = host.models[0][NORM].shape
    publish_other(host, 2, **{NORM: Tensor("BF16", (rows + 2, columns), bytes(2 * (rows + 2) * columns))})
    worker = make_worker(host.base)
    answer = reload(worker, host, 2)
    expect_untouched(worker, host, answer)
    assert NORM in answer["message"]


def test_e04_a_head_that_is_the_embedding_may_be_missing(host: Host) -> None:
    publish_other(host, 2, **{HEAD: None})
    worker = make_worker(host.base)
    expect_untouched(worker, host, reload(worker, host, 2))
    worker.model_config.hf_config = type("Config", (), {"tie_word_embeddings": True})()
    assert reload(worker, host, 2)["success"]


def test_e04_a_delta_over_a_full_version_is_held_against_the_base_too(host: Host) -> None:
    publish_other(host, 2, **{NORM: None})
    host.publish()
    host.pulled()
    worker = make_worker(host.base)
    expect_untouched(worker, host, reload(worker, host, 3))


def test_e04_a_tensor_that_the_engine_does_not_know_is_its_own_to_refuse(host: Host) -> None:
    publish_other(host, 2, extra=Tensor("U8", (1,), b"x"))
    answer = reload(make_worker(host.base), host, 2)
    assert (answer["success"], answer["error"], answer["touched"]) == (False, "engine_refused", True)
    assert "'extra'" in answer["message"]


def test_without_the_base_names_are_not_compared(host: Host, tmp_path: Path) -> None:
    publish_other(host, 2, **{NORM: None})
    host.base.rename(tmp_path / "moved")
    worker = make_worker(tmp_path / "moved")
    worker.model_config.model = "some/model"
    assert reload(worker, host, 2)["success"]
