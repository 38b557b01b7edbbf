"""State without input: operators that are given history, state that is changed by hand, both as checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.play import Play, sources
from tidegate import Pipeline, offline, seams
from tidegate.errors import Invalid, Rejected
from tidegate.runtime import editing
from tidegate.sinks import DeltaUpsert


def totals(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k string, v long")
    stream = rows.aggregate(by="k", uid="totals", n="count(*)", sum="sum(v)")
    stream.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


def held(play: Play) -> dict[str, tuple[int, int]]:
    """What is in the sink's table."""
    return {each["k"]: (each["n"], each["sum"]) for each in play.rows("tables/totals")}


def test_history_that_an_operator_is_given_counts_as_if_it_had_come_before(tmp_path: Path, spark: Any) -> None:
    play = Play(tmp_path, spark, totals)
    history = spark.createDataFrame([("a", 5), ("a", 6), ("b", 7)], "k string, v long")
    play.feed([row("a", 1), row("c", 2)])
    assert editing.bootstrap(play.coordinator, spark, "totals", {"rows": history}).id == 1
    assert held(play) == {}, "what an operator gives for history goes nowhere"
    plan = play.coordinator.ledger.view().get(1).plan  # type: ignore[union-attr]
    assert plan.sources["rows"].empty
    play.checkpoint()
    assert held(play) == {"a": (3, 12), "c": (1, 2)}, "input that had landed is not skipped"


def test_state_can_be_changed_by_hand_and_what_follows_goes_on_from_there(
    tmp_path: Path, spark: Any, monkeypatch: Any
) -> None:
    play = Play(tmp_path, spark, totals)
    play.play([[row("a", 1), row("b", 2), row("c", 3)], [row("a", 10)]])

    def change(rows: Any) -> Any:
        return rows.where("k <> 'b'").withColumn("sum", rows["sum"] * 2)

    assert editing.edit_state(play.coordinator, spark, "totals", change).state == "completed"
    play.play([[row(key, 100) for key in "abc"]])
    assert held(play) == {"a": (3, 122), "b": (1, 100), "c": (2, 106)}

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\ndata = "."\n')
    for id, expected in {
        2: {("a", 2, 11), ("b", 1, 2), ("c", 1, 3)},
        3: {("a", 2, 22), ("c", 1, 6)},
        4: {("a", 3, 122), ("b", 1, 100), ("c", 2, 106)},
    }.items():
        assert set(map(tuple, offline.read_state(spark, "play", "totals", id).collect())) == expected
    assert offline.read(spark, "play", "totals", 2).where("k = 'a'").select("sum").collect()[0][0] == 11
    with pytest.raises(Invalid, match="no state of an operator 'total' as of checkpoint 4"):
        offline.read_state(spark, "play", "total")
    with pytest.raises(Rejected, match="has no checkpoint 9"):
        offline.read(spark, "play", "totals", 9)


def test_a_change_that_cannot_be_leaves_everything_as_it_was(tmp_path: Path, spark: Any) -> None:
    play = Play(tmp_path, spark, totals)
    empty = spark.createDataFrame([], "k string, v long")
    with pytest.raises(Invalid, match="'totals' has not remembered anything yet"):
        editing.edit_state(play.coordinator, spark, "totals", lambda rows: rows)
    play.play([[row("a", 1)]])
    for change, said in (
        (lambda rows: rows.drop("n"), "has columns k string, sum bigint"),
        (lambda rows: rows.unionAll(rows), r"has 2 rows for key \{'k': 'a'\}"),
        (lambda rows: rows.selectExpr("k", "n / 0 AS n", "sum"), "has columns k string, n double"),
    ):
        with pytest.raises(Invalid, match=said):
            editing.edit_state(play.coordinator, spark, "totals", change)
    with pytest.raises(Invalid, match="no operator 'total'"):
        editing.bootstrap(play.coordinator, spark, "total", {"rows": empty})
    with pytest.raises(Invalid, match="'totals' has no input 'row'"):
        editing.bootstrap(play.coordinator, spark, "totals", {"row": empty})
    assert play.coordinator.suspended() is None
    play.play([[row("a", 1)]])
    assert held(play) == {"a": (2, 2)}


def test_an_edit_that_is_killed_before_its_ack_has_changed_nothing(tmp_path: Path, spark: Any) -> None:
    class Killed(BaseException):
        pass

    def die(seam: str) -> None:
        if seam == "S6.ack.before":
            raise Killed

    play = Play(tmp_path, spark, totals)
    play.play([[row("a", 1)]])
    with pytest.raises(Killed), seams.installed(seams.Seams(fault=die)):
        editing.edit_state(play.coordinator, spark, "totals", lambda rows: rows.selectExpr("k", "n", "sum + 1 AS sum"))
    play.play([[row("a", 1)]])
    assert held(play) == {"a": (2, 2)}
