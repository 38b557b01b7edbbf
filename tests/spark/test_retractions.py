"""Rows that are taken back reach a table by key only where nobody else holds them, on real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.checkpoint import compatibility
from tidegate.errors import Invalid, TidegateError
from tidegate.execution.analysis import analyse
from tidegate.execution.job.upstream_view import _find_kept_columns
from tidegate.pipeline.graph.nodes import StageNode
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)

Row = dict[str, Any]
CUSTOMERS = "id long, country string, version long"
LEFT, RIGHT = "k long, v long", "k long, w long"


def customer(id: int, country: str | None, version: int) -> Row:
    return {"id": id, "country": country, "version": version}


def countries_of_customers(pipeline: Pipeline) -> None:
    now = sources(pipeline, CUSTOMERS).latest(by="id", order_by="version", uid="now")
    now.select("country").sink("countries", DeltaUpsert("tables/countries", keys=["country"]))


def rows_of(play: SmallPipeline, table: str) -> list[Row]:
    return sorted(play.rows(f"tables/{table}"), key=repr)


MOVES = [customer(1, "AT", 1), customer(2, "AT", 1), customer(1, "DE", 2), customer(2, "DE", 2), customer(2, None, 3)]


def test_a_country_stays_while_one_customer_is_left_in_it(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, countries_of_customers)
    play.play([MOVES[:2], MOVES[2:3]])
    assert rows_of(play, "countries") == [{"country": "AT"}, {"country": "DE"}]
    play.play([MOVES[3:4]])
    assert rows_of(play, "countries") == [{"country": "DE"}]
    play.play([MOVES[4:]])
    assert rows_of(play, "countries") == [{"country": "DE"}, {"country": None}]


def test_the_withdrawal_of_an_older_row_leaves_a_newer_one_of_its_key(tmp_path: Path, spark: Any) -> None:
    """Customer 2 takes the country over from customer 1, who only then leaves it."""

    def build(pipeline: Pipeline) -> None:
        now = sources(pipeline, CUSTOMERS).latest(by="id", order_by="version", uid="now")
        now.sink("countries", DeltaUpsert("tables/countries", keys=["country"]))

    play = SmallPipeline(tmp_path, spark, build)
    play.play([[customer(1, "AT", 1)], [customer(2, "AT", 2)], [customer(1, "DE", 3)]])
    assert rows_of(play, "countries") == sorted([customer(2, "AT", 2), customer(1, "DE", 3)], key=repr)


def test_a_pair_stays_while_another_row_has_the_same_values(tmp_path: Path, spark: Any) -> None:
    """A LEFT JOIN of which only the values are kept: pairs of several keys look alike, and so do copies."""

    def build(pipeline: Pipeline) -> None:
        joined = sources(pipeline, LEFT, "left").join(sources(pipeline, RIGHT, "right"), on="k", how="left", uid="both")
        joined.select("v", "w").sink("pairs", DeltaUpsert("tables/pairs", keys=["v", "w"]))

    (tmp_path / "landing/right").mkdir(parents=True)
    play = SmallPipeline(tmp_path, spark, build)
    play.feed([{"k": 1, "v": 7}, {"k": 1, "v": 7}, {"k": 2, "v": 7}], "left")
    play.checkpoint()
    assert rows_of(play, "pairs") == [{"v": 7, "w": None}]
    play.feed([{"k": 1, "w": 5}], "right")
    play.checkpoint()
    assert rows_of(play, "pairs") == [{"v": 7, "w": 5}, {"v": 7, "w": None}], "key 2 has no partner yet"
    play.feed([{"k": 2, "w": 5}], "right")
    play.checkpoint()
    assert rows_of(play, "pairs") == [{"v": 7, "w": 5}]


def test_which_of_several_rows_is_shown_does_not_depend_on_the_cut(tmp_path: Path, spark: Any) -> None:
    def build(pipeline: Pipeline) -> None:
        now = sources(pipeline, CUSTOMERS).latest(by="id", order_by="version", uid="now")
        now.sink("countries", DeltaUpsert("tables/countries", keys=["country"]))

    moves = [customer(id, country, version) for version in (1, 2) for id, country in enumerate(["AT", "DE"] * 3)]
    tables = []
    for name, size in (("whole", len(moves)), ("halves", 6), ("backwards", 5)):
        play = SmallPipeline(tmp_path / name, spark, build)
        rows = moves[::-1] if name == "backwards" else moves
        play.play([rows[begin : begin + size] for begin in range(0, len(rows), size)])
        tables.append(rows_of(play, "countries"))
    assert tables[0] == tables[1] == tables[2]
    assert len(tables[0]) == 2


# -- a pipeline that had none --------------------------------------------------------------------------------


@pytest.fixture
def without_implied_operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The graph as versions up to 0.2 made it."""
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.pipeline.graph.graph.with_implied_operators", lambda stages, sinks, *_: (stages, sinks))
        yield patch


