"""savepoint: a checkpoint with a name stays, can be looked at, verified and gone back to, and is let go of."""

from __future__ import annotations

import pytest

from tests.unit.cli.test_rollback import CODE, Shop


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
    assert (said.code, said.json["whole"]) == (1, False)
    assert "files of version 1" in said.json["problems"][0]


def test_scenario_13_the_only_one_that_can_be_restored_stays_however_few_are_retained(shop, tidegate):
    """num_retained = 1, a savepoint below: neither counts for the other."""
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "3")
    assert ids(shop) == [3]
    shop.checkpoint()
    assert ids(shop) == [3, 4]
