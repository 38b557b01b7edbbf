"""savepoint: a checkpoint with a name stays, can be looked at, verified and gone back to, and is let go of."""

from __future__ import annotations

import pytest

from tests.kit.shop import CODE, Shop


@pytest.fixture
def shop(folder, tidegate):
    """Three checkpoints, of a row each; one is retained."""
    (folder / "tidegate.toml").write_text('root = "ledger"\nnum_retained = 1\n')
    shop = Shop(folder)
    for _ in range(3):
        shop.checkpoint()
    return shop


def ids(shop):
    shop.coordinator.retire()
    return shop.coordinator.ledger.ids()


def test_it_stays_while_others_go_and_can_be_gone_back_to_by_its_name(shop, tidegate):
    made = tidegate("savepoint", "create", "orders", "good", "--checkpoint", "2", "--note", "before prices", "--json")
    assert (made.code, made.json["checkpoint"]) == (0, 2)
    shop.checkpoint()
    assert ids(shop) == [2, 4]
    listed = tidegate("savepoint", "list", "orders", "--json").json["savepoints"]
    assert [(each["name"], each["checkpoint"], each["note"]) for each in listed] == [("good", 2, "before prices")]
    assert "before prices" in tidegate("savepoint", "list", "orders").out
    assert "checkpoint 2" in tidegate("savepoint", "show", "orders", "good").out
    assert len(tidegate("read", "orders", "good", "--checkpoint", "2", "--json").json["rows"]) == 2
    assert [found for found in tidegate("doctor", CODE, "--json").json["findings"] if found["state"] == "bad"] == []
    assert tidegate("rollback", CODE, "--to", "good", "--yes").code == 0
    assert shop.rows() == [1, 2]
    assert shop.checkpoint() == 6
    assert shop.rows() == [1, 2, 6]


def test_without_a_number_it_is_the_last_one_that_is_on_all_tables(shop, tidegate):
    shop.checkpoint(publish=False)
    assert tidegate("savepoint", "create", "orders", "now", "--json").json["checkpoint"] == 3
    refused = tidegate("savepoint", "create", "orders", "later", "--checkpoint", "4", "--json")
    assert (refused.code, refused.json["error"]["reason"]) == (1, "NO_SUCH_CHECKPOINT")


def test_a_name_is_given_once(shop, tidegate):
    assert tidegate("savepoint", "create", "orders", "now").code == 0
    assert tidegate("savepoint", "create", "orders", "now").code == 0, "the same again is no error"
    refused = tidegate("savepoint", "create", "orders", "now", "--checkpoint", "2", "--json")
    assert (refused.code, refused.json["error"]["reason"]) == (1, "NAME_TAKEN")
    assert tidegate("savepoint", "create", "orders", "17", "--json").json["error"]["reason"] == "BAD_NAME"


def test_once_disposed_of_it_goes_like_any_other(shop, tidegate):
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "1")
    assert ids(shop) == [1, 3]
    assert tidegate("savepoint", "dispose", "orders", "good").code == 2, "nobody is asked here, and --yes is missing"
    assert tidegate("savepoint", "dispose", "orders", "good", "--yes").code == 0
    assert ids(shop) == [3]
    assert tidegate("savepoint", "show", "orders", "good", "--json").json["error"]["reason"] == "NO_SUCH_SAVEPOINT"


def test_two_names_of_one_checkpoint_are_two(shop, tidegate):
    for name in ("one", "two"):
        tidegate("savepoint", "create", "orders", name, "--checkpoint", "1")
    tidegate("savepoint", "dispose", "orders", "one", "--yes")
    assert ids(shop) == [1, 3]


def test_verifying_looks_at_every_file(shop, tidegate):
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "2")
    assert tidegate("savepoint", "verify", CODE, "good").code == 0
    shop.staged(1).unlink()
    said = tidegate("savepoint", "verify", CODE, "good", "--json")
    assert (said.code, said.json["complete"]) == (1, False)
    assert "files of version 1" in said.json["problems"][0]


def test_scenario_13_the_only_one_that_can_be_restored_stays_however_few_are_retained(shop, tidegate):
    """num_retained = 1, a savepoint below: neither counts for the other."""
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "3")
    assert ids(shop) == [3]
    shop.checkpoint()
    assert ids(shop) == [3, 4]


@pytest.fixture
def loop(shop, monkeypatch):
    """In place of Spark: makes the checkpoint that is asked for, or aborts it."""

    def install(state="completed"):
        asked = []

        def run_loop(coordinator, schedules, progress, settings, out):
            (schedule,) = schedules
            asked.append(schedule)
            if state == "completed":
                id = shop.checkpoint(aligned=schedule.aligned)
            else:
                id = shop.coordinator.abort(shop.trigger(aligned=schedule.aligned).id, "GATE_FAILED").id
            progress.checkpoints.append({"id": id, "state": state})

        monkeypatch.setattr("tidegate.cli.lifecycle.savepoint.run_loop", run_loop)
        return asked

    return install


def test_one_may_be_made_for_it_that_waits_for_every_job(shop, tidegate, loop):
    asked = loop()
    said = tidegate("savepoint", "create", CODE, "whole", "--new", "--json")
    assert (said.code, said.json["checkpoint"]) == (0, 4), said.err
    assert [(each.checkpoints, each.aligned) for each in asked] == [(1, True)]
    copied = tidegate("savepoint", "create", CODE, "copied", "--new", "--copy", "copies/it", "--json")
    assert (copied.code, copied.json["checkpoint"]) == (0, 5), copied.err
    assert tidegate("savepoint", "verify", "copies/it", "--json").json["complete"]
    taken = tidegate("savepoint", "create", CODE, "whole", "--new", "--json")
    assert (taken.code, taken.json["error"]["reason"], len(asked)) == (1, "NAME_TAKEN", 2), "before anything is made"


def test_if_that_is_not_completed_nothing_has_a_name(shop, tidegate, loop):
    loop("aborted")
    said = tidegate("savepoint", "create", CODE, "whole", "--new", "--json")
    assert (said.code, said.json["error"]["reason"]) == (1, "NOT_COMPLETED")
    assert tidegate("savepoint", "list", "orders", "--json").json["savepoints"] == []


def test_one_can_only_be_made_by_the_code_and_is_no_other_one(shop, tidegate):
    assert tidegate("savepoint", "create", "orders", "whole", "--new", "--json").json["error"]["reason"] == "NEEDS_CODE"
    assert tidegate("savepoint", "create", CODE, "whole", "--new", "--checkpoint", "2").code == 2
