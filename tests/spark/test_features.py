"""Which tables delta-rs may commit to is found by trying; the others are published through delta-spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tidegate.connectors.sink import Publication, SinkContext, Staging
from tidegate.delta import Location, open_table, spark_reasons, spark_reasons_to_rewrite
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)


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
    "widening": ("(k int, v string) ~ 'delta.enableTypeWidening'='true'", ""),
    "variant": ("(k int, v string, w variant)", "variant"),
}  # fmt: skip


def make(spark: Any, target: str, columns: str) -> None:
    columns, _, properties = columns.partition("~")
    extra = f"TBLPROPERTIES ({properties})" if properties else ""
    spark.sql(f"CREATE TABLE delta.`{target}` {columns} USING delta {extra}")


class FeatureTable:
    def __init__(self, spark: Any, folder: Path, sink: Any) -> None:
        self.spark, self.sink = spark, sink
        self.context = SinkContext("p", "u", "s", Place(str(folder)), spark=lambda: spark)
        self.target = sink.target(self.context.place)

    def checkpoint(
        self,
        id: int,
        *rows: str,
        context: SinkContext | None = None,
        names: str = "k, v",
        staged: Callable[[], object] = lambda: None,
    ) -> Any:
        """Each of `rows` is a batch: SQL values of `names`. staged: called once they are staged."""
        batches = []
        for place, values in enumerate(rows):
            frame = self.spark.sql(f"SELECT /*+ coalesce(1) */ * FROM VALUES {values} AS t({names})")
            batches.append(self.sink.prepare(frame, self.context, Staging(id, f"a{place}")).committable)
        staged()
        head = self.sink.head(self.context)
        publication = Publication(id, 0, f"m{id}", head.last_entry, tuple(batches))
        done = self.sink.publish(publication, head, context or self.context)
        if done is not None:
            assert self.sink.head(self.context).last_entry == id
            assert self.sink.publish(publication, head, self.context) in (None, done)
        return done

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.spark.read.format("delta").load(self.target).collect()))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_published_by_the_engine_that_keeps_its_rules(spark, tmp_path, name):
    columns, said = TABLES[name]
    world = FeatureTable(spark, tmp_path, DeltaAppend("t", schema_evolution="add"))
    make(spark, world.target, columns)
    table = open_table(Location(world.target))
    assert table is not None
    reasons = spark_reasons(table)
    assert bool(reasons) is bool(said)
    assert said in ", ".join(reasons)
    if said:
        spark.sql(f"INSERT INTO delta.`{world.target}` (k, v) VALUES (0, '-')")
    world.checkpoint(1, "(1, 'a'), (2, 'b')")
    world.checkpoint(2, "(3, 'c')")
    rows = [row for row in world.rows if row[0]]
    assert [row[:2] for row in rows] == [(1, "a"), (2, "b"), (3, "c")]
    assert len(world.rows) == len(rows) + bool(said), "what was there stays, and no row of it is written again"
    if name == "generated":
        assert [row[2] for row in rows] == [2, 4, 6]
    if name == "identity":
        assert len({row[2] for row in world.rows}) == 4


@pytest.mark.parametrize("sink", [DeltaAppend("t"), DeltaUpsert("t", keys=["k"])])
@pytest.mark.parametrize(
    ("columns", "rule", "bad", "named"),
    [
        ("(k int, v string)", "ADD CONSTRAINT positive CHECK (k > 0)", "(-77, 'b')", "constraint 'positive'"),
        ("(k int, v varchar(3))", "", "(2, 'canary')", "column 'v' is longer than 3 characters"),
    ],
)
def test_a_row_that_breaks_a_rule_of_the_table_is_refused_while_it_is_staged(
    spark, tmp_path, sink, columns, rule, bad, named
):
    world = FeatureTable(spark, tmp_path, sink)
    make(spark, world.target, columns)
    if rule:
        spark.sql(f"ALTER TABLE delta.`{world.target}` {rule}")
    world.checkpoint(1, "(1, 'a')")
    with pytest.raises(Invalid) as refused:
        world.checkpoint(2, bad)
    assert refused.value.reason == "BAD_ROWS"
    assert named in refused.value.what
    assert "77" not in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("sink", [DeltaAppend("t"), DeltaUpsert("t", keys=["k"])])
def test_a_rule_that_is_added_after_staging_is_kept_and_named_without_the_row_that_breaks_it(spark, tmp_path, sink):
    world = FeatureTable(spark, tmp_path, sink)
    make(spark, world.target, "(k int, v string)")
    world.checkpoint(1, "(1, 'a')")

    def add_rule() -> None:
        spark.sql(f"ALTER TABLE delta.`{world.target}` ADD CONSTRAINT positive CHECK (k > 0)")

    with pytest.raises(Invalid) as refused:
        world.checkpoint(2, "(-77, 'b')", staged=add_rule)
    assert refused.value.reason == "COMMIT_REFUSED"
    assert "CHECK constraint positive" in refused.value.what
    assert world.target in refused.value.what
    assert "77" not in str(refused.value)
    assert world.rows == [(1, "a")]
    assert world.sink.head(world.context).last_entry == 1


def test_without_spark_it_waits(spark, tmp_path):
    world = FeatureTable(spark, tmp_path, DeltaAppend("t"))
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
    world = FeatureTable(spark, tmp_path, DeltaUpsert("t", keys=["k"]))
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


PARTITIONED: dict[str, tuple[str, str]] = {
    # name: (columns and properties beside k, v and p; what is done to the table then)
    "change-feed": (" ~ 'delta.enableChangeDataFeed'='true'", ""),
    "constraint": ("", "ALTER TABLE {} ADD CONSTRAINT positive CHECK (k > 0)"),
    "deletion-vectors": (" ~ 'delta.enableDeletionVectors'='true'", "DELETE FROM {} WHERE k = 9"),
    "generated": (", g int generated always as (k * 2)", ""),
    "mapped": (" ~ 'delta.columnMapping.mode'='name'", ""),
}  # fmt: skip


def partitioned(spark: Any, folder: Path, name: str, **kinds: str) -> FeatureTable:
    """A table with partition columns of these types, that only delta-spark may upsert into."""
    sink = DeltaUpsert("t", keys=["k"], order_by=["v"], delete_when="v = 'z'", partition_by=[*kinds])
    world = FeatureTable(spark, folder, sink)
    more, then = PARTITIONED[name]
    extra, _, properties = more.partition("~")
    typed, names = ", ".join(f"{each} {kind}" for each, kind in kinds.items()), ", ".join(kinds)
    spark.sql(
        f"CREATE TABLE delta.`{world.target}` (k int, v string, {typed}{extra}) USING delta PARTITIONED BY ({names})"
        + (f" TBLPROPERTIES ({properties})" if properties else "")
    )
    nulls = ", ".join(f"cast(null AS {kind})" for kind in kinds.values())
    spark.sql(
        f"INSERT INTO delta.`{world.target}` (k, v, {names}) "
        f"SELECT /*+ coalesce(1) */ k, v, {nulls} FROM VALUES (8, 'x'), (9, 'y') AS t(k, v)"
    )
    if then:
        spark.sql(then.format(f"delta.`{world.target}`"))
    table = open_table(Location(world.target))
    assert table is not None
    assert spark_reasons_to_rewrite(table)
    return world


@pytest.mark.parametrize("name", PARTITIONED)
def test_a_partitioned_upsert_through_spark_keeps_each_row_in_its_partition(spark, tmp_path, name):
    world = partitioned(spark, tmp_path, name, p="string")
    world.checkpoint(1, "(1, 'a', 'de'), (2, 'a', 'fr'), (3, 'a', null), (4, 'a', 'a b/%=')", names="k, v, p")
    world.checkpoint(
        2,
        # Of two rows with one key, we write what stays of their files: in a folder that names no partition.
        "(1, 'b', 'x'), (1, 'c', 'it'), (3, 'b', 'x'), (3, 'c', null), (4, 'b', 'it'), (4, 'c', '%41 c'), "
        "(5, 'b', 'x'), (5, 'a', 'it'), (6, 'a', '%41 c'), (6, 'z', 'de'), (7, 'a', 'x'), (8, 'y', 'q'), (8, 'z', 'q')",
        "(1, 'd', 'de'), (1, 'e', 'no'), (5, 'a', 'no')",
        names="k, v, p",
    )
    kept = [] if name == "deletion-vectors" else [(9, "y", None)]
    assert [row[:3] for row in world.rows] == [
        (1, "e", "no"), (2, "a", "fr"), (3, "c", None), (4, "c", "%41 c"), (5, "b", "x"), (7, "a", "x"), *kept,
    ]  # fmt: skip


def test_partitions_of_every_type_come_through_spark(spark, tmp_path):
    kinds = {
        "p1": ("timestamp", "timestamp'2026-10-25 00:30:00.000001Z'", "timestamp'1969-12-31 23:59:59.5Z'"),
        "p2": ("timestamp_ntz", "timestamp_ntz'2026-10-25 02:30:00.000001'", "timestamp_ntz'1969-12-31 23:59:59.5'"),
        "p3": ("date", "date'2026-10-25'", "date'1582-10-15'"),
        "p4": ("decimal(12, 2)", "cast(1.5 AS decimal(12, 2))", "cast(-3 AS decimal(12, 2))"),
        "p5": ("boolean", "true", "false"),
        "p6": ("bigint", "9007199254740993L", "-1L"),
    }
    world = partitioned(spark, tmp_path, "change-feed", **{name: kind for name, (kind, _, _) in kinds.items()})
    one, other = (", ".join(each[place] for each in kinds.values()) for place in (1, 2))
    names = f"k, v, {', '.join(kinds)}"
    world.checkpoint(1, f"(1, 'a', {other}), (1, 'b', {one}), (2, 'b', {one}), (2, 'c', {other})", names=names)
    rows = spark.read.format("delta").load(world.target).where("k < 8")
    found = rows.selectExpr(
        "k", "v", f"struct({', '.join(kinds)}) <=> struct({one})", f"struct({', '.join(kinds)}) <=> struct({other})"
    )
    assert sorted(map(tuple, found.collect())) == [(1, "b", True, False), (2, "c", False, True)]