def test_a_table_that_lost_rows_to_version_0_2_gets_them_back(
    tmp_path: Path, spark: Any, without_implied_operators: pytest.MonkeyPatch
) -> None:
    """The rows that hold are taken from the state of `latest`, which that version had, and counted with new ones."""
    play = SmallPipeline(tmp_path, spark, countries_of_customers)
    play.play([[*MOVES[:2], customer(3, "CH", 1)], MOVES[2:3]])
    assert rows_of(play, "countries") == [{"country": "CH"}, {"country": "DE"}], "AT is lost, where customer 2 still is"
    without_implied_operators.undo()
    assert list(refusals_of(play)) == []
    play.play([[customer(3, "FR", 2)]])
    assert rows_of(play, "countries") == [{"country": "AT"}, {"country": "DE"}, {"country": "FR"}]
    play.play([MOVES[3:4]])
    assert rows_of(play, "countries") == [{"country": "DE"}, {"country": "FR"}]


def test_where_nobody_can_show_what_was_emitted_a_backfill_is_asked_for(
    tmp_path: Path, spark: Any, without_implied_operators: pytest.MonkeyPatch
) -> None:
    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, at timestamp", event_time="at")
        hours = rows.window(tumbling="1 h", by="k", emit="update", uid="hours", n="count(*)")
        hours.select("k", "n").sink("most", DeltaUpsert("tables/most", keys=["k"]))

    play = SmallPipeline(tmp_path, spark, build)
    play.play([[{"k": "a", "at": "2026-01-01T00:00:00Z"}]])
    without_implied_operators.undo()
    (refused,) = refusals_of(play)
    assert "'most-materializer-k' has none of the rows of 'hours-select' that were emitted before" in refused.what
    assert "tidegate backfill MODULE:play --from beginning --swap" in refused.help
    play.feed([{"k": "b", "at": "2026-01-01T00:00:00Z"}])
    with pytest.raises(Invalid, match="not all of them can be computed again from the state of hours"):
        play.checkpoint()


def refusals_of(play: SmallPipeline) -> list[Invalid]:
    coordinator = play.coordinator()
    base = coordinator.ledger.view().last_completed
    assert base is not None
    return list(compatibility.refusals(coordinator.graph, coordinator.ledger, play.limits.recorded, base))


def test_a_changed_stage_in_front_of_the_sink_counts_all_rows_anew(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, countries_of_customers)
    play.play([MOVES[:3]])

    def build(pipeline: Pipeline) -> None:
        now = sources(pipeline, CUSTOMERS).latest(by="id", order_by="version", uid="now")
        now.select("lower(country) AS country").sink("countries", DeltaUpsert("tables/countries", keys=["country"]))

    play.build = build
    play.play([MOVES[3:4]])
    shown = [row["country"] for row in rows_of(play, "countries")]
    assert shown == ["AT", "DE", "de"], "a row under a key that the stage no longer makes stays, as before"
    play.play([[customer(1, "AT", 4)]])
    assert [row["country"] for row in rows_of(play, "countries")] == ["AT", "DE", "at", "de"]
    play.play([[customer(2, "AT", 4)]])
    assert [row["country"] for row in rows_of(play, "countries")] == ["AT", "DE", "at"]


def test_a_column_that_is_no_longer_there_does_not_stop_it(tmp_path: Path, spark: Any) -> None:
    def build(*columns: str) -> Callable[[Pipeline], None]:
        def declare(pipeline: Pipeline) -> None:
            now = sources(pipeline, CUSTOMERS).latest(by="id", order_by="version", uid="now")
            sink = DeltaUpsert("tables/countries", keys=["country"], schema_evolution="add")
            now.select("country", *columns, name="some").sink("countries", sink)

        return declare

    play = SmallPipeline(tmp_path, spark, build("id % 1 AS x", "id % 1 AS y"))
    play.play([MOVES[:2]])
    play.build = build("id % 1 AS x")
    play.play([MOVES[2:3]])
    assert [row["country"] for row in rows_of(play, "countries")] == ["AT", "DE"]
    play.play([MOVES[3:4]])
    assert [row["country"] for row in rows_of(play, "countries")] == ["DE"]


