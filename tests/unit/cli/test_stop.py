"""stop and cancel: what they end, what they wait for, and how the others tell of it."""

from __future__ import annotations

import socket

import pytest

from tests.unit.cli.test_rollback import CODE, Shop
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

    monkeypatch.setattr("tidegate.cli.stop.seams.sleep", others)
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
    assert said.json["ended"] == [plan.id]
    decision = shop.coordinator.ledger.decision(plan.id)
    assert (decision.outcome, decision.reason, decision.counts) == ("aborted", "STOPPED", False)
    assert refused(shop).reason == "STOPPED"
    assert "somebody cancelled the pipeline" in tidegate("explain", "orders", str(plan.id)).out
    assert tidegate("resume", "orders").code == 0
    assert shop.checkpoint() == 6, "what was ended is read again"


def test_a_rollback_does_not_let_a_stopped_pipeline_go_on(shop, tidegate):
    tidegate("stop", "orders", "--reason", "moved")
    assert tidegate("rollback", CODE, "--to", "1", "--yes").code == 0
    assert refused(shop).reason == "STOPPED"
