"""Every value that Spark can hold is published and shown, or refused before the checkpoint is decided.

Spark has years that Python has not, and texts that cannot name a folder.
"""

from __future__ import annotations

import contextlib
import io
import json
from decimal import Decimal
from typing import Any

import pytest

import tidegate.testing
from tests.kit.sampling import in_turn
from tests.kit.sinks import Published
from tidegate import Pipeline
from tidegate.cli.main import main
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.errors import Invalid
from tidegate.gates import Expectations, Freshness, Unseen
from tidegate.sinks import DeltaAppend, DeltaUpsert, FileExport
from tidegate.testing import RunningPipeline, TestSource
from tidegate.ui.rows import quarantined, table_samples

pytestmark = in_turn(seconds=30)

NEAR, FAR = [{"n": 5}], [{"n": n} for n in range(6)]
MOMENTS = (
    "timestamp'+10000-01-01 00:00:00Z'",
    "timestamp'-0044-03-15 12:00:00Z'",
    "timestamp_micros(9223372036854775807)",
    "timestamp_micros(-9223372036854775807)",
    "timestamp'0000-12-31 23:59:59.999999Z'",
    "timestamp'2024-01-01 12:00:00.000500Z'",
)
DAYS = (
    "date'+10000-01-01'",
    "date'-0044-03-15'",
    "date_from_unix_date(2147483647)",
    "date_from_unix_date(-2147483648)",
    "date'0000-12-31'",
    "date'2024-01-01'",
)


def by_number(values: tuple[str, ...]) -> str:
    return f"element_at(array({', '.join(values)}), n + 1)"


COLUMNS = (
    "n",
    f"{by_number(MOMENTS)} AS moment",
    f"{by_number(MOMENTS)}::timestamp_ntz AS local",
    f"{by_number(DAYS)} AS day",
    f"named_struct('days', array({by_number(DAYS)}), 'by', map('k', {by_number(MOMENTS)})) AS nested",
    "if(n % 2 = 0, double('NaN'), -double('Infinity')) AS real",
    f"cast('-{'9' * 38}' AS decimal(38, 0)) AS price",
    "unhex('00FF') AS bytes",
)


def commanded(running: RunningPipeline, verb: str, *rest: str) -> tuple[str, Any]:
    """Return what a command prints, and its document. It must not fail."""
    told = []
    for more in ((), ("--json",)):
        out = io.StringIO()
        where = ("-D", f"root={running.settings.root}", "-D", f"data={running.settings.data}")
        verbs = verb.split()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as problems:
            code = main([*verbs, running.pipeline.name, *rest, *where, *more])
        assert code == 0, problems.getvalue()
        told.append(out.getvalue())
    return told[0], json.loads(told[1])


class KnownHere:
    """What the pages know of a pipeline."""

    def __init__(self, running: RunningPipeline, keys: dict[str, list[str]]) -> None:
        self.ledger = lambda: running.ledger
        self.options: dict[str, str] = {}
        self.data = running.settings.data
        self.card: Any = self
        self.keys, self.gates, self.by_interval = keys, ["checked"], False


@pytest.mark.parametrize("key", ["moment", "local", "day"])
def test_a_key_of_any_year_is_published_and_shown(spark, tmp_path, key):
    """A table whose files have bounds in years that Python knows, and then keys that it does not."""
    pipeline = Pipeline("far")
    rows = pipeline.source("rows", TestSource("n int", NEAR, FAR, FAR))
    every = rows.select(*COLUMNS, name="every")
    every.sink("upserted", DeltaUpsert("upserted", keys=[key]))
    every.sink("newest", DeltaUpsert("newest", keys=["price"], order_by=[key]))
    every.aggregate(by=[key], rows="count(*)", last="max(day)", uid="counts").sink(
        "counted", DeltaUpsert("counted", keys=[key])
    )
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        assert running.until_idle() == [1, 2, 3]
        assert len(running.rows("upserted")) == len(FAR)
        assert [row["n"] for row in running.rows("newest")] == [2]
        text, document = commanded(running, "read", "upserted")
        assert "+10000-01-01" in text
        assert {row["n"] for row in document["rows"]} == set(range(6))
        assert "+10000-01-01" in commanded(running, "state", "counts")[0]
        assert "+10000-01-01" in commanded(running, "diff", "1", "2", "counts")[0]
        known: Any = KnownHere(running, {"upserted": [key]})
        assert len(table_samples.rows(known, 3, "upserted", 50).rows) == 6
        changes = table_samples.changes(known, 1, 2, "upserted", 50)
        assert (changes.added, changes.removed, changes.changed) == (5, 0, 0)
        by_spark = spark.read.format("delta").load(str(running.data / "upserted"))
        assert by_spark.selectExpr(f"count(distinct {key})").collect()[0][0] == 6


def test_a_key_is_found_although_another_writer_has_noted_only_its_milliseconds(spark, tmp_path):
    world = Published(tmp_path, DeltaUpsert("t", keys=["moment"]))
    rows = spark.createDataFrame([(5,)], "n int").selectExpr("n", f"{by_number(MOMENTS)} AS moment")
    assert world.publish(1, world.sink.prepare(rows.limit(0), world.context, Staging(1, "a")).committable or {})
    rows.coalesce(1).write.format("delta").mode("append").save(world.location.url)
    assert world.publish(2, world.sink.prepare(rows, world.context, Staging(2, "a")).committable or {})
    assert len(world.rows()) == 1


