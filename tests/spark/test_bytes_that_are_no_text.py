"""Bytes that are no UTF-8, from a source to every reader of a table: none of them stops anybody."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException as SparkError

from tests.spark.small_pipeline import SmallPipeline
from tidegate import Pipeline
from tidegate.cli.main import main
from tidegate.connectors.postgres.types import refusal_of, staged_columns, table_rules
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.delta import Location, open_table, read_table
from tidegate.delta.files.partitions import refused_row
from tidegate.errors import Invalid
from tidegate.gates import Expectations
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert, FileExport, KafkaTopic
from tidegate.sources import DeltaTable as TableSource
from tidegate.sources import Files

SUITE = """
name: records
expectations:
  - {type: expect_column_values_to_be_null, kwargs: {column: _corrupt_record}, id: readable}
"""
OTHER = """
name: names
expectations:
  - {type: expect_column_values_to_match_regex, kwargs: {column: name, regex: "^[a-z]+$"}, id: lower}
"""


def cli(*arguments: str) -> Any:
    """What a command says, as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*arguments, "--json"]) == 0
    return json.loads(out.getvalue())


def test_a_record_that_is_no_text_is_published_as_text_and_a_gate_sets_it_aside(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def build(pipeline: Pipeline) -> None:
        rows = pipeline.source("rows", Files("landing/*.json", schema="id long, name string", on_corrupt="keep"))
        rows.sink("all", DeltaAppend("tables/all"))
        rows.gate(Expectations("records", on_failure="quarantine"), name="checked").sink(
            "good", DeltaAppend("tables/good")
        )

    suites = tmp_path / "include" / "expectations"
    suites.mkdir(parents=True)
    (suites / "records.yaml").write_text(SUITE)
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing/a.json").write_bytes(b'{"id": 1, "name": "x"}\n{"id": 2, "name": "Gen\xe8ve"}\n')
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    monkeypatch.chdir(tmp_path)
    played = SmallPipeline(tmp_path, spark, build)
    played.checkpoint()
    kept = '{"id": 2, "name": "Gen\\xE8ve"}'
    assert [row["id"] for row in played.rows("tables/good")] == [1]
    assert {row["_corrupt_record"] for row in played.rows("tables/all")} == {None, kept}
    assert len(DeltaTable(str(tmp_path / "tables/all")).to_pandas()) == 2
    assert {row["_corrupt_record"] for row in cli("read", "play", "all")["rows"]} == {None, kept}
    assert [row["_corrupt_record"] for row in cli("quarantine", "show", "play", "checked")["rows"]] == [kept]


def test_a_table_that_holds_such_bytes_already_is_read_and_judged(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def build(pipeline: Pipeline) -> None:
        rows = pipeline.source("rows", TableSource("tables/before"))
        rows.sink("all", DeltaAppend("tables/all"))
        rows.gate(Expectations("names", on_failure="quarantine"), name="checked").sink(
            "good", DeltaAppend("tables/good")
        )

    suites = tmp_path / "include" / "expectations"
    suites.mkdir(parents=True)
    (suites / "names.yaml").write_text(OTHER)
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    monkeypatch.chdir(tmp_path)
    frame = spark.sql("SELECT 1L AS id, 'abc' AS name UNION ALL SELECT 2L, CAST(X'47E8' AS string)")
    frame.coalesce(1).write.format("delta").save(str(tmp_path / "tables/before"))
    played = SmallPipeline(tmp_path, spark, build)
    played.checkpoint()
    verdict = played.ack(1).gates["checked"]
    assert (verdict.outcome, verdict.quarantined) == ("quarantine", 1)
    assert sorted(row["name"] for row in cli("read", "play", "all")["rows"]) == ["G\\xE8", "abc"]
    assert [row["name"] for row in cli("quarantine", "show", "play", "checked")["rows"]] == ["G\\xE8"]


def test_a_state_with_such_keys_is_read_and_compared_by_sql(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The engine behind `state` and `diff` refuses the file."""

    def build(pipeline: Pipeline) -> None:
        rows = pipeline.source("rows", TableSource("tables/before"))
        totals = rows.aggregate(by="name", n="count(*)", last="max(name)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["name"]))

    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    monkeypatch.chdir(tmp_path)
    played = SmallPipeline(tmp_path, spark, build)
    for name in ("'abc'", "CAST(X'47E8' AS string)"):
        frame = spark.sql(f"SELECT {name} AS name").coalesce(1)
        frame.write.format("delta").mode("append").save(str(tmp_path / "tables/before"))
        played.checkpoint()
    assert sorted(row["name"] for row in cli("state", "play", "totals")["rows"]) == ["G\\xE8", "abc"]
    assert [row["name"] for row in cli("diff", "play", "1", "2", "totals")["rows"]] == ["G\\xE8"]
    table = open_table(Location(str(tmp_path / "tables/totals")))
    assert table is not None
    assert sorted(read_table(table)["name"].to_pylist()) == ["G\\xE8", "abc"], "as RunningPipeline.rows does"


BYTES = "CAST(X'47E8' AS string)"


@pytest.mark.parametrize(
    "name",
    [
        BYTES,
        f"array('a', NULL, {BYTES})",
        f"map('k', 'a', {BYTES}, 'b')",
        f"map('k', NULL, 'l', array({BYTES}))",
        f"named_struct('a.b', 'c', 'x', array(named_struct('y', {BYTES})))",
    ],
)
def test_rows_with_such_bytes_are_refused_where_spark_would_replace_them_in_json(
    spark: Any, tmp_path: Path, name: str
) -> None:
    frame = spark.sql(f"SELECT 1L AS id, {name} AS `na'me`")
    context = SinkContext("p", "u", "s", Place(str(tmp_path)), home=f"{tmp_path}/home")
    with pytest.raises(Invalid, match="not valid UTF-8, which JSON and CSV cannot hold") as refused:
        FileExport("out", format="json").prepare(frame, context, Staging(1, "a"))
    assert refused.value.reason == "BAD_ROWS"
    assert "na'me" in refused.value.what
    if name == BYTES:
        with pytest.raises(Invalid, match="not valid UTF-8"):
            FileExport("out", format="csv").prepare(frame, context, Staging(1, "b"))
    for form in (KafkaTopic("t", servers="s:1").form, KafkaTopic("t", servers="s:1", key=["id", "na'me"]).form):
        with pytest.raises(SparkError) as failed:
            form.staged(frame).collect()
        assert refused_row(failed.value) is not None
    schema = json.loads(frame.schema.json())
    columns = staged_columns(schema, None, (), table_rules(schema, None, (), None).rules)
    with pytest.raises(SparkError) as failed:
        frame.select(*columns).collect()
    assert "not valid UTF-8" in str(refusal_of(failed.value))
    good = spark.sql(f"SELECT 1L AS id, {name.replace(BYTES, repr('é'))} AS `na'me`")
    for rows in (form.staged(good), good.select(*columns)):
        assert len(rows.collect()) == 1