def in_jobs(number: str, *, apart: bool = True) -> Callable[[Pipeline], None]:
    """A sink in another job than the operator in front of it and a stage of Python, or in the same one."""

    def build(pipeline: Pipeline) -> None:
        now = sources(pipeline, CUSTOMERS).latest(by="id", order_by="version", uid="now")
        stage = pipeline.stage(now, name="numbered")(lambda rows: rows.selectExpr(f"{number} AS number", "country"))
        stage = stage.job("tables") if apart else stage
        stage.sink("countries", DeltaUpsert("tables/countries", keys=["number"]))

    return build


def test_a_key_that_only_the_plan_of_another_job_shows_needs_no_state(
    tmp_path: Path, spark: Any, without_implied_operators: pytest.MonkeyPatch
) -> None:
    """So a pipeline of version 0.2 continues."""
    play = SmallPipeline(tmp_path, spark, in_jobs("id"))
    play.play([MOVES[:2]])
    without_implied_operators.undo()
    assert errors_of(play) == []
    play.play([MOVES[2:3]])
    assert rows_of(play, "countries") == [{"number": 1, "country": "DE"}, {"number": 2, "country": "AT"}]
    assert not [name for name in play.ack(2, "tables").states if "materializer" in name]


def test_a_key_that_is_lost_in_another_job_is_refused_before_anything_runs(
    tmp_path: Path, spark: Any, without_implied_operators: pytest.MonkeyPatch
) -> None:
    """With all that helps: nothing can be computed anew once the input is gone."""
    play = SmallPipeline(tmp_path, spark, in_jobs("id % 1"))
    play.play([MOVES[:2]])
    without_implied_operators.undo()
    (refused,) = errors_of(play)
    assert "has none of the rows of 'numbered' that were emitted before" in str(refused)
    assert "tidegate backfill MODULE:play --from beginning --swap" in refused.help
    assert "put the sink and all stages before it into one job" in refused.help
    play.build = in_jobs("id % 1", apart=False)
    assert errors_of(play) == []
    play.play([MOVES[2:3]])
    assert [row["number"] for row in rows_of(play, "countries")] == [0]


def test_a_key_that_gets_lost_later_is_refused_where_another_job_has_emitted_rows(tmp_path: Path, spark: Any) -> None:
    """Of the same code: nobody reads then what operators of other jobs hold."""
    numbers = ["id"]

    def build(pipeline: Pipeline) -> None:
        now = sources(pipeline, CUSTOMERS).latest(by="id", order_by="version", uid="now")
        stage = pipeline.stage(now.job("tables"), name="numbered")
        stage(lambda rows: rows.selectExpr(f"{numbers[0]} AS number", "country")).sink(
            "countries", DeltaUpsert("tables/countries", keys=["number"])
        )

    play = SmallPipeline(tmp_path, spark, build)
    play.play([MOVES[:2]])
    numbers[0] = "id % 1"
    play.feed(MOVES[2:3])
    with pytest.raises(Invalid, match="has none of the rows of 'numbered' that were emitted before"):
        play.checkpoint()


def errors_of(play: SmallPipeline) -> list[TidegateError]:
    """What `tidegate check` says."""
    coordinator = play.coordinator()
    base = coordinator.ledger.view().last_completed
    assert base is not None
    return [*refusals_of(play), *analyse(coordinator, play.spark, base)]


# -- stages of Python ----------------------------------------------------------------------------------------


def staged(function: Callable[[Any], Any], *keys: str) -> Callable[[Pipeline], None]:
    def build(pipeline: Pipeline) -> None:
        now = sources(pipeline, CUSTOMERS).latest(by="id", order_by="version", uid="now")
        stage = pipeline.stage(now, name="passed")(function)
        stage.sink("countries", DeltaUpsert("tables/countries", keys=keys))

    return build


def test_a_stage_that_keeps_the_key_costs_no_query_and_no_state(tmp_path: Path, spark: Any) -> None:
    def passed(rows: Any) -> Any:
        many = {f"column {place}": rows.version + place for place in range(30)}
        renamed = rows.where("version > 0").withColumns(many).withColumnRenamed("id", "number").alias("r")
        return renamed.select("number", "country", "column 1", renamed.version.cast("string").alias("version"))

    play = SmallPipeline(tmp_path, spark, staged(passed, "number"))
    play.play([MOVES[:2], MOVES[2:3]])
    assert [row["country"] for row in rows_of(play, "countries")] == ["DE", "AT"]
    ack = play.ack(2)
    assert not [name for name in ack.states if "materializer" in name]
    assert ack.stats.spark_of("state countries-materializer-number").queries == 0


