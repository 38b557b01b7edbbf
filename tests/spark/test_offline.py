"""State without input: operators that are given history, state that is changed by hand, both as checkpoints."""

from __future__ import annotations

import contextlib
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import only_with_all
from tests.spark.changelog_check import given, plain_rows
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, offline, seams
from tidegate.cli.main import main
from tidegate.errors import Invalid, Rejected
from tidegate.execution.by_hand import editing
from tidegate.gates import BrokenRule, Gate, GateContext, Judgement
from tidegate.sinks import DeltaUpsert


def totals(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k string, v long")
    stream = rows.aggregate(by="k", uid="totals", n="count(*)", sum="sum(v)")
    stream.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))


def row(k: str, v: int) -> dict[str, Any]:
    return {"k": k, "v": v}


def held(play: SmallPipeline) -> dict[str, tuple[int, int]]:
    """What is in the sink's table."""
    return {each["k"]: (each["n"], each["sum"]) for each in play.rows("tables/totals")}


def test_history_that_an_operator_is_given_counts_as_if_it_had_come_before(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, totals)
    history = spark.createDataFrame([("a", 5), ("a", 6), ("b", 7)], "k string, v long")
    play.feed([row("a", 1), row("c", 2)])
    assert editing.bootstrap(play.coordinator(), spark, "totals", {"rows": history}).id == 1
    assert held(play) == {"a": (2, 11), "b": (1, 7)}, "what replaces rows is given on"
    plan = play.coordinator().ledger.view().get(1).plan  # type: ignore[union-attr]
    assert plan.sources["rows"].empty
    play.checkpoint()
    assert held(play) == {"a": (3, 12), "b": (1, 7), "c": (1, 2)}, "input that had landed is not skipped"


def test_state_can_be_changed_by_hand_and_what_follows_continues_from_there(
    tmp_path: Path, spark: Any, monkeypatch: Any
) -> None:
    play = SmallPipeline(tmp_path, spark, totals)
    play.play([[row("a", 1), row("b", 2), row("c", 3)], [row("a", 10)]])

    def change(rows: Any) -> Any:
        return rows.where("k <> 'b'").withColumn("sum", rows["sum"] * 2)

    assert editing.edit_state(play.coordinator(), spark, "totals", change).state == "completed"
    assert held(play) == {"a": (2, 22), "c": (1, 6)}, "a customer who is removed is removed from the table"
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
    play = SmallPipeline(tmp_path, spark, totals)
    empty = spark.createDataFrame([], "k string, v long")
    with pytest.raises(Invalid, match="'totals' has no state yet"):
        editing.edit_state(play.coordinator(), spark, "totals", lambda rows: rows)
    play.play([[row("a", 1)]])
    for change, said in (
        (lambda rows: rows.drop("n"), "has columns k string, sum bigint"),
        (lambda rows: rows.unionAll(rows), r"has 2 rows for key \{'k': 'a'\}"),
        (lambda rows: rows.selectExpr("k", "n / 0 AS n", "sum"), "has columns k string, n double"),
    ):
        with pytest.raises(Invalid, match=said):
            editing.edit_state(play.coordinator(), spark, "totals", change)
    with pytest.raises(Invalid, match="no operator 'total'"):
        editing.bootstrap(play.coordinator(), spark, "total", {"rows": empty})
    with pytest.raises(Invalid, match="'totals' has no input 'row'"):
        editing.bootstrap(play.coordinator(), spark, "totals", {"row": empty})
    assert play.coordinator().suspended() is None
    play.play([[row("a", 1)]])
    assert held(play) == {"a": (2, 2)}


def test_an_edit_that_is_killed_before_its_ack_has_changed_nothing(tmp_path: Path, spark: Any) -> None:
    class Killed(BaseException):
        pass

    def die(seam: str) -> None:
        if seam == "S6.ack.before":
            raise Killed

    play = SmallPipeline(tmp_path, spark, totals)
    play.play([[row("a", 1)]])
    with pytest.raises(Killed), seams.installed(seams.Seams(fault=die)):
        editing.edit_state(
            play.coordinator(), spark, "totals", lambda rows: rows.selectExpr("k", "n", "sum + 1 AS sum")
        )
    play.play([[row("a", 1)]])
    assert held(play) == {"a": (2, 2)}


# -- given on to all that lies behind ------------------------------------------------------------------