SUITE = """
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: n, min_value: 5}, id: enough}
  - {type: expect_column_values_to_be_unique, kwargs: {column: moment}, id: once}
  - {type: expect_column_values_to_be_between, kwargs: {column: moment, min_value: "2020-01-01", max_value: "2030-01-01"}, id: now}
  - {type: expect_column_values_to_be_in_set, kwargs: {column: day, value_set: ["2024-01-01"]}, id: today}
  - {type: expect_column_max_to_be_between, kwargs: {column: real, max_value: 1}, severity: info, id: max_real}
  - {type: expect_column_max_to_be_between, kwargs: {column: price, max_value: 1}, severity: info, id: max_price}
"""  # noqa: E501


def test_rows_of_any_year_are_judged_quarantined_and_shown(spark, tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(SUITE)
    pipeline = Pipeline("far")
    rows = pipeline.source("rows", TestSource("n int", NEAR, FAR))
    every = rows.select(*COLUMNS, name="every")
    checked = every.gate(
        Expectations(str(suite), on_failure={"critical": "quarantine", "info": "warn"}), name="checked"
    )
    once = checked.gate(Unseen(by=["moment"], on_failure="quarantine"), name="once")
    once.gate(Freshness("moment", "100000 days", on_failure="warn"), name="fresh").sink("kept", DeltaAppend("kept"))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        assert running.until_idle() == [1, 2]
        assert [row["n"] for row in running.rows("kept")] == [5, 5]
        text, document = commanded(running, "quarantine show", "checked")
        assert "+10000-01-01" in text
        assert len(document["rows"]) == 5
        commanded(running, "quarantine list")
        commanded(running, "explain", "2")
        commanded(running, "show", "2")
        known: Any = KnownHere(running, {})
        assert quarantined.rows(known, "checked", (), 0, 50).total == 5
        assert len(quarantined.of_checkpoint(known, 2, "checked", 50).rows) == 5


# -- partitions ----------------------------------------------------------------------------------------

FAR_AWAY = "'p' is outside of the years 1 to 9999"


@pytest.mark.parametrize(
    ("sink", "value", "why"),
    [
        (DeltaAppend, MOMENTS[0], f"{FAR_AWAY}: 253402300800000000 microseconds since 1970"),
        (DeltaAppend, f"{MOMENTS[1]}::timestamp_ntz", f"{FAR_AWAY}: -0044-03-15 12:00:00"),
        (DeltaAppend, DAYS[2], f"{FAR_AWAY}: +5881580-07-11"),
        (DeltaUpsert, DAYS[4], f"{FAR_AWAY}: 0000-12-31"),
        (FileExport, DAYS[0], f"{FAR_AWAY}: +10000-01-01"),
        (DeltaAppend, "'__HIVE_DEFAULT_PARTITION__'", "stands for null in the name of a folder"),
        (FileExport, "'__HIVE_DEFAULT_PARTITION__'", "stands for null in the name of a folder"),
        (DeltaAppend, "cast(unhex('61FF') AS string)", "'p' is not valid UTF-8"),
        (DeltaAppend, "cast(-0.5 AS decimal(9,2))", "'p' is below zero, and not a whole number: -0.50"),
        (DeltaUpsert, "cast(-0.000000001 AS decimal(38,9))", "'p' is below zero, and not a whole number: -0.000000001"),
        (DeltaUpsert, "''", "is empty text, which is stored as null in a partition column"),
    ],
)
def test_a_value_that_cannot_name_a_folder_is_refused_before_anything_is_decided(spark, tmp_path, sink, value, why):
    declared: Any = sink("t", partition_by=["p"], **({"keys": ["p", "n"]} if sink is DeltaUpsert else {}))
    context = SinkContext("p", "u", "s", Published(tmp_path).context.place, home=f"{tmp_path}/home")
    frame = spark.range(1).selectExpr("id AS n", f"{value} AS p")
    with pytest.raises(Invalid) as refused:
        declared.prepare(frame, context, Staging(1, "a"))
    assert refused.value.reason == "BAD_ROWS"
    why, _, quoted = why.partition(": ")
    assert why in refused.value.what
    assert refused.value.quoted == quoted, "for whoever may read rows"


def test_decimals_below_zero_that_are_whole_name_a_folder(spark, tmp_path):
    frame = spark.sql("SELECT * FROM VALUES (1, -2), (2, 0.5), (3, -0) AS t(n, p)")
    world = Published(tmp_path, DeltaAppend("t", partition_by=["p"]))
    frame = frame.selectExpr("n", "cast(p AS decimal(9,3)) AS p")
    world.publish(1, world.sink.prepare(frame, world.context, Staging(1, "a")).committable or {})
    assert sorted(world.rows()) == [(1, Decimal(-2)), (2, Decimal("0.5")), (3, Decimal(0))]


def test_empty_text_is_null_where_it_names_a_folder_as_is_said_of_the_sinks(spark, tmp_path):
    frame = spark.sql("SELECT * FROM VALUES (1, ''), (2, NULL), (3, 'x') AS t(n, p)").coalesce(1)
    world = Published(tmp_path, DeltaAppend("t", partition_by=["p"]))
    world.publish(1, world.sink.prepare(frame, world.context, Staging(1, "a")).committable or {})
    assert sorted(world.rows()) == [(1, None), (2, None), (3, "x")]
    for sink in (DeltaAppend, DeltaUpsert, FileExport):
        assert "mpty text" in (sink.__doc__ or "") or "as for DeltaAppend" in (sink.__doc__ or "")
