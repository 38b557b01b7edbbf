"""The history: a row for each settled checkpoint, once, whoever writes it, and harmless when it breaks."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from unittest import mock

import msgspec
import pyarrow as pa
import pytest

from tests.kit.toy_world import ToyWorld
from tidegate import seams
from tidegate.delta.journal import Journal, to_merge
from tidegate.delta.log.active_files import DataFile
from tidegate.errors import Invalid, Unavailable
from tidegate.history import table as history
from tidegate.history.query import CheckpointHistory, HistoryFilter
from tidegate.history.row import MEASURES
from tidegate.history.selection import HistoryRows, undone
from tidegate.history.table import COLUMNS, journal_of, live_row, remember, rows_table
from tidegate.history.without_values import LEFT_OUT


def past(world: ToyWorld) -> CheckpointHistory:
    return CheckpointHistory(world.ledger, {})


def ids(world: ToyWorld, **wanted: object) -> list[int]:
    return [row.id for row in past(world).page(HistoryFilter(limit=200, **wanted)).rows]


def written(world: ToyWorld) -> list[int]:
    return journal_of(world.ledger, {}).read(["id"])["id"].to_pylist()


def lived(world: ToyWorld, count: int) -> ToyWorld:
    """So many checkpoints, each written down as a run would."""
    for n in range(count):
        world.checkpoint(f"run{n}", rows=3)
        remember(world.ledger, {})
    return world


# -- what is written, and when ---------------------------------------------------------------------------


def test_what_is_settled_is_there_once_however_often_it_is_asked_for(world):
    lived(world, 3)
    assert remember(world.ledger, {}) == 0
    assert written(world) == [1, 2, 3]


def test_what_is_not_settled_yet_is_told_by_the_ledger(world):
    lived(world, 1)
    world.decided("two", rows=3)
    world.coordinator().abort(world.trigger("three"), "CANCELLED", "by hand")
    remember(world.ledger, {})
    assert written(world) == [1, 2], "an aborted one is settled with the completed one behind it"
    assert [(row.id, row.state) for row in past(world).page(HistoryFilter()).rows] == [
        (3, "aborted"),
        (2, "completed"),
        (1, "completed"),
    ]


def test_aborted_ones_come_with_the_next_completed_one(world):
    lived(world, 1)
    world.coordinator().abort(world.trigger("two"), "CANCELLED", "by hand")
    world.checkpoint("three", rows=3)
    remember(world.ledger, {})
    assert written(world) == [1, 2, 3]
    assert past(world).find(2).why == "by hand"


def test_a_checkpoint_is_told_of_when_its_records_are_gone(world):
    world.limit(num_retained=1)
    for n in range(4):
        world.decided(f"run{n}", rows=3)
        world.coordinator().publish()
        remember(world.ledger, {})
        world.coordinator().retire()
    assert world.ledger.ids() == [4]
    assert ids(world) == [4, 3, 2, 1]
    first = past(world).find(1)
    assert first.rows_out == 6  # three rows for each of two sinks
    assert first.details.jobs["main"].rows == {"a": 3, "b": 3}
    assert not first.records_retained
    assert past(world).find(4).records_retained


def test_a_ledger_that_is_older_than_its_history_is_read_in_parts(world, monkeypatch):
    monkeypatch.setattr("tidegate.history.table.BATCH", 3)
    for n in range(8):
        world.checkpoint(f"run{n}", rows=1)
    assert remember(world.ledger, {}) == 8
    assert written(world) == list(range(1, 9))


def test_many_checkpoints_lie_in_few_files_and_each_is_found(world):
    lived(world, 20)
    folder = world.folder / "history"
    assert written(world) == list(range(1, 21))
    files = sorted(path.name for path in folder.glob("*.parquet"))
    assert len(files) == 2 + 4, files  # two of eight rows, four of one
    assert past(world).find(5).details.jobs["main"].rows == {"a": 3, "b": 3}


@pytest.mark.parametrize(("rows", "new", "merged"), [([1] * 7, 1, 7), ([1] * 6, 1, 0), ([8] * 7 + [1] * 7, 1, 14)])
def test_eight_files_of_a_size_become_one(rows, new, merged):
    assert len(to_merge([file(count) for count in rows], new)) == merged


def test_large_files_are_left_alone():
    assert to_merge([file(512)] * 20, 512) == []
    assert len(to_merge([file(512)] * 20 + [file(64)] * 7, 64)) == 7


def file(rows: int) -> DataFile:
    return DataFile(f"{rows}", 1, {}, rows=rows)


# -- two at once, crashes, damage ------------------------------------------------------------------------


def test_two_who_write_at_once_write_each_row_once(world):
    lived(world, 2)
    world.checkpoint("three", rows=3)

    def another(point: str) -> None:
        if point == "H1.history.before":
            with seams.installed(seams.Seams()):
                assert remember(world.ledger, {}) == 1

    with seams.installed(seams.Seams(fault=another)):
        assert remember(world.ledger, {}) == 0
    assert written(world) == [1, 2, 3]
    assert len(list((world.folder / "history").glob("*.parquet"))) == 3, "the loser takes its file with it"


@pytest.mark.parametrize("point", ["H1.history.before", "H1.history.after"])
def test_a_write_that_breaks_off_is_done_by_the_next(world, point, caplog):
    lived(world, 2)
    world.checkpoint("three", rows=3)

    def fail(at: str) -> None:
        if at == point:
            raise Unavailable("the disk is gone", reason="STORAGE")

    with seams.installed(seams.Seams(fault=fail)):
        assert remember(world.ledger, {}) == 0
    assert "No checkpoint is harmed" in caplog.text
    remember(world.ledger, {})
    assert written(world) == [1, 2, 3]


@pytest.mark.parametrize("damage", ["log", "file", "folder"])
def test_damage_harms_no_checkpoint_and_what_the_ledger_has_is_shown(world, damage, caplog):
    lived(world, 9)
    folder = world.folder / "history"
    if damage == "log":
        (folder / "_delta_log" / f"{8:020d}.json").write_bytes(b"")
    elif damage == "file":
        for path in folder.glob("*.parquet"):
            os.truncate(path, 10)
    else:
        shutil.rmtree(folder)
        folder.write_text("not a folder")
    world.checkpoint("more", rows=3)
    remember(world.ledger, {})
    assert ("could not be written" in caplog.text) == (damage != "file")
    shown = past(world)
    assert [row.id for row in shown.page(HistoryFilter()).rows] == list(range(10, 0, -1))
    assert shown.problem
    world.exact()


def test_a_lost_history_begins_anew_with_what_is_left(world):
    lived(world, 3)
    shutil.rmtree(world.folder / "history")
    assert ids(world) == [3, 2, 1]
    world.checkpoint("more", rows=3)
    remember(world.ledger, {})
    assert written(world) == [1, 2, 3, 4]


def test_a_reader_continues_while_files_are_merged(world):
    lived(world, 7)
    shown = past(world)
    assert [row.id for row in shown.page(HistoryFilter()).rows] == list(range(7, 0, -1))
    lived_more(world, 3)
    assert shown.find(2).details.jobs
    assert ids(world) == list(range(10, 0, -1))


def lived_more(world: ToyWorld, count: int) -> None:
    for n in range(count):
        world.checkpoint(f"more{n}", rows=1)
        remember(world.ledger, {})


def test_columns_that_came_later_are_null_in_older_rows(world):
    """A history that was begun before jobs told what they read continues."""
    later = ("rows_in", "rate", "sync_seconds")
    older = {**history.SCHEMA, "fields": [each for each in history.SCHEMA["fields"] if each["name"] not in later]}
    with mock.patch.object(history, "SCHEMA", older):
        lived(world, 2)
        assert "rate" not in {each["name"] for each in journal_of(world.ledger, {}).opened().schema["fields"]}
    world.checkpoint("more", rows=3)
    remember(world.ledger, {})
    assert written(world) == [1, 2, 3]
    world.limit(num_retained=1).coordinator().retire()
    assert [past(world).find(id).rows_in for id in (1, 2, 3)] == [None, None, 3]


# -- what is told ----------------------------------------------------------------------------------------


def test_pages_are_sorted_filtered_and_counted(world):
    lived(world, 5)
    world.coordinator().abort(world.trigger("bad"), "JOB_FAILED", "<b>boom</b>")
    assert ids(world, states=("aborted",)) == [6]
    assert ids(world, text="BOOM") == [6]
    assert ids(world, text="run3") == [4]
    assert ids(world, sort="id", descending=False) == [1, 2, 3, 4, 5, 6]
    assert ids(world, sort="seconds")[-1] in (1, 2, 3, 4, 5, 6)
    assert ids(world, since=datetime.now(UTC) + timedelta(days=1)) == []
    page = past(world).page(HistoryFilter(offset=2, limit=2))
    assert ([row.id for row in page.rows], page.total) == ([4, 3], 6)
    assert past(world).counts() == {
        "triggered": 6,
        "in_progress": 0,
        "held": 0,
        "completed": 5,
        "failed": 1,
        "cancelled": 0,
        "rollbacks": 0,
        "rolled_back": 0,
        "swaps": 0,
        "replaced": 0,
    }


@pytest.mark.parametrize(
    "wanted",
    [HistoryFilter(limit=201), HistoryFilter(limit=0), HistoryFilter(offset=-1), HistoryFilter(sort="details")],
)
def test_what_is_no_page_is_refused(world, wanted):
    lived(world, 1)
    with pytest.raises(Invalid):
        past(world).page(wanted)


def test_percentiles_are_of_completed_ones(world):
    lived(world, 4)
    world.coordinator().abort(world.trigger("bad"), "JOB_FAILED")
    told = past(world).summary()
    assert set(told) == set(MEASURES)
    assert told["rows_out"] == {
        "min": 6,
        "p50": 6,
        "p90": 6,
        "p95": 6,
        "p99": 6,
        "p999": 6,
        "max": 6,
        "avg": 6,
        "count": 4,
    }
    assert told["lag_seconds"] is None


def test_percentiles_of_known_numbers(world):
    lived(world, 1)
    (row,) = [live_row(world.ledger, world.ledger.entry(1))]
    many = [msgspec.structs.replace(row, id=n, seconds=float(n)) for n in range(1, 102)]
    spread = HistoryRows(rows_table(many)).summary(HistoryFilter())["seconds"]
    assert spread == {
        "min": 1,
        "p50": 51,
        "p90": 91,
        "p95": 96,
        "p99": 100,
        "p999": 100.9,
        "max": 101,
        "avg": 51,
        "count": 101,
    }


def test_points_are_oldest_first(world):
    lived(world, 5)
    told = past(world).points(["rows_out", "state"], limit=3)
    assert told == {"id": [3, 4, 5], "rows_out": [6, 6, 6], "state": ["completed"] * 3}


def test_what_was_rolled_back_is_told_by_what_came_later(world):
    lived(world, 4)
    rows = [live_row(world.ledger, world.ledger.entry(n)) for n in (1, 2, 3, 4)]
    back = msgspec.structs.replace(rows[0], id=5, outcome="rollback", back_to=2)
    assert undone(rows_table([*rows, back])).to_pylist() == [None, None, 5, 5, None]
    again = msgspec.structs.replace(rows[0], id=6, outcome="rollback", back_to=3)
    assert undone(rows_table([*rows, back, again])).to_pylist() == [None, None, None, 6, 6, None]


def test_details_are_json_and_long_reasons_are_whole_there(world):
    lived(world, 1)
    world.coordinator().abort(world.trigger("bad"), "JOB_FAILED", "x" * 5000)
    row = live_row(world.ledger, world.ledger.entry(2))
    assert len(row.why) == 500
    assert len(json.loads(rows_table([row])["details"][0].as_py())["detail"]) == 5000


def test_a_row_has_when_its_job_began(world):
    lived(world, 1)
    told = past(world).find(1)
    assert told.delay_seconds >= 0
    assert told.details.jobs["main"].started >= told.planned[:19]


# -- what was found is kept, and told only while it is so --------------------------------------------------


def test_whoever_looks_again_gets_what_was_found_until_something_changes(world, monkeypatch):
    lived(world, 3)
    first = past(world).rows
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.delta.journal.Journal.read", lambda *_, **__: pytest.fail("nothing has changed"))
        assert past(world).rows is first
        opened = world.trigger("open")
        assert past(world).newest("open").id == opened
        assert past(world).counts()["in_progress"] == 1
        world.coordinator().abort(opened, "CANCELLED", "by hand")
        assert past(world).newest("open") is None
        assert past(world).counts()["failed"] == 1
    lived_more(world, 1)
    assert ids(world) == [5, 4, 3, 2, 1]
    assert (past(world).newest("completed").id, past(world).counts()["completed"]) == (5, 4)


def test_what_others_add_while_it_is_read_is_there_once(world, monkeypatch):
    """The table is opened, then others write more rows, then its files are read."""
    lived(world, 2)
    world.checkpoint("three", rows=3)
    read = Journal.read

    def late(journal: Journal, *words: object, **named: object) -> object:
        remember(world.ledger, {})
        return read(journal, *words, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "read", late)
        assert ids(world) == [3, 2, 1]
    assert ids(world) == [3, 2, 1]
    lived_more(world, 1)
    assert ids(world) == [4, 3, 2, 1]


ORDERS = [("id", True), ("id", False), ("seconds", True), ("seconds", False), ("reason", True), ("state", False)]
WANTED = [{}, {"states": ("aborted", "rolled back")}, {"kinds": ("checkpoint",)}, {"text": "RUN1"}, {"text": "4"}]


def test_pages_are_those_of_a_plain_search(world):
    """Rows with ties, nulls and rollbacks, in all orders, by all filters, page by page."""
    lived(world, 1)
    row = live_row(world.ledger, world.ledger.entry(1))
    put = msgspec.structs.replace
    rows = [put(row, id=n, run=f"run{n}", seconds=[2.0, 1.0, None][n % 3]) for n in range(1, 60)]
    rows[19] = put(row, id=20, outcome="rollback", back_to=12, run="back")
    rows[29] = put(row, id=30, outcome="aborted", reason="JOB_FAILED", seconds=1.0)
    shown = HistoryRows(rows_table(rows, COLUMNS))
    plain = shown.table.to_pylist()
    assert [each["id"] for each in plain if each["state"] == "rolled back"] == list(range(13, 20))
    for wanted in WANTED:
        for by, descending in ORDERS:
            found = [each for each in plain if meant(each, **wanted)]
            found.sort(key=lambda each: each["id"], reverse=True if by != "id" else descending)
            if by != "id":
                some = [each for each in found if each[by] is not None]
                some.sort(key=lambda each: each[by], reverse=descending)
                found = some + [each for each in found if each[by] is None]
            told = []
            for offset in range(0, 70, 7):
                page, total = shown.page(
                    HistoryFilter(**wanted, sort=by, descending=descending, offset=offset, limit=7)
                )
                assert total == len(found)
                told += page
            assert told == found, (wanted, by, descending)


def meant(row, states=(), kinds=(), text=""):
    looked = " ".join([row["run"], row["reason"], row["why"], row["by"] or "", str(row["id"])]).lower()
    return (not states or row["state"] in states) and (not kinds or row["kind"] in kinds) and text.lower() in looked


def test_a_history_of_before_values_were_kept_out_is_read_and_its_texts_are_for_some_only(world):
    """The table has no such column yet: its rows have been written by an older version."""
    lived(world, 1)
    failed = world.trigger("two")
    world.coordinator().abort(failed, "JOB_FAILED", "malformed record: SECRET")
    rows = rows_table([live_row(world.ledger, world.ledger.entry(id)) for id in (1, failed)], COLUMNS)
    older = rows.set_column(COLUMNS.index("quotes_rows"), "quotes_rows", pa.nulls(2, pa.bool_()))
    shown = HistoryRows(older)
    assert shown.find(failed)["why"] == "malformed record: SECRET"
    hidden = shown.without_texts()
    assert hidden.find(failed)["why"] == LEFT_OUT
    assert hidden.find(1)["why"] == ""
    assert hidden.page(HistoryFilter(text="SECRET"))[1] == 0
    assert HistoryRows(rows).without_texts().find(failed)["why"] == "malformed record: SECRET", "it was kept out there"