class Positive(Gate):
    """Aborts if a key has no rows."""

    kind = "positive"

    def describe(self) -> dict[str, Any]:
        return {}

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        rows, bad = frame.count(), frame.where("n <= 0").count()
        return Judgement(rows=rows, broken=(BrokenRule("positive", "abort", why="n is not positive"),) if bad else ())


def chain(pipeline: Pipeline) -> None:
    """Every operator that replaces rows, behind one whose state is changed by hand; a stage and a gate between."""
    rows = sources(pipeline, "k string, v long")
    names = sources(pipeline, "k string, name string", "names")
    totals = rows.aggregate(by="k", uid="totals", n="count(*)", sum="sum(v)")
    totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))

    @pipeline.stage(totals)
    def large(rows: Any) -> Any:
        return rows.where("sum > 5").withColumn("band", rows.sum % 2)

    judged = large.gate(Positive(), name="judged")
    bands = judged.aggregate(by="band", uid="bands", keys="count(*)", sum="sum(sum)", d="count(distinct n)")
    bands.sink("bands", DeltaUpsert("tables/bands", keys=["band"]))
    totals.top_n(2, by="n", order_by="sum desc", uid="top").sink("top", DeltaUpsert("tables/top", keys=["n", "rank"]))
    totals.latest(by="n", order_by=["sum", "k"], uid="most").sink("most", DeltaUpsert("tables/most", keys=["n"]))
    named = totals.join(names.latest(by="k", order_by="name", uid="known"), on="k", how="left", uid="named")
    named.sink("named", DeltaUpsert("tables/named", keys=["k"]))


def behind(totals: dict[str, tuple[int, int]], names: dict[str, str]) -> dict[str, set[tuple[Any, ...]]]:
    """What the tables must be, if these are the totals."""
    large = [(k, n, s) for k, (n, s) in totals.items() if s > 5]
    by_n = {n: sorted(((s, k) for k, (m, s) in totals.items() if m == n), reverse=True) for n, _ in totals.values()}
    bands = {s % 2 for _, _, s in large}
    return {
        "totals": {(k, n, s) for k, (n, s) in totals.items()},
        "bands": {
            (b, len(r), sum(s for _, _, s in r), len({n for _, n, _ in r}))
            for b in bands
            if (r := [each for each in large if each[2] % 2 == b])
        },
        "top": {(k, n, s, rank) for n, best in by_n.items() for rank, (s, k) in enumerate(best[:2], 1)},
        "most": {(best[0][1], n, best[0][0]) for n, best in by_n.items()},
        "named": {(k, n, s, names.get(k)) for k, (n, s) in totals.items()},
    }


def tables(play: SmallPipeline) -> dict[str, set[tuple[Any, ...]]]:
    names = {"totals": "k n sum", "bands": "band keys sum d", "top": "k n sum rank", "most": "k n sum"}
    shown = {name: columns.split() for name, columns in {**names, "named": "k n sum name"}.items()}
    found = {
        name: [tuple(row[c] for c in columns) for row in play.rows(f"tables/{name}")] for name, columns in shown.items()
    }
    assert all(len(set(rows)) == len(rows) for rows in found.values())
    return {name: set(rows) for name, rows in found.items()}


