"""Which tables delta-rs may commit to is found by trying; the others are published through delta-spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import Unavailable
from tidegate.model.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sinks.base import Publication, SinkContext, Staging
from tidegate.tables import Location, open_table, spark_reasons, spark_reasons_to_rewrite

TABLES: dict[str, tuple[str, str]] = {
    # name: (columns and properties, what is said; "" where delta-rs may commit)
    "plain": ("(k int, v string)", ""),
    "not-null": ("(k int not null, v string)", ""),
    "append-only": ("(k int, v string) ~ 'delta.appendOnly'='true'", ""),
    "deletion-vectors": ("(k int, v string) ~ 'delta.enableDeletionVectors'='true'", ""),
    "change-feed": ("(k int, v string) ~ 'delta.enableChangeDataFeed'='true'", ""),
    "v2-checkpoints": ("(k int, v string) ~ 'delta.checkpointPolicy'='v2'", ""),
    "mapped": ("(k int, v string) ~ 'delta.columnMapping.mode'='name'", "column mapping by name"),
    "generated": ("(k int, v string, g int generated always as (k * 2))", "a generated column on 'g'"),
    "identity": ("(k int, v string, i bigint generated always as identity)", "identityColumns"),
    "default": ("(k int, v string default 'x') ~ 'delta.feature.allowColumnDefaults'='supported'", "ColumnDefaults"),
    "varchar": ("(k int, v varchar(3))", "char or varchar"),
    "row-tracking": ("(k int, v string) ~ 'delta.enableRowTracking'='true'", "rowTracking"),
    "in-commit-time": ("(k int, v string) ~ 'delta.enableInCommitTimestamps'='true'", "inCommitTimestamp"),
    "widening": ("(k int, v string) ~ 'delta.enableTypeWidening'='true'", "typeWidening"),
    "variant": ("(k int, v string, w variant)", "variant"),
}  # fmt: skip


def make(spark: Any, target: str, columns: str) -> None:
    columns, _, properties = columns.partition("~")
    extra = f"TBLPROPERTIES ({properties})" if properties else ""
    spark.sql(f"CREATE TABLE delta.`{target}` {columns} USING delta {extra}")


class World:
    def __init__(self, spark: Any, folder: Path, sink: Any) -> None:
        self.spark, self.sink = spark, sink
        self.context = SinkContext("p", "u", "s", Place(str(folder)), spark=lambda: spark)
        self.target = sink.target(self.context.place)

    def checkpoint(self, id: int, *rows: str, context: SinkContext | None = None) -> Any:
        """Each of `rows` is a batch: SQL values of (k, v)."""
        batches = []
        for place, values in enumerate(rows):
            frame = self.spark.sql(f"SELECT * FROM VALUES {values} AS t(k, v)")
            batches.append(self.sink.prepare(frame, self.context, Staging(id, f"a{place}")).committable)
        head = self.sink.head(self.context)
        publication = Publication(id, 0, f"m{id}", head.last, tuple(batches))
        done = self.sink.publish(publication, head, context or self.context)
        if done is not None:
            assert self.sink.head(self.context).last == id
            assert self.sink.publish(publication, head, self.context) in (None, done)
        return done

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.spark.read.format("delta").load(self.target).collect()))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_published_by_the_engine_that_keeps_its_rules(spark, tmp_path, name):
    columns, said = TABLES[name]
    world = World(spark, tmp_path, DeltaAppend("t", schema_evolution="add"))
    make(spark, world.target, columns)
    table = open_table(Location(world.target))
    assert table is not None
    reasons = spark_reasons(table)
    assert bool(reasons) is bool(said)
    assert said in ", ".join(reasons)
    world.checkpoint(1, "(1, 'a'), (2, 'b')")
    world.checkpoint(2, "(3, 'c')")
    assert [row[:2] for row in world.rows] == [(1, "a"), (2, "b"), (3, "c")]
    if name == "generated":
        assert [row[2] for row in world.rows] == [2, 4, 6]
    if name == "identity":
        assert len({row[2] for row in world.rows}) == 3


def test_a_check_constraint_is_kept(spark, tmp_path):
    world = World(spark, tmp_path, DeltaAppend("t"))
    make(spark, world.target, "(k int, v string)")
    spark.sql(f"ALTER TABLE delta.`{world.target}` ADD CONSTRAINT positive CHECK (k > 0)")
    world.checkpoint(1, "(1, 'a')")
    with pytest.raises(Exception, match=r"(?i)constraint"):
        world.checkpoint(2, "(-1, 'b')")
    assert world.rows == [(1, "a")]
    assert world.sink.head(world.context).last == 1


def test_without_spark_it_waits(spark, tmp_path):
    world = World(spark, tmp_path, DeltaAppend("t"))
    make(spark, world.target, "(k int, v varchar(9))")
    bare = SinkContext("p", "u", "s", world.context.place)
    with pytest.raises(Unavailable, match="no Spark"):
        world.checkpoint(1, "(1, 'a')", context=bare)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("(k int, v string) ~ 'delta.enableChangeDataFeed'='true'", "change data feed"),
        ("(k int, v string) ~ 'delta.enableDeletionVectors'='true'", "deletion vectors"),
    ],
)
def test_upserts_that_need_spark(spark, tmp_path, columns, said):
    world = World(spark, tmp_path, DeltaUpsert("t", keys=["k"]))
    make(spark, world.target, columns)
    spark.sql(
        f"INSERT INTO delta.`{world.target}` SELECT /*+ coalesce(1) */ * FROM VALUES (8, 'x'), (9, 'y') AS t(k, v)"
    )
    if "Deletion" in columns:
        spark.sql(f"DELETE FROM delta.`{world.target}` WHERE k = 9")
    table = open_table(Location(world.target))
    assert table is not None
    assert said in ", ".join(spark_reasons_to_rewrite(table))
    world.checkpoint(1, "(1, 'a'), (2, 'b'), (null, 'n')")
    world.checkpoint(2, "(1, 'old'), (3, 'c')", "(1, 'new'), (null, 'm'), (8, 'z')")
    kept = [(9, "y")] if "Change" in columns else []
    found = sorted(
        world.spark.read.format("delta").load(world.target).collect(), key=lambda row: (row.k is None, row.k)
    )
    assert [tuple(row) for row in found] == [(1, "new"), (2, "b"), (3, "c"), (8, "z"), *kept, (None, "m")]
