"""Guesses at the records of a row: by the names that its columns have on the way."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tidegate import Pipeline
from tidegate.provenance.lineage import guesses, links
from tidegate.provenance.question import AskedRow
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files


def source(pipeline: Pipeline, name: str, schema: str = "id long, k string", **options: Any) -> Any:
    return pipeline.source(name, Files(f"landing/{name}/*.json", schema=schema), **options)


def asked(row: dict[str, Any], *keys: str) -> AskedRow:
    return AskedRow(row, 1, keys)


def test_a_key_is_followed_through_names_joins_and_keys_to_the_sources() -> None:
    pipeline = Pipeline("p")
    orders = source(pipeline, "orders", "number long, who string").select("number AS id", "who", "1 AS one")
    people = source(pipeline, "people", "name string, city string")
    joined = orders.join(people, on={"who": "name"}, uid="joined")
    joined.aggregate(by="who", n="count(*)", uid="totals").sink("totals", DeltaUpsert("t", keys=["who"]))
    graph = pipeline.graph()
    first, *_, last = guesses(graph, "totals", asked({"who": "ann", "n": 3}, "who"))
    assert first.values == {"orders": {"who": "ann"}, "people": {"name": "ann"}}
    assert last.values == {}
    assert (("orders", "who"), ("people", "name")) in set(links(graph))


def test_a_result_that_is_computed_leads_to_no_column() -> None:
    pipeline = Pipeline("p")
    rows = source(pipeline, "rows")
    rows.select("upper(k) AS k", "id").aggregate(by="k", id="max(id)", uid="most").sink(
        "t", DeltaUpsert("t", keys=["k"])
    )
    assert [guess.values for guess in guesses(pipeline.graph(), "t", asked({"k": "A", "id": 7}, "k"))] == [{}]


def test_of_ranked_rows_all_of_a_partition_are_a_guess_too() -> None:
    pipeline = Pipeline("p")
    best = source(pipeline, "rows").top_n(1, by="k", order_by="id", uid="best")
    best.sink("t", DeltaUpsert("t", keys=["k", "rank"]))
    row = {"k": "a", "id": 7, "rank": 1}
    tried = [guess.values for guess in guesses(pipeline.graph(), "t", asked(row, "k", "rank"))]
    assert tried[1:] == [{"rows": {"k": "a"}}, {}]


def test_a_window_narrows_the_time() -> None:
    pipeline = Pipeline("p")
    timed = source(pipeline, "rows", "k string, at timestamp", event_time="at")
    timed.window(tumbling="1 h", by="k", n="count(*)", uid="hours").sink("t", DeltaAppend("t"))
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=UTC)
    first, *_ = guesses(pipeline.graph(), "t", asked({"window_start": start, "window_end": end, "k": "a", "n": 2}))
    assert first.spans == {"rows": ("at", start, end)}
