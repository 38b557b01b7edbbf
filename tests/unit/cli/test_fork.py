"""fork: a new pipeline that begins with another one's positions and state, and what cannot become of it."""

from __future__ import annotations

import sys
from datetime import datetime

import pytest

from tests.kit import forks
from tests.kit.forks import CODE, FORK, Died, Run, contents, dying, refused
from tidegate.delta import missing_files
from tidegate.errors import Rejected
from tidegate.records.records import Drain

shop = forks.shop


def written(text):
    """Other code of the new pipeline."""
    with open("shop.py", "w") as file:
        file.write(text)
    sys.modules.pop("shop", None)


def test_both_continue_and_the_old_one_is_not_touched(shop, folder, tidegate):
    before = contents(folder / "ledger" / "orders", folder / "tables")
    looked = tidegate(*FORK, "--dry-run", "--json").json
    assert (looked["forked"], looked["states"], looked["sources"]) == (False, ["totals"], ["events"])
    assert not (folder / "ledger" / "trial").exists()

    said = tidegate(*FORK, "--note", "new prices", "--json")
    assert (said.code, said.json["from"]) == (0, {"pipeline": "orders", "checkpoint": 2})
    assert contents(folder / "ledger" / "orders", folder / "tables") == before

    trial = Run("trial")
    assert trial.remembered() == [1, 2]
    assert trial.checkpoint() == 3, "its log goes on behind the checkpoint that it began with"
    assert shop.checkpoint() == 4
    assert (trial.good(), shop.good()) == ([3], [1, 2, 3, 4])
    assert (trial.remembered(), shop.remembered()) == ([1, 2, 3], [1, 2, 3, 4])
    started = trial.entry(3).plan.sources["events"].start
    assert started == shop.entry(2).plan.sources["events"].end == shop.entry(3).plan.sources["events"].start
    assert trial.entry(2).acks["main"].ack.memory["totals"] == {"upto": 2}
    assert trial.ledger.identity().uid != shop.ledger.identity().uid
    assert shop.ledger.pins() == []


def test_the_other_commands_tell_where_it_comes_from(shop, tidegate):
    tidegate(*FORK, "--note", "new prices")
    told = " ".join(tidegate("explain", "trial", "2").out.split())
    assert "forked this pipeline from checkpoint 2 of orders, because: new prices" in told
    (row,) = tidegate("list", "trial", "--json").json["checkpoints"]
    assert (row["id"], row["state"], row["kind"]) == (2, "completed", "fork")
    findings = tidegate("doctor", "shop:trial", "--json").json["findings"]
    assert [each for each in findings if each["area"] == "trial" and each["state"] == "bad"] == []


def test_the_moment_of_its_restoration_is_that_of_the_fork(shop, tidegate):
    """As Flink counts it: a start from a savepoint restores, as a rollback does."""
    tidegate(*FORK)
    began = datetime.fromisoformat(Run("trial").ledger.identity().created)

    def restored(pipeline):
        told = tidegate("metrics", pipeline, "--json").json["pipelines"][pipeline]
        return next(each["value"] for each in told if each["name"] == "lastCheckpointRestoreTimestamp")

    assert restored("trial") == round(began.timestamp() * 1000)
    assert restored("orders") == -1
    assert Run("trial").checkpoint() == 3
    assert tidegate("rollback", "shop:trial", "--to", "2", "--yes").code == 0
    assert restored("trial") > round(began.timestamp() * 1000)


def test_scenario_14_two_forks_of_a_savepoint_that_is_disposed_of_need_nothing_of_the_old_one(shop, folder, tidegate):
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "2")
    tidegate("fork", "orders", "--from", "good", "--as", "shop:trial")
    tidegate("fork", "orders", "--from", "good", "--as", "shop:other")
    tidegate("savepoint", "dispose", "orders", "good", "--yes")
    (folder / "ledger" / "orders").rename(folder / "gone")
    (folder / "tables").rename(folder / "gone-tables")
    for name in ("trial", "other"):
        run = Run(name, num_retained="1")
        assert [run.checkpoint(), run.checkpoint()] == [3, 4]
        assert run.ledger.ids() == [4], "what it began with is retired like any other"
        assert missing_files(run.state_table, [each.file for each in run.state(4).files]) == []
        assert (run.good(), run.remembered()) == ([3, 4], [1, 2, 3, 4])