@only_with_all
def test_what_is_changed_by_hand_is_given_on_to_all_that_lies_behind(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, chain)
    play.watched = True
    names = {"a": "Ann", "b": "Bob"}
    history = spark.createDataFrame([("a", 5), ("a", 6), ("b", 7), ("d", 1)], "k string, v long")
    play.feed([{"k": key, "name": name} for key, name in names.items()], "names")
    play.feed([row("c", 9)])
    editing.bootstrap(play.coordinator(), spark, "totals", {"rows": history})
    assert tables(play) == behind({"a": (2, 11), "b": (1, 7), "d": (1, 1)}, {})
    play.checkpoint()
    play.in_jobs = True
    known = {"a": (2, 11), "b": (1, 7), "c": (1, 9), "d": (1, 1)}
    assert tables(play) == behind(known, names)

    def change(rows: Any) -> Any:
        doubled = rows.where("k <> 'b'").selectExpr("k", "n", "IF(k = 'c', sum * 2, sum) AS sum")
        return doubled.unionAll(spark.sql("SELECT 'e' AS k, 2L AS n, 40L AS sum"))

    editing.edit_state(play.coordinator(), spark, "totals", change)
    known = {"a": (2, 11), "c": (1, 18), "d": (1, 1), "e": (2, 40)}
    assert tables(play) == behind(known, names)
    editing.edit_state(play.coordinator(), spark, "top", lambda rows: rows.where("k <> 'e'"))
    assert ("e", 2, 40, 1) not in tables(play)["top"]
    editing.edit_state(play.coordinator(), spark, "top", lambda rows: rows)
    editing.edit_state(play.coordinator(), spark, "named", lambda rows: rows.where("k = 'a'"), "right")
    names = {"a": "Ann"}
    editing.edit_state(play.coordinator(), spark, "bands", lambda rows: rows.where("true"))
    with pytest.raises(Invalid, match="takes 'totals', whose operator retracts rows"):
        editing.bootstrap(
            play.coordinator(), spark, "most", {"totals": spark.sql("SELECT 'x' AS k, 1L AS n, 2L AS sum")}
        )
    with pytest.raises(Rejected, match="which changes operator 'totals', was aborted"):
        editing.edit_state(
            play.coordinator(), spark, "totals", lambda rows: rows.selectExpr("k", "n - 90L AS n", "sum")
        )
    play.feed([row("a", 1), row("b", 7), row("c", -18)])
    play.checkpoint()
    told, right = tables(play), behind({"a": (3, 12), "b": (1, 7), "c": (2, 0), "d": (1, 1), "e": (2, 40)}, names)
    assert {name: rows for name, rows in told.items() if name != "top"} == {
        n: r for n, r in right.items() if n != "top"
    }
    assert told["top"] == right["top"] - {("c", 2, 0, 2), ("e", 2, 40, 1)} | {("c", 2, 0, 1)}, (
        "what was edited out stays out"
    )
    streams, wrong = given(tmp_path)
    assert wrong == [], "what is taken back was given before, exactly so"
    for name in ("totals", "bands", "top", "most", "named"):
        assert streams[name] == plain_rows(play.rows(f"tables/{name}"))


def test_an_edit_neither_revives_what_has_expired_nor_keeps_anything_from_expiring(
    tmp_path: Path, spark: Any, monkeypatch: Any
) -> None:
    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, v long")
        expiring = rows.aggregate(by="k", uid="totals", n="count(*)", sum="sum(v)", state_ttl="1 h")
        expiring.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))

    play, start = SmallPipeline(tmp_path, spark, declare), datetime(2026, 1, 1, tzinfo=UTC)
    play.limit(num_retained=10)

    def at(minutes: int) -> Any:
        return seams.installed(seams.Seams(now=lambda: start + timedelta(minutes=minutes)))

    seen: list[set[str]] = []

    def looked_at(rows: Any) -> Any:
        seen.append({each["k"] for each in rows.collect()})
        return rows

    with at(0):
        play.play([[row("old", 1), row("kept", 1)]])
    with at(50):
        play.play([[row("kept", 1), row("young", 1)]])
    with at(65):
        play.play([[row("young", 1)]])
    before = play.state("totals")
    with at(70):
        editing.edit_state(play.coordinator(), spark, "totals", looked_at)
        assert seen == [{"kept", "young"}], "what has expired is gone for whoever changes the rest"
        assert play.state("totals") == before, "a change that changes nothing writes nothing"
        twice = "CASE WHEN k = 'young' THEN sum + 100 ELSE sum END AS sum"
        editing.edit_state(play.coordinator(), spark, "totals", lambda rows: rows.selectExpr("k", "n", twice))
    with at(126):  # an hour after the checkpoint on which the change rests, by whose clock it goes
        play.play([[row("old", 1), row("kept", 1), row("young", 1)]])
    assert held(play) == {"old": (1, 1), "kept": (1, 1), "young": (1, 1)}

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\ndata = "."\n')
    changed = offline.read_state(spark, "play", "totals", 5).collect()
    assert {each["k"]: each["sum"] for each in changed} == {"kept": 2, "young": 102}
    for id, there in {2: {"old", "kept", "young"}, 5: {"kept", "young"}}.items():
        assert {each["k"] for each in offline.read_state(spark, "play", "totals", id).collect()} == there
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            assert main(["state", "play", "totals", "--checkpoint", str(id), "--json"]) == 0
        assert {each["k"] for each in json.loads(told.getvalue())["rows"]} == there, "expired rows are not shown"
