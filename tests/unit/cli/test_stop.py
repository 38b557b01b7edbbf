"""stop and cancel: what they end, what they wait for, and how the others tell of it."""

from __future__ import annotations

import socket

import pytest

from tests.kit.shop import CODE, Shop
from tidegate.errors import Rejected


@pytest.fixture
def shop(folder, tidegate):
    """Two checkpoints, of a row each."""
    shop = Shop(folder)
    for _ in range(2):
        shop.checkpoint()
    return shop


def refused(shop):
    with pytest.raises(Rejected) as caught:
        shop.trigger()
    return caught.value


def test_a_stopped_pipeline_is_over_until_somebody_resumes_it(shop, tidegate):
    said = tidegate("stop", "orders", "--reason", "moved", "--json")
    assert (said.code, said.json["entry"]) == (0, 3)
    error = refused(shop)
    assert (error.reason, error.what) == ("STOPPED", f"pipeline 'orders' was stopped by {_who(shop)}: moved")
    assert tidegate("list", "--json").json["pipelines"][0]["state"] == "stopped"
    assert tidegate("list", "orders", "--json").json["checkpoints"][0]["state"] == "stopped"
    assert "stopped the pipeline, because: moved" in tidegate("explain", "orders", "3").out
    assert tidegate("resume", "orders").code == 0
    assert shop.checkpoint() == 5


def _who(shop):
    return shop.coordinator.ledger.plan(3).control.by


def test_it_makes_a_savepoint_of_the_last_checkpoint(shop, tidegate):
    said = tidegate("stop", "orders", "--savepoint", "last", "--json")
    assert (said.json["savepoint"], said.json["checkpoint"]) == ("last", 2)
    assert tidegate("savepoint", "list", "orders", "--json").json["savepoints"][0]["checkpoint"] == 2


def test_with_the_code_at_hand_what_is_owed_is_published_and_what_is_dead_is_ended(shop, tidegate):
    shop.checkpoint(publish=False)
    dead = shop.coordinator.trigger(f"process:{socket.gethostname()}:{2**22 + 1}:1:x").plan
    said = tidegate("stop", CODE, "--savepoint", "last", "--json")
    assert said.json["checkpoint"] == 3
    assert shop.coordinator.ledger.decision(dead.id).reason == "RUN_GONE"
    assert shop.rows() == [1, 2, 3]


def test_it_waits_for_what_is_open_and_may_be_told_not_to(shop, tidegate, monkeypatch):
    plan = shop.trigger()
    assert tidegate("stop", "orders", "--no-wait").code == 0
    assert shop.coordinator.ledger.decision(plan.id) is None, "it is brought to its end by whoever runs it"
    waited = []

    def others(seconds):
        waited.append(seconds)
        shop.coordinator.abort(plan.id, "CANCELLED")

    monkeypatch.setattr("tidegate.cli.lifecycle.stop.seams.sleep", others)
    said = tidegate("stop", "orders")
    assert said.code == 0
    assert len(waited) == 1
    assert f"Waiting for checkpoint {plan.id}" in said.out


def test_a_name_that_is_taken_stops_nothing(shop, tidegate):
    tidegate("savepoint", "create", "orders", "last")
    said = tidegate("stop", "orders", "--savepoint", "last", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "NAME_TAKEN")
    assert shop.checkpoint() == 3


def test_cancelling_ends_what_is_open_at_once(shop, tidegate):
    plan = shop.trigger()
    assert tidegate("cancel", "orders").code == 2, "nobody can be asked here, and --yes is missing"
    assert refused(shop).reason == "CHECKPOINT_IN_PROGRESS", "nothing was done"
    said = tidegate("cancel", "orders", "--yes", "--json")
    assert said.json["aborted"] == [plan.id]
    decision = shop.coordinator.ledger.decision(plan.id)
    assert (decision.outcome, decision.reason, decision.counts) == ("aborted", "STOPPED", False)
    assert refused(shop).reason == "STOPPED"
    assert "a person cancelled the pipeline" in tidegate("explain", "orders", str(plan.id)).out
    assert tidegate("resume", "orders").code == 0
    assert shop.checkpoint() == 6, "what was ended is read again"


def test_a_rollback_does_not_let_a_stopped_pipeline_continue(shop, tidegate):
    tidegate("stop", "orders", "--reason", "moved")
    assert tidegate("rollback", CODE, "--to", "1", "--yes").code == 0
    assert refused(shop).reason == "STOPPED"


@pytest.fixture
def loop(shop, monkeypatch):
    """In place of Spark: makes the checkpoint that is asked for, or aborts it."""

    def install(abort=False):
        def run_loop(coordinator, schedules, progress, settings, out):
            (schedule,) = schedules
            if abort:
                shop.coordinator.abort(shop.trigger(drain=schedule.drain).id, "GATE_FAILED")
            else:
                shop.checkpoint(publish=False, drain=schedule.drain)

        monkeypatch.setattr("tidegate.cli.lifecycle.stop.run_loop", run_loop)

    return install


def test_drained_it_is_finished_and_says_so_everywhere(shop, tidegate, loop):
    loop()
    said = tidegate("stop", CODE, "--drain", "--savepoint", "last", "--reason", "season over", "--json")
    assert (said.code, said.json["drained"], said.json["entry"], said.json["checkpoint"]) == (0, True, 3, 3)
    assert shop.rows() == [1, 2, 3], "what it gave out is on the tables"
    assert refused(shop).reason == "FINISHED"
    assert tidegate("list", "--json").json["pipelines"][0]["state"] == "finished"
    assert "finished the pipeline with it, because: season over" in " ".join(
        tidegate("explain", "orders", "3").out.split()
    )
    assert tidegate("savepoint", "list", "orders", "--json").json["savepoints"][0]["checkpoint"] == 3


def test_a_finished_pipeline_continues_only_on_purpose(shop, tidegate, loop):
    loop()
    tidegate("stop", CODE, "--drain")
    said = tidegate("resume", "orders", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "FINISHED")
    assert "rollback MODULE:pipeline --to 2" in said.json["error"]["help"]
    assert tidegate("resume", "orders", "--after-end").code == 0
    assert shop.checkpoint() == 5


def test_if_the_last_checkpoint_is_aborted_the_pipeline_is_not_finished(shop, tidegate, loop):
    loop(abort=True)
    said = tidegate("stop", CODE, "--drain", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "NOT_DRAINED")
    assert shop.checkpoint() == 4


def test_draining_needs_the_code(shop, tidegate):
    said = tidegate("stop", "orders", "--drain", "--json")
    assert (said.code, said.json["error"]["reason"]) == (2, "NEEDS_CODE")
