"""rollback: what it says before it does anything, what it does, and how the other commands tell of it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit import forks
from tests.kit.delta import by_foreigner, kv, rows_of, staged
from tests.kit.shop import CODE, COLUMNS, SHOP, Shop
from tidegate import seams
from tidegate.connectors.delta.sink.table import StagedBatch, staged_result
from tidegate.connectors.sink import Publication, Staging
from tidegate.delta import locate
from tidegate.errors import Invalid
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.graph.meaning import meaning_of
from tidegate.records.records import Ack, JobStats


@pytest.fixture
def shop(folder, tidegate):
    """Three checkpoints, of a row each."""
    shop = Shop(folder)
    for _ in range(3):
        shop.checkpoint()
    return shop


def test_first_it_says_what_it_would_do_and_does_nothing(shop, tidegate):
    said = tidegate("rollback", CODE, "--to", "1", "--dry-run")
    assert said.code == 0
    for expected in ("to checkpoint 1", "no longer count    checkpoint 2, 3", "events, from where", "version 0"):
        assert expected in said.out
    told = tidegate("rollback", CODE, "--to", "1", "--dry-run", "--json").json
    assert (told["undone"], told["possible"]) == ([2, 3], True)
    assert told["tables"] == {
        "good": {
            "method": "restore",
            "version": 2,
            "restored_version": 0,
            "foreign_commits": [],
            "rows_stay_because": "",
            "written_directly": False,
        }
    }
    assert shop.coordinator.ledger.ids() == [1, 2, 3]
    assert shop.rows() == [1, 2, 3]


def test_nobody_is_asked_where_nobody_can_answer(shop, tidegate):
    said = tidegate("rollback", CODE, "--to", "1")
    assert said.code == 2
    assert "--yes" in said.err
    assert shop.rows() == [1, 2, 3]


def test_it_goes_back_and_every_other_command_knows(shop, tidegate):
    shop.trigger()
    said = tidegate("rollback", CODE, "--to", "1", "--yes", "--reason", "wrong prices", "--json")
    assert said.code == 0, said.err
    assert (said.json["rollback"], said.json["tables_at"], said.json["not_yet"]) == (5, {"good": 3}, {})
    assert shop.rows() == [1]
    assert shop.checkpoint() == 6
    assert shop.rows() == [1, 6]
    rows = tidegate("list", "orders", "--json").json["checkpoints"]
    assert [(row["id"], row["state"]) for row in rows] == [
        (6, "completed"),
        (5, "rollback"),
        (4, "aborted"),
        (3, "rolled back"),
        (2, "rolled back"),
        (1, "completed"),
    ]
    assert (rows[1]["reason"], rows[1]["back_to"], rows[3]["undone_by"]) == ("wrong prices", 1, 5)
    told = tidegate("explain", "orders", "5").out
    assert "rolled back to checkpoint 1, because: wrong prices" in told
    assert "good at version 3" in told
    assert "rollback 5 undid it" in tidegate("explain", "orders", "2").out
    assert "on top of checkpoint 5" in tidegate("explain", "orders", "6").out
    assert tidegate("show", "orders", "5", "--json").json["kind"] == "restart"
    assert tidegate("show", "orders", "5").code == 0
    findings = tidegate("doctor", CODE, "--json").json["findings"]
    assert [found for found in findings if found["state"] == "bad"] == []
    read = tidegate("read", "orders", "good", "--checkpoint", "3", "--json").json
    assert len(read["rows"]) == 3, "what was rolled back can still be looked at"


def test_it_tells_what_it_has_ended_which_is_no_failure(shop, tidegate):
    first = shop.checkpoint()
    open_one = shop.trigger().id
    told = tidegate("rollback", CODE, "--to", str(first), "--yes", "--json").json
    assert told["aborted"] == [open_one]
    counts = tidegate("summary", CODE, "--json").json["counts"]
    assert (counts["failed"], counts["cancelled"]) == (0, 1)


def test_others_commits_make_it_ask_for_a_choice(shop, tidegate):
    by_foreigner(shop.table, (99, "theirs"))
    said = tidegate("rollback", CODE, "--to", "1", "--dry-run")
    assert said.code == 1
    assert "others have committed since: version 3 (WRITE)" in said.out
    assert "--retract" in said.out
    refused = tidegate("rollback", CODE, "--to", "1", "--yes", "--json")
    assert (refused.code, refused.json["error"]["reason"]) == (1, "CANNOT_ROLL_BACK")
    assert shop.rows() == [1, 2, 3, 99]
    assert tidegate("rollback", CODE, "--to", "1", "--yes", "--retract", "good").code == 0
    assert shop.rows() == [1, 99]
    assert "only this pipeline's own rows" in tidegate("explain", "orders", "4").out


def test_it_may_suspend_the_pipeline_behind_it(shop, tidegate):
    assert tidegate("rollback", CODE, "--to", "2", "--yes", "--suspend", "--reason", "look first").code == 0
    assert tidegate("list", "--json").json["pipelines"][0]["state"] == "suspended"
    assert "stays suspended" in tidegate("explain", "orders", "4").out
    assert tidegate("resume", "orders").code == 0
    assert shop.checkpoint() == 6


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["orders", "--to", "1"], 2, "NEEDS_CODE"),
        ([CODE, "--to", "9"], 1, "NO_SUCH_CHECKPOINT"),
        ([CODE, "--to", "1", "--keep", "bad"], 2, "BAD_CHOICE"),
        ([CODE, "--to", "1", "--keep", "good", "--discard", "good"], 2, "BAD_CHOICE"),
    ],
)
def test_what_makes_no_sense_is_refused(shop, tidegate, arguments, code, reason):
    said = tidegate("rollback", *arguments, "--yes", "--json")
    assert (said.code, said.json["error"]["reason"]) == (code, reason)
    assert shop.coordinator.ledger.ids() == [1, 2, 3]


def test_a_table_that_does_not_answer_is_put_back_later(shop, tidegate):
    log = shop.table.local("_delta_log")
    blocked = log / "00000000000000000003.json"
    blocked.mkdir()
    said = tidegate("rollback", CODE, "--to", "1", "--yes", "--json")
    assert said.code == 3
    assert said.json["rollback"] == 4
    assert "good" in said.json["not_yet"] or "?" in said.json["not_yet"]
    blocked.rmdir()
    shop.coordinator.publish()
    assert shop.rows() == [1]


class Early(Shop):
    """The same at least once: its jobs write to the table themselves."""

    def checkpoint(self, publish=True, **options):
        plan = self.trigger(**options)
        attempt, sink = f"{plan.attempt}-{seams.new_id()}", self.coordinator.graph.sinks["good"].sink
        context = replace(self.coordinator.context("good"), direct=True)
        files = staged(self.table, Staging(plan.id, attempt).folder(context), kv((plan.id, "row")), COLUMNS)
        committable = staged_result(StagedBatch(columns=COLUMNS, files=files), 1).committable
        head = sink.head(context)
        publication = Publication(plan.id, 0, attempt, head.last_entry, (committable,), direct=True)
        through = {"good": sink.publish(publication, head, context)}
        memory, stats = meaning_of(self.coordinator.graph), JobStats(rows={"good": 1})
        ack = Ack(
            **stamp(attempt), id=plan.id, job="main", prev=None, sinks={}, through=through, memory=memory, stats=stats
        )
        self.coordinator.ledger.create_ack(ack)
        if publish:
            assert self.coordinator.complete(plan.id).state == "completed"
            self.coordinator.publish()
        return plan.id


@pytest.fixture
def early(folder, tidegate):
    """Two checkpoints, and one that is aborted."""
    (folder / "tidegate.toml").write_text('root = "ledger"\nmode = "at_least_once"\n')
    early = Early(folder)
    for _ in range(2):
        early.checkpoint()
    early.coordinator.abort(early.checkpoint(publish=False), "TEST")
    return early


def test_at_least_once_it_says_that_rows_stay_and_they_do(early, tidegate):
    said = tidegate("rollback", CODE, "--to", "1", "--dry-run")
    assert said.code == 0
    assert "stays: it was written to at least once" in said.out
    assert "Rows that jobs wrote directly stay, and rows that are read again are added: good." in said.out
    refused = tidegate("rollback", CODE, "--to", "1", "--discard", "good", "--yes")
    assert refused.code == 1
    assert "jobs wrote to it at least once, so its rows stay" in refused.err
    assert tidegate("rollback", CODE, "--to", "1", "--yes").code == 0
    assert early.rows() == [1, 2, 3]
    assert "Table good: its rows were left as they were" in tidegate("explain", "orders", "4").out


def test_at_least_once_explain_does_not_say_that_nothing_is_visible(early, tidegate):
    said = tidegate("explain", "orders", "3").out
    assert "At least once: jobs write to good directly, before it is decided." in said
    assert "The rows that its jobs wrote to tables stay there, and are written again; the next checkpoint reads" in said
    assert tidegate("read", "orders", "good", "--checkpoint", "1", "--json").code == 0
    assert "Its tables: good at version 1." in tidegate("explain", "orders", "2").out


def test_doctor_knows_the_files_that_jobs_have_put_there_themselves(early, tidegate):
    assert "3 of this pipeline's are there" in tidegate("doctor", CODE).out
    (path,) = early.table.local("tidegate").rglob("00000002/*/*.parquet")
    path.unlink()
    said = tidegate("doctor", CODE)
    assert said.code == 1
    assert "1 that the table shows are gone" in said.out


def test_a_table_of_others_to_which_it_has_given_nothing_yet_is_left_alone(folder, tidegate):
    """No row has come to the sink so far; whatever is chosen for it, there is nothing of its own to be taken back."""
    from deltalake import DeltaTable, write_deltalake

    (folder / "shop.py").write_text(forks.CODE)
    theirs = f"{folder}/tables/totals"
    for key in (7, 8):
        write_deltalake(theirs, kv((key, "theirs")), mode="append")
    run = forks.Run("orders")
    for _ in range(2):
        run.checkpoint()
    said = tidegate("rollback", "shop:orders", "--to", "1", "--discard", "totals", "--yes", "--json")
    assert said.code == 0, said.err
    assert "totals" not in said.json["tables_at"]
    assert DeltaTable(theirs).version() == 1
    assert sorted(key for key, _ in rows_of(locate(run.coordinator.place, "tables/totals"))) == [7, 8]
    assert run.good() == [1]


def test_a_table_that_never_takes_what_it_is_owed_is_let_go_of_by_the_command_that_is_told(folder, tidegate):
    shop = Shop(folder)
    shop.checkpoint(publish=False)
    write_deltalake(shop.table.url, pa.table({"other": [1], "k": [9]}), partition_by=["other"])
    with pytest.raises(Invalid) as stuck:
        shop.coordinator.publish()
    command = "rollback MODULE:PIPELINE --to 1 --leave good"
    assert f"tidegate {command}" in stuck.value.help
    said = tidegate("rollback", CODE, "--to", "1", "--yes")
    assert said.code != 0
    assert "--leave good" in said.err + said.out
    assert tidegate("rollback", CODE, "--to", "1", "--leave", "good").code == 2, "nobody can answer"
    dry = tidegate("rollback", CODE, "--to", "1", "--leave", "good", "--dry-run")
    assert (dry.code, "stays, without its pending rows" in dry.out) == (0, True), dry
    words = command.replace("MODULE:PIPELINE", CODE).split()
    said = tidegate(*words, "--yes", "--json")
    assert said.code == 0, said
    assert (said.json["rollback"], said.json["tables"]["good"]["method"], said.json["not_yet"]) == (2, "leave", {})
    assert [row["state"] for row in tidegate("list", "orders", "--json").json["checkpoints"]] == [
        "rollback",
        "completed",
    ]
    assert DeltaTable(shop.table.url).to_pyarrow_table().to_pylist() == [{"other": 1, "k": 9}], (
        "the table stays as it is"
    )
    del sys.modules["shop"]
    elsewhere = Shop(folder, SHOP.replace("tables/good", "tables/better"))
    elsewhere.table = locate(elsewhere.coordinator.place, "tables/better")
    assert elsewhere.checkpoint() == 3
    assert elsewhere.rows() == [3], "what was owed to the old table never comes"