def test_stages_of_the_same_text_may_do_different_things_with_the_key(tmp_path: Path, spark: Any) -> None:
    """In one session, one after the other: only what they enclose tells them apart."""

    def choosing(column: str) -> Callable[[Any], Any]:
        return lambda rows: rows.selectExpr(f"{column} AS number", "country")

    for column, counted in (("id", False), ("version", True)):
        play = SmallPipeline(tmp_path / column, spark, staged(choosing(column), "number"))
        play.play([MOVES[:2]])
        assert ("state.countries-materializer-number.held" in play.ack(1).states) == counted


def first_of_none(rows: Any) -> Any:
    """Another frame as soon as there are rows."""
    if rows.isEmpty():
        return rows.selectExpr("id AS number", "country")
    return rows.where("country = 'AT'").selectExpr("id % 1 AS number", "country")


def test_a_stage_that_looks_at_rows_loses_none_of_them(tmp_path: Path, spark: Any) -> None:
    """Customers 1 and 2 share a row of the table, which stays when only one of them leaves."""
    play = SmallPipeline(tmp_path, spark, staged(first_of_none, "number"))
    play.play([MOVES[:2], MOVES[2:3]])
    assert [(row["number"], row["country"]) for row in rows_of(play, "countries")] == [(0, "AT")]


KEPT = {
    "renamed": lambda rows: rows.selectExpr("id AS id", "country"),
    "filtered": lambda rows: rows.where("version > 0").withColumn("new", rows.id + 1).drop("country"),
    "cached": lambda rows: rows.cache().alias("r").select("id"),
}
LOST = {
    "computed": lambda rows: rows.selectExpr("id + 0 AS id", "country"),
    "another value": lambda rows: rows.selectExpr("id % 1 AS id", "country"),
    "several of one": lambda rows: rows.selectExpr("id", "explode(array(country, 'all')) AS country"),
    "a join": lambda rows: rows.join(rows.selectExpr("id AS other").limit(9), rows.id == 1, "left").drop("other"),
    "a union": lambda rows: rows.unionByName(rows),
    "rows of its own": lambda rows: rows.sparkSession.createDataFrame([(1, "AT", 2)], rows.schema),
    "a table of its own": lambda rows: rows.sparkSession.range(3).selectExpr("id", "'AT' AS country", "1L AS version"),
    "as pandas and back": lambda rows: rows.sparkSession.createDataFrame(rows.toPandas(), rows.schema),
    "if there are any": lambda rows: rows.selectExpr("id % 1 AS id") if not rows.isEmpty() else rows,
    "if some are old": lambda rows: rows.selectExpr("id % 1 AS id") if rows.where("version < 9").count() else rows,
    "if the first is": lambda rows: rows.selectExpr("id % 1 AS id") if rows.select("id").first() else rows,
}


def kept_by(functions: Mapping[str, Callable[[Any], Any]], spark: Any) -> set[str]:
    rows = spark.createDataFrame([], "id long not null, country string, version long")
    stages = {name: StageNode("passed", function, ("rows",)) for name, function in functions.items()}
    return {name for name, stage in stages.items() if "id" in _find_kept_columns(stage, rows).get("passed", {})}


def test_a_key_goes_only_through_stages_that_never_look_at_rows(spark: Any) -> None:
    assert kept_by(KEPT | LOST, spark) == set(KEPT)


def test_a_server_says_the_same_of_a_key(connect_spark: Any) -> None:
    lost = {name: LOST[name] for name in ("computed", "rows of its own", "if there are any")}
    assert kept_by(KEPT | lost, connect_spark) == set(KEPT)


# -- deletes -------------------------------------------------------------------------------------------------

CHANGES = "id long, op string, at long"


def change(id: int | None, op: str, at: int | None) -> Row:
    return {"id": id, "op": op, "at": at}


def with_deletes(pipeline: Pipeline) -> None:
    sink = DeltaUpsert("tables/now", keys=["id"], order_by=["at"], delete_when="op = 'D'")
    sources(pipeline, CHANGES).sink("now", sink)


def test_a_row_that_is_older_than_the_removal_of_its_key_stays_away(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, with_deletes)
    play.play([[change(1, "U", 10)], [change(1, "D", 12)], [change(1, "U", 11), change(None, "U", 1)]])
    assert rows_of(play, "now") == [change(None, "U", 1)]
    play.play([[change(1, "U", 13)], [change(1, "U", 12)], [change(1, "D", 11)]])
    assert rows_of(play, "now") == [change(1, "U", 13), change(None, "U", 1)]


