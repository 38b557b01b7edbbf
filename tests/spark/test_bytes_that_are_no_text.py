"""Bytes that are no UTF-8, from a source to every reader of a table: none of them stops anybody."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.spark.small_pipeline import SmallPipeline
from tidegate import Pipeline
from tidegate.cli.main import main
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend
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
