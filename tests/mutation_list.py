"""The safeguards of the package and how each is taken out: `mutations` does it, one at a time."""

from tests.mutation_syncs import SYNCS
from tests.mutation_values import LOCAL, MATERIALIZE, RECONCILE, Mutation, model

_RECORDS = (
    Mutation(
        "the intent",
        LOCAL + "intent.py",
        "    write_sealed(paths.intent, intent_to_document(intent), durable=True)\n",
        "",
        "tests/test_recovery_points.py",
    ),
    Mutation(
        "the state's withdrawal",
        LOCAL + "intent.py",
        "intent_to_document(intent), durable=True)\n    withdraw_state(paths)\n",
        "intent_to_document(intent), durable=True)\n",
        "tests/test_recovery_points.py",
    ),
    Mutation(
        "the state's withdrawal before an undo",
        MATERIALIZE + "inplace.py",
        "    intents.withdraw_state(job.context.paths)\n",
        "",
        "tests/test_torture_syncs.py",
    ),
    Mutation(
        "the staging outlives a kill",
        MATERIALIZE + "staging.py",
        "        if fresh:\n            fsio.remove_tree(directory)\n",
        "        fsio.remove_tree(directory)\n",
        "tests/test_recovery_points.py",
    ),
    Mutation(
        "the staging comes before the first write",
        MATERIALIZE + "apply.py",
        "        copied = self.staging.stage(work, self.feed.deltas, self.feed.files)\n"
        "        self.context.tally.add(read=copied)\n",
        "",
        "tests/test_recovery_points.py",
    ),
    Mutation(
        "the block record",
        LOCAL + "journal.py",
        "        self._append(int(towards), tensor, block, before, after)\n",
        "",
        "tests/test_recovery_points.py",
    ),
    Mutation(
        "the block record comes before the block",
        MATERIALIZE + "transform.py",
        "            journal.record(tensor, number, want, before, after)\n"
        "            file.write_at(block.data, span.offset + start)\n",
        "            file.write_at(block.data, span.offset + start)\n"
        "            journal.record(tensor, number, want, before, after)\n",
        "tests/test_recovery_points.py tests/test_recovery_torn.py",
    ),
    Mutation(
        "the check of a block record",
        LOCAL + "journal.py",
        "            if raw[_BODY.size :] != _CHECK.pack(block_digest(body)):\n                break\n",
        "",
        "tests/test_torture_syncs.py",
    ),
    Mutation(
        "torn blocks are settled",
        RECONCILE + "recover.py",
        "        else:\n            job.settle()\n",
        "",
        "tests/test_recovery_torn.py",
    ),
    Mutation(
        "the old values of an overwrite",
        MATERIALIZE + "staging.py",
        "            with_old = keep_old or step.backward\n",
        "            with_old = step.backward\n",
        "tests/test_recovery_points.py tests/test_field_versions.py",
    ),
    Mutation(
        "the undo",
        MATERIALIZE + "inplace.py",
        "    wrong = job.back()\n",
        "    wrong: frozenset[str] = frozenset()\n",
        "tests/test_field_source_payloads.py",
    ),
    Mutation(
        "what is kept of a pass",
        LOCAL + "intent.py",
        "    fsio.rename(paths.staged, paths.kept)\n",
        "    fsio.remove_tree(paths.staged)\n    fsio.make_directory(paths.kept)\n",
        "tests/test_recovery_rollback.py tests/test_recovery_kept.py",
    ),
    Mutation(
        "a state voids the intent beside it",
        RECONCILE + "recover.py",
        "    if intent is None or reading.state is not None or reading.peer_version is not None:\n",
        "    if intent is None:\n",
        "tests/test_recovery_points.py tests/test_recovery_peer.py",
    ),
    Mutation(
        "built files are the ones that were proven",
        MATERIALIZE + "install.py",
        "    _check_built(paths, intent.moves, intent.state.stats)\n",
        "",
        "tests/test_hostile_aside.py",
    ),
)

_PROOFS = (
    Mutation(
        "the old digest",
        MATERIALIZE + "apply.py",
        "        if digests.old != work.old_digest:\n            return False\n        raise",
        "        raise",
        "tests/test_field_host_files.py tests/test_recovery_rot.py",
    ),
    Mutation(
        "the new digest",
        MATERIALIZE + "apply.py",
        "        if digests.published == work.digest:\n            self._note(number, digests.new)\n",
        "        if digests.published:\n            self._note(number, digests.new)\n",
        "tests/test_field_source_payloads.py",
    ),
    Mutation(
        "the digest of what was undone",
        MATERIALIZE + "apply.py",
        "        if digests.old == work.old_digest:\n            return True\n",
        "        if digests.old:\n            return True\n",
        "tests/test_torture_syncs.py",
    ),
    Mutation(
        "the digest of what was rebuilt",
        MATERIALIZE + "apply.py",
        "        if digests.published != work.digest:\n            what = (",
        "        if not digests.published:\n            what = (",
        "tests/test_power_found.py tests/test_recovery_rot.py",
    ),
    Mutation(
        "files that were touched are hashed",
        LOCAL + "layout.py",
        "        if _stat_or_none(paths, name) != known:\n",
        "        if _stat_or_none(paths, name) is None:\n",
        "tests/test_field_host_files.py tests/test_recovery_rot.py",
    ),
    Mutation(
        "the boot in which a pass was begun",
        RECONCILE + "recover.py",
        "    rebooted = intent.boot_id != boot_id()\n",
        "    rebooted = False\n",
        model("apply", "apply_overwrite", "folded", "rollback"),
    ),
    Mutation(
        "the boot in which a version was committed",
        RECONCILE + "passes.py",
        "    if not state.durable and state.boot_id != boot_id():\n",
        "    if False:\n",
        model("apply", "seed"),
    ),
    Mutation(
        "the boot in which renames were begun",
        MATERIALIZE + "install.py",
        "    same_boot = intent.state.boot_id == boot_id()\n",
        "    same_boot = True\n",
        "tests/test_torture_syncs.py",
    ),
    Mutation(
        "what a recovery after power loss commits is distrusted",
        MATERIALIZE + "commit.py",
        "    boot = boot_id() if trusted else DISTRUSTED_BOOT\n",
        "    boot = boot_id()\n",
        "tests/test_recovery_power_between.py",
    ),
    Mutation(
        "a failed sync is remembered",
        MATERIALIZE + "commit.py",
        "            distrust(context, state)\n            raise\n",
        "            raise\n",
        "tests/test_field_errors.py::test_h06_after_a_failed_sync_nothing_is_believed_that_only_the_page_cache_holds",
    ),
    Mutation(
        "the lock",
        LOCAL + "lock.py",
        "        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
        "tests/test_torture_two.py",
    ),
    Mutation(
        "the lock's name still means the locked file",
        LOCAL + "lock.py",
        "            if _is_named(file, paths.lock):\n",
        "            if True:\n",
        "tests/test_field_host_lock.py",
    ),
    Mutation(
        "a whole reading of the source is unchanged at its end",
        "vime_sync/stream/payloads.py",
        "            if found != expected:\n                raise StreamChanged(",
        "            if False:\n                raise StreamChanged(",
        "tests/test_torture_source.py",
    ),
)

MUTATIONS = (*SYNCS, *_RECORDS, *_PROOFS)