def test_a_removal_that_comes_before_the_row_counts_as_well(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, with_deletes)
    play.play([[change(1, "D", 12), change(2, "D", None)], [change(1, "U", 11), change(2, "U", 0)]])
    assert rows_of(play, "now") == [change(2, "U", 0)]


def test_a_row_that_is_as_new_as_the_removal_counts_if_it_comes_later(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, with_deletes)
    play.play([[change(1, "D", 12)], [change(1, "U", 12)], [change(1, "U", 11)]])
    assert rows_of(play, "now") == [change(1, "U", 12)]


def test_removals_from_before_the_upgrade_are_named_as_unknown(
    tmp_path: Path, spark: Any, without_implied_operators: pytest.MonkeyPatch
) -> None:
    play = SmallPipeline(tmp_path, spark, with_deletes)
    play.play([[change(1, "U", 10), change(2, "U", 10)], [change(1, "D", 12)]])
    without_implied_operators.undo()
    (told,) = unknown_deletes(play)
    assert "sink 'now'" in told
    assert "rows that were removed up to checkpoint 2 are unknown" in told
    play.play([[change(2, "D", 12)], [change(1, "U", 11), change(2, "U", 11)]])
    assert rows_of(play, "now") == [change(1, "U", 11)], "what version 0.2 removed is not known; what came since is"
    assert "up to checkpoint 2" in unknown_deletes(play)[0]


def unknown_deletes(play: SmallPipeline) -> list[str]:
    coordinator = play.coordinator()
    base = coordinator.ledger.view().last_completed
    assert base is not None
    return compatibility.unknown_deletes(coordinator.graph, coordinator.ledger, base)


def test_a_pipeline_that_begins_knows_all_removals(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, with_deletes)
    play.play([[change(1, "U", 10)], [change(1, "D", 12)]])
    assert unknown_deletes(play) == []


# -- the first row of a key ----------------------------------------------------------------------------------


def test_the_first_checkpoint_that_has_a_key_says_which_row_stays(tmp_path: Path, spark: Any) -> None:
    """Without event time: of copies, and of rows in several checkpoints, it is clear which one; else any one is."""

    def build(pipeline: Pipeline) -> None:
        once = sources(pipeline, CUSTOMERS).deduplicate(by="id", uid="once")
        once.sink("once", DeltaAppend("tables/once"))

    play = SmallPipeline(tmp_path, spark, build)
    first = [customer(1, "AT", 1), customer(1, "AT", 1), customer(2, "AT", 1), customer(2, "DE", 2)]
    play.play([first, [customer(1, "DE", 0), customer(2, "CH", 0), customer(3, "CH", 3)]])
    one, two, three = sorted(play.rows("tables/once"), key=lambda row: row["id"])
    assert one == customer(1, "AT", 1)
    assert two in first[2:]
    assert three == customer(3, "CH", 3)


# -- rollbacks -----------------------------------------------------------------------------------------------


def test_a_rollback_takes_back_what_is_remembered_in_front_of_sinks(tmp_path: Path, spark: Any) -> None:
    def build(pipeline: Pipeline) -> None:
        countries_of_customers(pipeline)
        sink = DeltaUpsert("tables/now", keys=["id"], order_by=["at"], delete_when="op = 'D'")
        sources(pipeline, CHANGES, "changes").sink("now", sink)

    def feeds(customers: list[Row], changes: list[Row]) -> int:
        play.feed(customers)
        play.feed(changes, "changes")
        return play.checkpoint()

    play = SmallPipeline(tmp_path, spark, build)
    first = feeds(MOVES[:2], [change(1, "U", 10)])
    feeds([*MOVES[2:3], customer(2, "CH", 2)], [change(1, "D", 12)])
    assert (rows_of(play, "countries"), rows_of(play, "now")) == ([{"country": "CH"}, {"country": "DE"}], [])
    assert play.coordinator().roll_back(first, run="back", by="ann").error is None
    assert (rows_of(play, "countries"), rows_of(play, "now")) == ([{"country": "AT"}], [change(1, "U", 10)])
    for landed in sorted((tmp_path / "landing").rglob("*.json"))[1::2]:
        landed.unlink()
    feeds(MOVES[2:3], [change(1, "U", 11)])
    assert rows_of(play, "countries") == [{"country": "AT"}, {"country": "DE"}], "customer 2 is in AT again"
    assert rows_of(play, "now") == [change(1, "U", 11)], "the removal is taken back, too"
