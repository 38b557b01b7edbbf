"""Every command, for a pipeline that publishes to a SQLite table beside a Delta table: SQLite keeps no versions."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from types import SimpleNamespace

import duckdb
import pytest

from tests.kit.shop import CODE
from tests.kit.sqlite_shop import SQLITE_SHOP, SqliteShop
from tidegate import offline
from tidegate.errors import Invalid
from tidegate.history.query import CheckpointHistory
from tidegate.pipeline.card import card_of, read_card
from tidegate.ui import views

WHY = "a sink of kind sqlite cannot undo what it has published"


@pytest.fixture
def shop(folder, tidegate):
    """Three checkpoints, of a row each."""
    shop = SqliteShop(folder)
    for _ in range(3):
        shop.checkpoint()
    assert (shop.rows(), shop.copied()) == ([1, 2, 3], [1, 2, 3])
    return shop


def findings(tidegate, pipeline=CODE):
    told = tidegate("doctor", pipeline, "--json")
    return {found["check"]: found for found in told.json["findings"] if found["area"] == "orders"}


# -- looking -----------------------------------------------------------------------------------------


def test_read_lists_it_and_says_why_it_cannot_be_read(shop, tidegate):
    listed = tidegate("read", "orders", "--json").json["tables"]
    assert (listed["good"]["version"], listed["good"]["rows"]) == (2, 3)
    assert (listed["copied"]["version"], listed["copied"]["rows"]) == (None, None)
    assert listed["copied"]["table"] == f"sqlite:{shop.database}#orders"
    shown = tidegate("read", "orders")
    assert shown.code == 0
    assert "none" in next(line for line in shown.out.splitlines() if "copied" in line)
    refused = tidegate("read", "orders", "copied", "--json")
    assert (refused.code, refused.json["error"]["reason"]) == (2, "NO_VERSIONS")
    assert "keeps no versions: it cannot be read as of a checkpoint" in refused.json["error"]["message"]
    assert "its own client" in refused.json["error"]["help"]


def test_a_notebook_is_told_the_same(shop):
    with pytest.raises(Invalid, match="keeps no versions") as refused:
        offline.read(None, "orders", "copied")
    assert refused.value.reason == "NO_VERSIONS"


def test_diff_compares_what_can_be_compared(shop, tidegate):
    tables = tidegate("diff", "orders", "1", "3", "--json").json["tables"]
    assert tables["good"] == {"versions": [0, 2], "rows": [1, 3]}
    assert tables["copied"] == {"versions": [1, 3], "rows": [None, None]}
    told = tidegate("diff", "orders", "1", "3")
    assert told.code == 0, told.err
    assert "table copied: checkpoint 1 to 3; it has no versions, so its rows cannot be compared" in told.out


def test_list_show_and_explain_name_what_it_stands_at(shop, tidegate):
    assert tidegate("list", CODE).code == 0
    assert "copied" in tidegate("list", CODE, "--json").json["checkpoints"][0]["tables"]
    shown = tidegate("show", CODE, "3")
    assert "none" in next(line for line in shown.out.splitlines() if "sqlite:" in line)
    explained = tidegate("explain", "orders", "3").out
    assert "good at version 2" in explained
    assert "copied at checkpoint 3" in explained


# -- doctor ------------------------------------------------------------------------------------------


def test_doctor_compares_the_mark_with_the_ledger(shop, tidegate):
    found = findings(tidegate)
    assert [each for each in found.values() if each["state"] == "bad"] == []
    assert found["table good"]["state"] == "ok"
    assert (found["target copied"]["state"], "up to checkpoint 3" in found["target copied"]["detail"]) == ("ok", True)
    by_name = findings(tidegate, "orders")["target copied"]
    assert (by_name["state"], by_name["help"]) == ("cannot tell", "give the pipeline as MODULE:pipeline")


def test_doctor_notices_a_target_that_was_put_back_from_an_older_copy(shop, tidegate):
    with closing(sqlite3.connect(shop.database)) as database, database:
        database.execute("UPDATE tidegate SET last = 1")
    found = findings(tidegate)["target copied"]
    assert found["state"] == "bad"
    assert "but its mark is 1" in found["detail"]


def test_doctor_looks_for_its_staged_files_where_they_are(shop, tidegate):
    id = shop.checkpoint(publish=False)
    assert findings(tidegate)[f"staged for copied in checkpoint {id}"]["state"] == "ok"
    shop.copied_staged(id).unlink()
    found = findings(tidegate)[f"staged for copied in checkpoint {id}"]
    assert (found["state"], "1 of 1 files are gone" in found["detail"]) == ("bad", True)
    by_name = findings(tidegate, "orders")[f"staged for copied in checkpoint {id}"]
    assert by_name["state"] == "cannot tell"


def test_doctor_finds_and_removes_what_dead_attempts_left(shop, tidegate):
    plan = shop.trigger()
    shop.coordinator.abort(plan.id, "JOB_FAILED", "boom")
    shop.stage(plan.id, f"{plan.attempt}-dead")  # by a job that nobody could stop
    left = shop.copied_staged(plan.id)
    assert findings(tidegate)["left over for copied"]["state"] == "note"
    assert tidegate("doctor", CODE, "--repair").code == 0
    assert not left.exists()


def test_a_sink_that_was_removed_from_the_code_is_no_damage(shop, folder, tidegate):
    (folder / "shop.py").write_text(SQLITE_SHOP.rpartition("events.sink")[0])
    del sys.modules["shop"]
    found = findings(tidegate)["target copied"]
    assert (found["state"], "not in the code any more" in found["detail"]) == ("cannot tell", True)


# -- going back --------------------------------------------------------------------------------------


def test_a_rollback_says_that_its_rows_stay_and_asks_for_a_choice(shop, tidegate):
    said = tidegate("rollback", CODE, "--to", "1", "--dry-run")
    assert said.code == 1
    words = " ".join(said.out.split())
    assert f"table 'copied': {WHY}. Choose --keep copied (its rows stay, and rows that are read again" in words
    assert "--leave copied" in words
    told = tidegate("rollback", CODE, "--to", "1", "--dry-run", "--json").json
    assert (
        told["possible"],
        told["tables"]["copied"]["rows_stay_because"],
        told["tables"]["good"]["rows_stay_because"],
    ) == (
        False,
        WHY,
        "",
    )
    refused = tidegate("rollback", CODE, "--to", "1", "--yes", "--json")
    assert (refused.code, refused.json["error"]["reason"]) == (1, "CANNOT_ROLL_BACK")
    assert (shop.rows(), shop.copied()) == ([1, 2, 3], [1, 2, 3])


def test_with_keep_its_rows_stay_and_what_is_read_again_is_written_once_more(shop, tidegate):
    said = tidegate("rollback", CODE, "--to", "1", "--keep", "copied", "--dry-run")
    assert said.code == 0
    assert f"Rows stay in copied: {WHY}. Input that is read again is written to it again." in " ".join(said.out.split())
    done = tidegate("rollback", CODE, "--to", "1", "--keep", "copied", "--yes")
    assert done.code == 0, done.err
    assert "copied keeps its rows" in done.out
    assert "good is restored, by version 3" in done.out
    assert (shop.rows(), shop.copied()) == ([1], [1, 2, 3])
    assert shop.checkpoint() == 5
    assert (shop.rows(), shop.copied()) == ([1, 5], [1, 2, 3, 5])
    assert "Table copied: its rows were left as they were." in tidegate("explain", "orders", "4").out
    assert [each for each in findings(tidegate).values() if each["state"] == "bad"] == []


def test_a_checkpoint_that_was_rolled_back_never_comes_however_late(shop, tidegate):
    id = shop.checkpoint(publish=False)
    assert tidegate("rollback", CODE, "--to", "3", "--keep", "copied", "--yes").code == 0
    shop.coordinator.publish()
    assert shop.copied() == [1, 2, 3] != [1, 2, 3, id]


def test_with_leave_it_gets_nothing_that_is_owed_to_it(shop, tidegate):
    shop.checkpoint(publish=False)
    done = tidegate("rollback", CODE, "--to", "3", "--leave", "copied", "--yes")
    assert done.code == 0, done.err
    assert (shop.rows(), shop.copied()) == ([1, 2, 3], [1, 2, 3])


DUCK_SHOP = SQLITE_SHOP.replace("from sqlite_table import SqliteTable", "from tests.connectors.duck import DuckTable")
DUCK_SHOP = DUCK_SHOP.replace('SqliteTable("out.db", "orders", ["k", "v"])', 'DuckTable("duck.db", "orders")')


def test_a_target_that_can_take_rows_back_needs_no_choice(folder, tidegate):
    shop = SqliteShop(folder, DUCK_SHOP)
    for _ in range(3):
        shop.checkpoint()

    def rows():
        with closing(duckdb.connect(str(folder / "duck.db"))) as database:
            return [key for (key,) in database.execute("SELECT k FROM orders ORDER BY k").fetchall()]

    assert rows() == [1, 2, 3]
    shown = tidegate("rollback", CODE, "--to", "1", "--dry-run")
    assert shown.code == 0
    line = " ".join(next(line for line in shown.out.splitlines() if "copied" in line).split())
    assert "checkpoint 3" in line
    assert "checkpoint 1" in line
    assert "restore" in line
    done = tidegate("rollback", CODE, "--to", "1", "--yes")
    assert done.code == 0, done.err
    assert "copied is restored\n" in done.out
    assert (shop.rows(), rows()) == ([1], [1])
    assert shop.checkpoint() == 5
    assert rows() == [1, 5]


def test_the_page_shows_the_same_before_anybody_agrees(shop):
    coordinator = shop.coordinator
    card = read_card(card_of(coordinator.graph, coordinator.settings, "project"))
    assert card.rows_stay == {"copied": WHY}
    known = SimpleNamespace(
        data=str(coordinator.place.base),
        options={},
        past=lambda: CheckpointHistory(coordinator.ledger, {}),
        card=card,
    )
    tables = views.rollback_plan(known, 1).tables
    assert (tables["copied"].rows_stay_because, tables["good"].rows_stay_because) == (WHY, "")


# -- recovery, savepoints, forks ---------------------------------------------------------------------


def test_recover_publishes_what_is_pending(shop, tidegate):
    id = shop.checkpoint(publish=False)
    said = tidegate("recover", CODE)
    assert said.code == 0, said.err
    assert f"Published: checkpoint {id} on copied\n" in said.out
    assert f"Published: checkpoint {id} on good, as version 3" in said.out
    assert shop.copied() == [1, 2, 3, id]


def test_recover_falls_back_to_an_intact_checkpoint_and_says_that_rows_stay(shop, tidegate):
    shop.staged(3).unlink()
    told = tidegate("recover", CODE, "--dry-run", "--json").json
    assert (told["fallback"], told["rows_stay_in"]) == (2, ["copied"])
    done = tidegate("recover", CODE, "--fall-back", "--yes")
    assert done.code == 0, done.err
    assert (shop.rows(), shop.copied()) == ([1, 2], [1, 2, 3])


def test_recover_names_staged_files_that_are_gone_and_falls_back_without_them(shop, tidegate):
    id = shop.checkpoint(publish=False)
    shop.copied_staged(id).unlink()
    told = tidegate("recover", CODE, "--dry-run", "--json").json
    assert (told["fallback"], told["rows_stay_in"]) == (3, ["copied"])
    assert any("table 'copied': 1 files of checkpoint 4 are gone" in problem for problem in told["problems"])
    refused = tidegate("recover", CODE)
    assert refused.code == 1
    assert "rows stay in copied, and input that is read again is written there again" in " ".join(refused.err.split())
    assert tidegate("recover", CODE, "--fall-back", "--yes").code == 0
    assert (shop.rows(), shop.copied()) == ([1, 2, 3], [1, 2, 3])
    assert shop.checkpoint() == 6
    assert shop.copied() == [1, 2, 3, 6]


def test_a_savepoint_is_verified_by_the_mark(shop, tidegate):
    assert tidegate("savepoint", "create", "orders", "good-one").code == 0
    shop.checkpoint()
    verified = tidegate("savepoint", "verify", CODE, "good-one")
    assert verified.code == 0, verified.out
    with closing(sqlite3.connect(shop.database)) as database, database:
        database.execute("UPDATE tidegate SET last = 1")
    damaged = tidegate("savepoint", "verify", CODE, "good-one", "--json")
    assert (damaged.code, damaged.json["complete"]) == (1, False)
    assert "but its mark is 1" in damaged.json["problems"][0]


def test_a_copy_of_a_savepoint_needs_nothing_of_the_target(shop, folder, tidegate):
    copied = tidegate("savepoint", "create", "orders", "a-copy", "--copy", str(folder / "copy"))
    assert copied.code == 0, copied.err
    assert tidegate("savepoint", "verify", str(folder / "copy")).code == 0


FORK = SQLITE_SHOP.replace('Pipeline("orders"', 'Pipeline("trial"').replace('"tables/good"', '"tables/trial"')


@pytest.mark.parametrize(("table", "code"), [("trial_orders", 0), ("orders", 2)])
def test_a_fork_may_share_the_database_but_not_the_table(shop, folder, tidegate, table, code):
    (folder / "trial.py").write_text(FORK.replace('"orders", ["k", "v"]', f'"{table}", ["k", "v"]'))
    said = tidegate("fork", "orders", "--from", "3", "--as", "trial:pipeline", "--json")
    assert said.code == code, said.err
    if code:
        assert said.json["error"]["reason"] == "NOT_ITS_OWN_TABLE"
        assert "is a table of 'orders', of its sink 'copied'" in said.json["error"]["message"]
        assert "take_over" not in said.json["error"]["help"], "the other pipeline is there and goes on"
