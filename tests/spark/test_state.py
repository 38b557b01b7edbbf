"""Keyed state on real Spark and Delta: it follows the batch, survives, is cleaned up, and reads in other engines."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.kit.merging import merged
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.delta import Location
from tidegate.errors import Invalid
from tidegate.operators.aggregate import Aggregate
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.state.keyed import KeyedState, StateFolder
from tidegate.state.table import view_sql


def totals(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k string, v long")
    sums = rows.aggregate(by=["k"], uid="totals", n="count(*)", total="sum(v)", least="min(v)", mean="avg(v)")
    sums.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))


def reference(rows: list[dict[str, Any]]) -> dict[Any, tuple[Any, ...]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(row["k"], []).append(row["v"])
    told = {}
    for key, values in found.items():
        known = [v for v in values if v is not None]
        mean = sum(known) / len(known) if known else None
        told[key] = (len(values), sum(known) if known else None, min(known, default=None), mean)
    return told


def test_totals_follow_their_input_however_it_is_cut_and_old_files_go(tmp_path: Path, spark: Any) -> None:
    random.seed(5)
    keys = ["", "a", "b", "é", *(f"k{n}" for n in range(40))]
    rows = [{"k": random.choice(keys), "v": random.choice([None, 1, 2, -7])} for _ in range(400)]
    play = SmallPipeline(tmp_path, spark, totals)
    cuts = sorted(random.sample(range(400), 19))
    play.play([rows[a:b] for a, b in zip([0, *cuts], [*cuts, 400], strict=True)])

    told = {row["k"]: (row["n"], row["total"], row["least"], row["mean"]) for row in play.rows("tables/totals")}
    assert told == reference(rows)

    assert len(play.state("totals").files) < 18, "runs are merged"
    held = {path.name for path in (tmp_path / "ledger/play/state/totals").rglob("*.parquet")}
    kept = play.coordinator().ledger.ids()
    assert held == {Path(f.file.path).name for id in kept for f in play.state("totals", id).files}, (
        "retention removes what compaction has replaced, and nothing else"
    )

    oldest = kept[0]  # one checkpoint per cut
    ends = [*cuts, 400]
    to = StateFolder(Location(str(tmp_path / "ledger/play/state/totals")), "restarted", oldest + 1)
    again = KeyedState(spark, "t", play.state("totals", oldest), to, ["k"], 128)
    assert _told(again.rows()) == {key: values[:3] for key, values in reference(rows[: ends[oldest - 1]]).items()}
    next_rows = [(row["k"], row["v"]) for row in rows[ends[oldest - 1] : ends[oldest]]]
    more = spark.createDataFrame(next_rows, "k string, v long").selectExpr(
        "k", "1L AS n", "v AS total", "v AS least", "CAST(v AS double) AS mean_sum", "nvl2(v, 1L, 0L) AS mean_count"
    )
    ops = {"n": "sum", "total": "sum", "least": "min", "mean_sum": "sum", "mean_count": "sum"}
    redone = _told(merged(again, more, ops))
    expected = {key: values[:3] for key, values in reference(rows[: ends[oldest]]).items()}
    assert redone.items() <= expected.items(), "a restart onto the oldest checkpoint finds all of its files"
    assert len(redone) > 1


def _told(frame: Any) -> dict[Any, tuple[Any, ...]]:
    return {row["k"]: (row["n"], row["total"], row["least"]) for row in frame.collect()}


def test_a_state_is_a_delta_table_for_every_engine_and_follows_the_code(tmp_path: Path, spark: Any) -> None:
    """Current and as of a checkpoint, read by delta-spark, delta-rs and DuckDB; also when the code has changed."""
    import duckdb
    import pyarrow as pa
    from deltalake import QueryBuilder

    def counts(**functions: str) -> Any:
        def declare(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "k string, v long, d date, m decimal(9,2), t timestamp")
            stream = rows.aggregate(by=["k", "d"], uid="counts", **functions)
            stream.sink("counts", DeltaUpsert("tables/counts", keys=["k", "d"], schema_evolution="add"))

        return declare

    def row(k: Any, v: int) -> dict[str, Any]:
        return {"k": k, "v": v, "d": "2026-01-02", "m": "1.50", "t": "2026-01-02T03:04:05.000006Z"}

    whole = {"n": "count(*)", "sum": "sum(m)", "last": "max(t)"}
    play = SmallPipeline(tmp_path, spark, counts(**whole), max_parallelism=16)
    play.play([[row("a", 1), row(None, 2)], [row("a", 3), row("b", 4)]])
    play.build = counts(**whole, least="min(v)")
    play.play([[row("c", 5)]])
    play.build = counts(n="count(*)", least="min(v)")
    play.play([[row("c", 4)]])

    path = tmp_path / "ledger/play/state/counts"
    versions = {id: _version_of(path, id) for id in (2, 4)}
    expected = {
        2: {("a", 2, "3.00"), (None, 1, "1.50"), ("b", 1, "1.50")},
        4: {("a", 2, None), (None, 1, None), ("b", 1, None), ("c", 2, 4)},
    }
    for id, version in versions.items():
        table, shown = play.state("counts", id), "k, n, CAST({0}sum{0} AS {1})" if id == 2 else "k, n, least"
        reader = spark.read.format("delta").option("versionAsOf", version).load(str(path))
        reader.createOrReplaceTempView("seen")
        by_spark = spark.sql(f"SELECT {shown.format('`', 'string')} FROM ({view_sql(table, 'seen')})").collect()
        assert {tuple(row) for row in by_spark} == expected[id]

        shown, seen = shown.format('"', "varchar"), DeltaTable(str(path), version=version)
        rows = view_sql(table, "seen", quote='"')
        by_delta_rs = QueryBuilder().register("seen", seen).execute(f"SELECT {shown} FROM ({rows}) AS v").read_all()
        assert {tuple(row.values()) for row in pa.table(by_delta_rs).to_pylist()} == expected[id]

        rows = view_sql(table, f"read_parquet({seen.file_uris()}, union_by_name = true)", quote='"')
        assert set(duckdb.sql(f"SELECT {shown} FROM ({rows})").fetchall()) == expected[id]
    assert "sum" not in DeltaTable(str(path)).schema().to_arrow().names, "what was left out is gone"

    play.limits.recorded["max_parallelism"] = 32
    with pytest.raises(Invalid, match=r"max_parallelism is 32, but the state of pipeline 'play' was begun with 16"):
        play.play([[row("a", 1)]])


def _version_of(path: Path, id: int) -> int:
    history = DeltaTable(str(path)).history()
    return next(c["version"] for c in history if c.get("tidegate.checkpoint") == id and c["tidegate.publishes"])


def test_bad_declarations_of_expiry_are_told() -> None:
    pipeline = Pipeline("play")
    rows = sources(pipeline, "k string, v long")
    sums = rows.aggregate(by=["k"], n="count(*)", state_ttl="soon", ttl_time="now")
    sums.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    assert "state_ttl is 'soon'" in str(refused.value)
    assert "ttl_time is 'now'" in str(refused.value)


def test_totals_begin_anew_after_their_time(tmp_path: Path, spark: Any) -> None:
    from datetime import UTC, datetime, timedelta

    from tidegate import seams

    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, v long")
        rows.aggregate(by="k", uid="t", n="count(*)", state_ttl="1 h").sink("t", DeltaUpsert("tables/t", keys=["k"]))

    play, start = SmallPipeline(tmp_path, spark, declare), datetime(2026, 1, 1, tzinfo=UTC)
    for minutes, keys in ((0, "ab"), (50, "a"), (100, "ab")):
        with seams.installed(seams.Seams(now=lambda at=minutes: start + timedelta(minutes=at))):
            play.play([[{"k": key, "v": 1} for key in keys]])
    assert {row["k"]: row["n"] for row in play.rows("tables/t")} == {"a": 3, "b": 1}


def sizes(more: dict[str, str], of_more: dict[str, str]) -> Callable[[Pipeline], None]:
    """What each id has, the first ids of each group, and all that a group has: each takes back what it was given."""

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, g string, v long")
        each = rows.aggregate(by=["id", "g"], uid="each", s="sum(v)", **more)
        first = each.top_n(3, by="g", order_by="s", uid="first")
        first.sink("first", DeltaUpsert("tables/first", keys=["g", "rank"], schema_evolution="add"))
        groups = each.aggregate(by="g", uid="groups", total="sum(s)", **of_more)
        groups.sink("groups", DeltaUpsert("tables/groups", keys=["g"], schema_evolution="add"))

    return build


def test_counts_that_are_added_in_front_of_what_takes_rows_back_are_null_where_nothing_was_counted(
    tmp_path: Path, spark: Any
) -> None:
    counts = {"n": "count(*)", "some": "count_if(v > 1)", "kinds": "count(distinct v)"}
    of_counts = {f"all_{name}": f"sum({name})" for name in counts} | {"mean": "avg(n)"}
    play = SmallPipeline(tmp_path, spark, sizes({}, {}))
    play.play([[{"id": 1, "g": "a", "v": 2}, {"id": 2, "g": "a", "v": 5}, {"id": 3, "g": "b", "v": None}]])
    play.build = sizes(counts, of_counts)
    play.play([[{"id": 1, "g": "a", "v": 1}], [{"id": 1, "g": "a", "v": 3}, {"id": 3, "g": "b", "v": None}]])

    first = sorted((row["g"], row["rank"], row["id"], row["s"], row["n"]) for row in play.rows("tables/first"))
    assert first == [("a", 1, 1, 6, 2), ("a", 2, 2, 5, None), ("b", 1, 3, None, 1)], "each id is there once"
    groups = {row.pop("g"): row for row in play.rows("tables/groups")}
    assert groups["a"] == {"total": 11, "all_n": 2, "all_some": 1, "all_kinds": 2, "mean": 2.0}
    assert groups["b"] == {"total": None, "all_n": 1, "all_some": 0, "all_kinds": 0, "mean": 1.0}


def test_distinct_counts_that_an_earlier_version_began_take_back_the_0_that_they_gave(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = SmallPipeline(tmp_path, spark, sizes({"kinds": "count(distinct v)"}, {"mean": "avg(kinds)"}))
    with monkeypatch.context() as then:
        as_then = lambda self, functions, *_: [each.sparse() for each in functions]  # noqa: E731
        then.setattr(Aggregate, "_with_stored_counts", as_then)
        play.play([[{"id": 1, "g": "a", "v": None}]])
    assert play.rows("tables/groups") == [{"g": "a", "total": None, "mean": 0.0}]
    play.play([[{"id": 1, "g": "a", "v": 7}, {"id": 2, "g": "a", "v": 7}]])
    assert play.rows("tables/groups") == [{"g": "a", "total": 14, "mean": 1.0}]


@pytest.mark.parametrize("rows_between", [[], [{"id": 2, "g": "a", "v": 7}]])
def test_a_condition_that_comes_back_counts_on_if_nothing_happened_meanwhile_and_else_afresh(
    tmp_path: Path, spark: Any, rows_between: list[dict[str, Any]]
) -> None:
    """The values and the numbers are forgotten together, or not at all."""

    def counted(**more: str) -> Any:
        def build(pipeline: Any) -> None:
            rows = sources(pipeline, "id long, g string, v long")
            totals = rows.aggregate(by="g", uid="totals", kinds="count(distinct v)", **more)
            totals.sink("totals", DeltaUpsert("tables/totals", keys=["g"], schema_evolution="add"))
            sources(pipeline, "x long", "other").sink("other", DeltaAppend("tables/other"))

        return build

    few = {"few": "count(distinct v) filter (where v < 9)"}
    play = SmallPipeline(tmp_path, spark, counted(**few))
    play.feed([{"x": 0}], "other")
    play.play([[{"id": 1, "g": "a", "v": 7}]])
    play.play([[{"id": 1, "g": "a", "v": 8}]])
    play.build = counted()
    if rows_between:
        play.feed(rows_between)
    play.play([[{"x": 1}]], "other")
    play.build = counted(**few)
    play.play([[{"id": 3, "g": "a", "v": 7}, {"id": 4, "g": "a", "v": 5}]])
    (row,) = play.rows("tables/totals")
    assert (row["kinds"], row["few"]) == (3, 2 if rows_between else 3)
