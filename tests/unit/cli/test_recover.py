"""recover: what the next run will find, and the way back if that is damaged."""

from __future__ import annotations

import pytest

from tests.kit.shop import CODE, Shop


@pytest.fixture
def shop(folder, tidegate):
    """Three checkpoints, of a row each."""
    shop = Shop(folder)
    for _ in range(3):
        shop.checkpoint()
    return shop


def test_if_all_is_well_it_says_so(shop, tidegate):
    said = tidegate("recover", CODE, "--dry-run")
    assert said.code == 0
    assert "continues from checkpoint 3" in said.out
    assert "All of its records and files are intact" in said.out


def test_a_pipeline_that_has_completed_nothing_continues_from_the_beginning(folder, tidegate):
    Shop(folder).trigger()
    assert "the beginning" in tidegate("recover", CODE, "--dry-run").out


def test_what_is_dead_is_ended_and_what_is_owed_is_published(shop, tidegate):
    shop.checkpoint(publish=False)
    dead = shop.coordinator.trigger(f"process:{_host()}:{2**22 + 1}:1:x", only_if_new=False).plan
    told = tidegate("recover", CODE, "--dry-run", "--json").json
    assert (told["continues_from"], told["aborted"], told["unpublished"]) == (4, {str(dead.id): "RUN_GONE"}, {})
    assert shop.coordinator.ledger.decision(dead.id) is None, "only looked at"
    assert tidegate("recover", CODE).code == 0
    assert shop.coordinator.ledger.decision(dead.id).reason == "RUN_GONE"
    assert shop.rows() == [1, 2, 3, 4]


def _host():
    import socket

    return socket.gethostname()


def test_what_somebody_may_be_working_at_is_left_alone(shop, tidegate):
    plan = shop.trigger()
    said = tidegate("recover", CODE, "--json")
    assert (said.code, said.json["running"]) == (0, [plan.id])
    assert shop.coordinator.ledger.decision(plan.id) is None


def test_what_is_owed_is_told(shop, tidegate):
    id = shop.checkpoint(publish=False)
    assert tidegate("recover", CODE, "--dry-run", "--json").json["unpublished"] == {"good": [id]}
    assert shop.rows() == [1, 2, 3]
    assert tidegate("recover", CODE, "--json").json["published"] == {f"good {id}": 3}
    assert shop.rows() == [1, 2, 3, 4]


def test_scenario_10_staged_files_are_gone_it_falls_back_only_when_told_and_names_what_is_lost(shop, tidegate):
    """A VACUUM took what was decided and not published yet."""
    id = shop.checkpoint(publish=False)
    shop.staged(id).unlink()
    said = tidegate("recover", CODE, "--dry-run", "--json")
    assert said.code == 1
    assert (said.json["fallback"], said.json["undone"]) == (3, [id])
    assert "1 files of checkpoint 4 are gone" in said.json["problems"][0]
    refused = tidegate("recover", CODE)
    assert refused.code == 1
    assert "--fall-back to roll back to checkpoint 3: checkpoint 4 will no longer count" in refused.err
    assert shop.coordinator.ledger.ids() == [1, 2, 3, 4]
    assert tidegate("recover", CODE, "--fall-back", "--yes").code == 0
    assert shop.rows() == [1, 2, 3]
    assert shop.checkpoint() == 6
    assert shop.rows() == [1, 2, 3, 6]


def test_a_file_of_the_last_version_that_older_ones_do_not_need(shop, tidegate):
    shop.staged(3).unlink()
    told = tidegate("recover", CODE, "--dry-run", "--json").json
    assert (told["fallback"], told["undone"]) == (2, [3])
    assert "files of version 2" in told["problems"][0]
    assert tidegate("recover", CODE, "--fall-back", "--yes").code == 0
    assert shop.rows() == [1, 2]


def test_a_savepoint_counts_like_any_other_unless_the_settings_prefer_those_without_a_name(shop, tidegate):
    tidegate("savepoint", "create", "orders", "good", "--checkpoint", "2")
    shop.staged(3).unlink()
    look = ("recover", CODE, "--dry-run", "--json")
    assert tidegate(*look).json["fallback"] == 2
    told = tidegate(*look, "-D", "prefer_checkpoint_for_recovery=true").json
    assert (told["fallback"], told["undone"]) == (1, [2, 3])
    tidegate("savepoint", "create", "orders", "older", "--checkpoint", "1")
    assert tidegate(*look, "-D", "prefer_checkpoint_for_recovery=true").json["fallback"] == 2, "better than none"


def test_if_none_is_whole_it_says_so(shop, tidegate):
    shop.staged(1).unlink()
    said = tidegate("recover", CODE, "--fall-back", "--yes", "--json")
    assert (said.code, said.json["error"]["reason"]) == (3, "NOTHING_TO_RESTORE")
    assert shop.coordinator.ledger.ids() == [1, 2, 3]
