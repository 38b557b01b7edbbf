"""IcebergAppend: real pyiceberg on a catalog in SQLite, rows staged by Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate import seams
from tidegate.connectors.sink import Head, Publication, SinkContext, Staging
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.sinks import IcebergAppend


class Lake:
    """A catalog with a namespace, and a pipeline's sink."""

    def __init__(self, folder: Path, spark: Any, **declared: Any) -> None:
        from pyiceberg.catalog import load_catalog

        self.options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
        self.catalog = load_catalog("lake", **self.options)
        self.catalog.create_namespace("shop")
        self.spark, self.folder = spark, folder
        self.sink = IcebergAppend("shop.orders", connection="lake", **declared)
        self.context = self.of("p", "u")

    def of(self, pipeline: str, uid: str, options: dict[str, str] | None = None) -> SinkContext:
        connections = {f"lake.{name}": text for name, text in (options or self.options).items()}
        place = Place(str(self.folder), connections=connections)
        return SinkContext(pipeline, uid, "s", place, home=f"{self.folder}/home")

    def frame(self, *keys: int) -> Any:
        rows = self.spark.range(1).selectExpr(f"explode(array({', '.join(map(str, keys))})) AS k")
        return rows.selectExpr(
            "k",
            "concat('row ', k) AS v",
            "cast(k / 4 AS decimal(12,2)) AS price",
            "timestamp '2026-01-01 12:00:00' + make_dt_interval(0, 0, 0, k) AS at",
            "date '2026-01-01' AS day",
            "array('a', null) AS tags",
            "named_struct('x', k / 2) AS place",
        )

    def stage(self, id: int, *keys: int, frame: Any = None, attempt: str = "a") -> Json:
        rows = self.frame(*keys) if frame is None else frame
        committable = self.sink.prepare(rows, self.context, Staging(id, attempt)).committable
        assert committable is not None
        return committable

    def publish(self, id: int, *batches: Json, head: Head | None = None) -> PublishedTable | None:
        head = head or self.sink.head(self.context)
        return self.sink.publish(Publication(id, 0, seams.new_id(), head.last_entry, batches), head, self.context)

    @property
    def table(self) -> Any:
        return self.catalog.load_table("shop.orders")

    @property
    def keys(self) -> list[int]:
        return sorted(self.table.scan().to_arrow()["k"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path, spark: Any) -> Lake:
    return Lake(tmp_path, spark)


def test_each_checkpoint_is_one_snapshot_that_tells_its_number(lake):
    lake.sink.check(lake.context)
    assert lake.sink.head(lake.context) == Head(None, None)
    first = lake.stage(1, 1, 2)
    assert not lake.catalog.table_exists("shop.orders"), "nothing is there before the decision"
    assert lake.publish(1, first) is not None
    assert lake.publish(4, lake.stage(4, 3)) is not None
    assert lake.keys == [1, 2, 3]
    assert [snapshot.summary["tidegate.checkpoint"] for snapshot in lake.table.snapshots()] == ["1", "4"]
    assert lake.sink.head(lake.context).last_entry == 4
    row = lake.table.scan(row_filter="k = 3").to_arrow().to_pylist()[0]
    assert (row["v"], str(row["price"]), row["tags"], row["place"]) == ("row 3", "0.75", ["a", None], {"x": 1.5})


def test_published_by_two_from_the_same_head_the_rows_are_there_once(lake):
    lake.publish(1, lake.stage(1, 1))
    head, batch = lake.sink.head(lake.context), lake.stage(2, 2)
    assert lake.publish(2, batch, head=head) is not None
    assert lake.publish(2, batch, head=head) is None
    assert lake.keys == [1, 2]


def test_a_publisher_that_sleeps_before_its_commit_finds_that_others_were_faster(lake, monkeypatch):
    lake.publish(1, lake.stage(1, 1))
    batch, add = lake.stage(2, 2), IcebergAppend._add

    def slowly(sink: IcebergAppend, transaction: Any, rows: Any) -> None:
        monkeypatch.setattr(IcebergAppend, "_add", add)
        add(sink, transaction, rows)
        assert lake.publish(2, batch) is not None  # another publisher, while this one sleeps

    monkeypatch.setattr(IcebergAppend, "_add", slowly)
    assert lake.publish(2, batch) is None
    assert lake.keys == [1, 2]
    assert len(lake.table.snapshots()) == 2


def test_a_foreign_commit_in_between_is_a_lost_race_then_a_success(lake, monkeypatch):
    lake.publish(1, lake.stage(1, 1))
    batch, add = lake.stage(2, 2), IcebergAppend._add

    def slowly(sink: IcebergAppend, transaction: Any, rows: Any) -> None:
        monkeypatch.setattr(IcebergAppend, "_add", add)
        add(sink, transaction, rows)
        lake.table.append(lake.table.scan().to_arrow())

    monkeypatch.setattr(IcebergAppend, "_add", slowly)
    assert lake.publish(2, batch) is None
    assert lake.publish(2, batch) is not None
    assert lake.keys == [1, 1, 2]


def test_a_rollback_that_keeps_the_rows_fences_publishers_from_before_it(lake, monkeypatch):
    lake.publish(1, lake.stage(1, 1))
    head, late = lake.sink.head(lake.context), lake.stage(2, 2)
    assert "rows are not removed" in lake.sink.restore_plan(1, None, (), lake.context).rows_stay_reason
    assert lake.sink.restore(Publication(3, 1, "m", 1, ()), head, lake.context) is not None
    assert lake.publish(2, late, head=head) is None
    assert lake.publish(2, late) is None
    assert lake.keys == [1]


def test_a_table_with_other_columns_is_refused_before_anything_is_staged(lake):
    lake.publish(1, lake.stage(1, 1))
    frame = lake.frame(2).selectExpr("string(k) AS k", "v", "price", "at", "day", "tags", "place", "1 AS extra")
    with pytest.raises(Invalid) as refused:
        lake.sink.prepare(frame, lake.context, Staging(2, "a"))
    assert "'k' is string; the table has int" in refused.value.what
    assert "'extra' (int) is not in the table" in refused.value.what
    assert lake.sink.attempts(2, lake.context) == []


def test_a_column_that_the_table_has_lost_since_is_not_added_by_publishing(lake):
    lake.publish(1, lake.stage(1, 1))
    staged = lake.stage(2, 2)
    with lake.table.update_schema() as update:
        update.delete_column("price")
    with pytest.raises(Invalid, match="was changed since the rows were staged") as refused:
        lake.publish(2, staged)
    assert refused.value.reason == "TABLE_CHANGED"
    assert "price" not in lake.table.schema().column_names
    assert lake.keys == [1]


@pytest.mark.parametrize(
    "value",
    [
        "timestamp_micros(-62135596800000001)",
        "timestamp_micros(253402300800000000)",
        "timestamp_ntz'-0044-03-15 12:00:00'",
        "timestamp_ntz'+10000-01-01 00:00:00'",
        "date'0000-12-31'",
        "date'+10000-01-01'",
    ],
)
def test_a_moment_that_pyiceberg_cannot_write_is_refused_before_the_decision(lake, value):
    with pytest.raises(Invalid, match="'odd one' is outside of the years 1 to 9999") as refused:
        lake.stage(1, frame=lake.frame(1, 2).selectExpr("k", f"if(k = 2, {value}, NULL) AS `odd one`"))
    assert refused.value.reason == "BAD_ROWS"
    good = lake.frame(1).selectExpr("k", "day AS `odd one`")
    assert lake.publish(1, lake.stage(1, frame=good, attempt="b")) is not None


def test_the_first_and_the_last_moment_that_are_left_are_written(lake):
    first = "timestamp_micros(-62135596800000000) AS a, timestamp_ntz'0001-01-01 00:00:00' AS b, date'0001-01-01' AS c"
    last = "timestamp_micros(253402300799999999), timestamp_ntz'9999-12-31 23:59:59.999999', date'9999-12-31'"
    frame = lake.spark.sql(f"SELECT 1 AS k, {first} UNION ALL SELECT 2, {last} UNION ALL SELECT 3, NULL, NULL, NULL")
    assert lake.publish(1, lake.stage(1, frame=frame)) is not None
    rows = lake.table.scan().to_arrow().sort_by("k").to_pylist()
    assert [(row["a"].year, row["b"].year, row["c"].year) for row in rows[:2]] == [(1, 1, 1), (9999, 9999, 9999)]
    assert (rows[2]["a"], rows[2]["b"], rows[2]["c"]) == (None, None, None)


def test_new_columns_are_added_if_that_is_declared(tmp_path, spark):
    lake = Lake(tmp_path, spark, schema_evolution="add")
    lake.publish(1, lake.stage(1, 1))
    lake.publish(2, lake.stage(2, frame=lake.frame(2).selectExpr("*", "k + 1 AS extra")))
    assert lake.table.scan().to_arrow().sort_by("k")["extra"].to_pylist() == [None, 3]


def test_a_catalog_that_is_not_there_is_said_to_be_away_and_no_login_shows(lake):
    broken = lake.of("p", "u", {**lake.options, "uri": "postgresql+nothing://me:hunter2@127.0.0.1:1/x"})
    with pytest.raises((Invalid, Unavailable)) as refused:
        lake.sink.check(broken)
    assert "hunter2" not in str(refused.value) + repr(refused.value.__cause__)
    with pytest.raises(Invalid, match="connection 'lake' does not exist"):
        lake.sink.check(SinkContext("p", "u", "s", Place(str(lake.folder))))


def test_a_namespace_that_is_missing_is_refused(lake):
    sink = IcebergAppend("elsewhere.orders", connection="lake")
    with pytest.raises(Invalid, match="no namespace 'elsewhere'"):
        sink.check(lake.context)


def test_the_declaration_names_no_login_and_its_problems_are_told_at_once():
    sink = IcebergAppend("orders", connection="", schema_evolution="maybe")
    assert len(sink.problems()) == 3
    assert json.dumps(sink.describe())


def test_a_pipeline_that_was_started_afresh_is_refused_until_it_takes_over(lake):
    """It finds no mark of its own, and would add everything once more."""
    lake.publish(3, lake.stage(3, 1, 2))
    before, lake.context = lake.context, lake.of("p", "fresh")
    for look in (lake.sink.check, lake.sink.head):
        with pytest.raises(Invalid, match="rows of another pipeline named 'p'") as refused:
            look(lake.context)
        assert refused.value.reason == "OTHER_OWNER"
    declared, lake.sink = lake.sink, IcebergAppend("shop.orders", connection="lake", take_over=True)
    assert lake.publish(1, lake.stage(1, 3)) is not None
    assert lake.keys == [1, 2, 3]
    assert declared.head(lake.context).last_entry == 1, "once it has taken over, the declaration may forget it"
    with pytest.raises(Invalid, match="rows of another pipeline"):
        declared.head(before)
    assert declared.head(lake.of("q", "other")).last_entry is None, "pipelines with other names may add, too"


def test_values_inside_of_others_that_are_never_null_are_no_difference(lake):
    """Spark knows that they are not; the table, which a first checkpoint made, must take later ones."""
    for id in (1, 2):
        inside = "named_struct('x', 1, 'y', array(named_struct('z', 1))) AS s, map('a', named_struct('x', 1)) AS m"
        lake.publish(id, lake.stage(id, frame=lake.spark.sql(f"SELECT {id} AS k, array(1) AS a, {inside}")))
    nulls = "named_struct('x', CAST(NULL AS int), 'y', array(named_struct('z', CAST(NULL AS int)))) AS s"
    rows = f"SELECT 3 AS k, array(1) AS a, {nulls}, map('a', named_struct('x', CAST(NULL AS int))) AS m"
    lake.publish(3, lake.stage(3, frame=lake.spark.sql(rows)))
    assert lake.keys == [1, 2, 3]