def test_it_can_go_back_to_where_it_began(shop, tidegate):
    tidegate(*FORK)
    Run("trial").checkpoint()
    said = tidegate("rollback", "shop:trial", "--to", "2", "--yes")
    assert said.code == 0, said.err
    trial = Run("trial")
    assert (trial.good(), trial.remembered()) == ([], [1, 2])
    assert tidegate("rollback", "shop:trial", "--to", "1", "--yes").code == 1


def survives(monkeypatch, tidegate, nth, landed):
    """Whether a fork gets by without a file more than this."""
    with monkeypatch.context() as patched:
        dying(patched, nth, landed)
        try:
            return tidegate(*FORK).code == 0
        except Died:
            return False


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True])
def test_wherever_it_is_broken_off_the_same_command_continues(shop, folder, tidegate, monkeypatch, landed):
    home, nth = folder / "ledger" / "trial", 1
    while not survives(monkeypatch, tidegate, nth, landed):
        if home.exists() and not (home / "pipeline.json").exists():
            with pytest.raises(Rejected) as caught:
                Run("trial").coordinator.trigger("too early")
            assert caught.value.reason == "FORK_UNFINISHED"
            taken = refused(tidegate, "fork", "orders", "--from", "3", "--as", "shop:trial")
            assert taken["reason"] == ("NAME_TAKEN" if any(home.iterdir()) else None)
        if shop.ledger.pins():
            Run("orders", num_retained="1").coordinator.retire()
            assert shop.ledger.entry(2) is not None, "it is spared until it is copied"
        survives(monkeypatch, tidegate, nth // 2, landed)
        assert tidegate(*FORK).code == 0
        trial = Run("trial")
        assert (trial.ledger.ids(), trial.remembered(), trial.state(2).files) == ([2], [1, 2], shop.state(2).files)
        assert trial.coordinator.trigger("next").plan.base == 2
        assert (shop.ledger.pins(), trial.ledger.claim()) == ([], None)
        home.rename(folder / f"trial-{nth}")
        nth += 1
    assert nth > 8


def test_what_cannot_be_forked_is_refused_with_the_reason_and_nothing_is_made(shop, folder, tidegate):
    def at(base):
        return ("fork", "orders", "--from", base, "--as", "shop:trial")

    assert refused(tidegate, *at("9"))["reason"] == "NO_SUCH_CHECKPOINT"
    assert refused(tidegate, *at("nobody"))["reason"] == "NO_SUCH_SAVEPOINT"
    assert refused(tidegate, "fork", "orders", "--from", "2", "--as", "trial")["reason"] == "NEEDS_CODE"
    assert refused(tidegate, "fork", "orders", "--from", "2", "--as", "shop:orders")["reason"] == "NAME_TAKEN"
    for changed, reason in {
        '"trial", "tables"': "NOT_ITS_OWN_TABLE",
        '"trial", "trial", "sums"': "STATE_REMOVED",
        '"trial", "trial", max_parallelism=64': "MAX_PARALLELISM_CHANGED",
        '"trial", "trial", source=Files("landing/*.json", schema="k long, v string")': "SOURCE_REPLACED",
    }.items():
        written(CODE.replace('"trial", "trial"', changed))
        assert refused(tidegate)["reason"] == reason
    written(CODE)
    gone = shop.state(2).files[0].file.path
    shop.state_table.local(gone).rename(folder / "aside")
    assert refused(tidegate)["reason"] == "CHECKPOINT_DAMAGED"
    (folder / "aside").rename(shop.state_table.local(gone))
    assert not (folder / "ledger" / "trial").exists()
    shop.checkpoint(drain=Drain(by="ann"))
    assert refused(tidegate, *at("4"))["reason"] == "FINISHED"
    assert tidegate(*FORK).code == 0
    assert tidegate(*FORK).code == 0, "again: it is done"
    assert refused(tidegate, "fork", "orders", "--from", "3", "--as", "shop:trial")["reason"] == "NAME_TAKEN"


def test_a_source_that_was_called_otherwise_then_is_moved_in_the_fork_when_it_has_begun(shop, tidegate):
    """The old pipeline's source cannot be moved for a checkpoint of the past."""
    renamed = CODE.replace('source("events"', 'source("sold" if name == "trial" else "events"')
    written(renamed)
    error = refused(tidegate)
    assert error["reason"] == "SOURCE_REMOVED"
    assert "tidegate source" not in error["help"]
    assert "move or drop it in the fork, once that has begun" in error["help"]
    written(CODE)
    assert tidegate(*FORK).code == 0
    written(renamed)
    assert tidegate("source", "move", "shop:trial", "events", "sold").code == 0
    trial = Run("trial")
    plan = trial.entry(trial.checkpoint()).plan
    assert plan.sources["sold"].start == shop.entry(2).plan.sources["events"].end


def test_a_state_whose_operator_the_forks_code_lacks_is_left_behind_by_choice(shop, folder, tidegate):
    """It is not looked at and not copied: it may be damaged, too."""
    at = CODE.index("    totals = events")
    written(
        CODE[:at]
        + CODE[CODE.index("    return pipeline") :].replace(
            '"trial", "trial"', '"trial", "trial", allow_non_restored_state=True'
        )
    )
    shop.state_table.local(shop.state(2).files[0].file.path).rename(folder / "aside")
    assert tidegate(*FORK, "--dry-run", "--json").json["states"] == []
    assert tidegate(*FORK).code == 0
    assert "state.totals" not in Run("trial").entry(2).manifest.tables


def test_a_checkpoint_that_retention_was_faster_with_is_refused(shop, folder, tidegate, monkeypatch):
    from tidegate.lifecycle import fork

    real = fork._claim
    slow = Run("orders", num_retained="1").coordinator
    with monkeypatch.context() as patched:
        patched.setattr(fork, "_claim", lambda *args: (slow.retire(), real(*args))[1])
        assert refused(tidegate)["reason"] == "RETIRED"
    assert shop.ledger.pins() == []
    assert tidegate("fork", "orders", "--from", "3", "--as", "shop:trial").code == 0


def test_retention_that_comes_while_it_is_copied_spares_the_checkpoint(shop, tidegate, monkeypatch):
    from tidegate.lifecycle import fork

    slow, seen = Run("orders", num_retained="1").coordinator, []

    def meanwhile(step):
        def steps(*args):
            slow.retire()
            seen.append(shop.ledger.entry(2) is not None)
            return step(*args)

        return steps

    with monkeypatch.context() as patched:
        for name in ("_recorded", "_plan", "_ack", "_publish"):
            patched.setattr(fork, name, meanwhile(getattr(fork, name)))
        assert tidegate(*FORK).code == 0
    assert len(seen) > 3
    assert all(seen)
    assert Run("trial").remembered() == [1, 2]
    slow.retire()
    assert shop.ledger.entry(2) is None, "and not for ever"


def test_where_operators_are_in_other_jobs_there_what_they_remember_goes(shop, tidegate):
    assert tidegate("fork", "orders", "--from", "2", "--as", "shop:apart").code == 0
    entry = Run("apart").ledger.entry(2)
    acks = {job: acked.ack for job, acked in entry.acks.items()}
    assert {job: (list(ack.states), list(ack.sinks)) for job, ack in acks.items()} == {
        "main": ([], []),
        "counting": (["state.totals"], ["state.totals"]),
    }
    assert acks["counting"].memory["totals"] == {"upto": 2}
    assert "totals" not in acks["main"].memory
    assert len(entry.manifest.tables["state.totals"].committables) == 1
    assert Run("apart").remembered() == [1, 2]


def test_a_hook_goes_back_to_what_it_kept_with_the_checkpoint(shop, folder, tidegate):
    written(
        CODE + "seen = []\n"
        "for each in (orders, trial):\n"
        "    each.hook('model', on_trigger=lambda it: {'at': it.id}, on_restore=seen.append)\n"
    )
    Run("orders").checkpoint()
    tidegate("fork", "orders", "--from", "4", "--as", "shop:trial")
    Run("trial").checkpoint()
    assert sys.modules["shop"].seen == [{"at": 4}]


def test_a_hook_that_the_forks_code_lacks_is_left_behind_by_choice_and_once(shop, folder, tidegate):
    written(CODE + "orders.hook('model', on_trigger=lambda it: {'at': it.id})\n")
    Run("orders").checkpoint()
    fork = ("fork", "orders", "--from", "4", "--as", "shop:trial")
    assert tidegate(*fork, "--json").json["error"]["reason"] == "HOOK_REMOVED"
    assert tidegate(*fork, "-D", "allow_non_restored_state=true").code == 0
    assert Run("trial").checkpoint() == 5, "it was let go of for good"
