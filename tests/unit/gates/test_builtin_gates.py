"""Gates that go by earlier checkpoints: what they let pass, what they remember, what they refuse to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToyFeed, ToyIntervals, ToySink, ToySource
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.execution.job.gates import GateRunner, refuse_reserved_columns
from tidegate.gates import (
    Anomaly,
    BrokenRule,
    Expectations,
    Freshness,
    Gate,
    GateContext,
    Judgement,
    References,
    SchemaDrift,
    Unique,
    Unseen,
    Volume,
)
from tidegate.gates.new_columns import NewColumns
from tidegate.gates.quarantine.table import quarantine_name
from tidegate.records.place import Place
from tidegate.records.records import Drift, FoundColumn, SourceSchema
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

NOON = "2026-03-01T12:00:00+00:00"
MICROS = 1_772_366_400_000_000  # the same


def context(**memory: object) -> GateContext:
    return GateContext("p", "g", Place("/"), clock=NOON, memory=memory)


def story(gate: Volume, counts: list[int]) -> list[bool]:
    """Whether each of these counts passes, in checkpoints that follow each other; a bad one is aborted."""
    memory, passed = {}, []
    for count in counts:
        judged = gate.judge_rows(count, context(**memory))
        passed.append(not judged.broken)
        memory = judged.memory if passed[-1] else memory
    return passed


def test_a_volume_is_compared_with_the_median_of_those_before():
    assert story(Volume(0.5, after=3), [1, 100, 100, 150, 151, 50, 49]) == [True, True, True, True, False, True, False]
    judged = Volume(0.1).judge_rows(70, context(rows=[100] * 5))
    assert judged.broken[0].why == "70 rows; the median of the last 5 checkpoints is 100: 70% of it"
    assert judged.results == {"success": False, "rows": 70, "median": 100, "of": 5}


def test_a_volume_goes_by_no_more_than_it_is_told_to():
    assert Volume(of=3, after=1).judge_rows(9, context(rows=[1, 2, 9, 9, 9])).memory == {"rows": [9, 9, 9]}
    assert story(Volume(0.5, of=2, after=1), [10, 14, 18, 24, 30]) == [True] * 5, "it follows what grows slowly"


def test_a_volume_may_have_a_least_that_counts_from_the_first_checkpoint_on():
    assert [each.rule for each in Volume(least=1).judge_rows(0, context()).broken] == ["least"]


def test_a_volume_knows_no_usual_number_while_most_checkpoints_had_no_rows():
    """Else what was quiet for a while could never begin again: a checkpoint that is aborted is not gone by."""
    assert story(Volume(0.5), [0] * 5 + [1000] * 20) == [True] * 25
    assert story(Volume(0.5, after=3), [0, 0, 0, 1000, 1000, 1000, 1000, 10]) == [True] * 7 + [False], "then it judges"
    assert story(Volume(0.5, after=2), [0, 100] * 4 + [0, 1000]) == [True] * 9 + [False], "what comes now and then"
    judged = Volume(0.5, after=2).judge_rows(0, context(rows=[100, 0, 100, 100]))
    assert judged.broken[0].why == "0 rows; the median of the last 3 checkpoints that had rows is 100: 0% of it"
    assert [each.rule for each in Volume(least=1).judge_rows(0, context(rows=[0] * 5)).broken] == ["least"]


def test_shares_are_of_the_number_that_is_written_not_of_the_nearest_float():
    assert 0.29 * 100 < 29, "as floats have it"
    assert story(Volume(0.29, after=1), [100, 129]) == [True, True]
    assert story(Volume(0.29, after=1), [100, 71]) == [True, True]
    assert story(Volume(0.29, after=1), [100, 130]) == [True, False]


def test_so_many_rows_are_set_aside_as_their_share_of_all_allows(tmp_path: Path):
    gate = Expectations("orders", on_failure="quarantine", at_most=0.29)
    found = Judgement(100, (BrokenRule("r", "quarantine", rows=1),), quarantined=())
    coordinator = ToyWorld(tmp_path).coordinator()

    def outcome(bad: int) -> str:
        staged = {quarantine_name("checked"): SimpleNamespace(rows=bad)}
        gating: Any = SimpleNamespace(staged=staged, pipeline=coordinator, _describe_input=lambda _: "")
        gating._late_sensitive_operators = lambda _: []
        stage: Any = SimpleNamespace(gate=gate, name="checked")
        return GateRunner._verdict(gating, stage, found, None, None).outcome

    assert [outcome(bad) for bad in (28, 29, 30)] == ["quarantine", "quarantine", "abort"]


def test_spark_is_asked_for_the_columns_of_a_stream_only_if_rows_come_back_into_it():
    pipeline = Pipeline("p")
    rows = pipeline.source("rows", Files("rows/*.json", schema="k long, at timestamp"), event_time="at")
    checked = rows.gate(Expectations("orders", on_failure="quarantine"), name="checked")
    checked.deduplicate(by="k", within="1 h", uid="first").sink("first", DeltaAppend("first"))
    coordinator: Any = SimpleNamespace(graph=pipeline.graph())
    (stage,) = coordinator.graph.gates
    nothing: Any = {quarantine_name("checked"): SimpleNamespace(empty=True)}
    no_spark: Any = None
    for planned in ({}, nothing):
        plan: Any = SimpleNamespace(sources=planned, quarantine_all=False, quarantine_held=False)
        gating = GateRunner(coordinator, plan, no_spark, None, no_spark, no_spark, {})
        assert gating._released_rows(stage, no_spark) is None


@pytest.mark.parametrize("name", ["_tidegate_id", "_tidegate_broken", "_Tidegate_Bits0"])
def test_columns_that_a_gate_adds_to_rows_are_refused_by_their_names(name: str):
    stage: Any = SimpleNamespace(name="checked", input="rows")
    refuse_reserved_columns(stage, ["id", "tidegate", "_at"])
    with pytest.raises(Invalid, match=f"gate 'checked': stream 'rows' has column {name}"):
        refuse_reserved_columns(stage, ["id", name])


def test_freshness_is_the_age_of_the_newest_row_when_the_checkpoint_was_planned():
    gate = Freshness("at", "1 hour")
    hour = 3_600_000_000
    assert gate.judge_newest(5, MICROS - hour, 0, context()).broken == ()
    (broken,) = gate.judge_newest(5, MICROS - hour - 1, 0, context()).broken
    assert broken.why == "the newest row is of 2026-03-01 10:59:59 UTC, older than 1 hour at 12:00:00"
    assert gate.judge_newest(5, MICROS, 0, context()).memory == {"newest": MICROS}
    assert [each.why for each in gate.judge_newest(0, None, 0, context()).broken] == ["there is no row yet"]


def test_a_row_of_the_far_future_does_not_silence_freshness():
    gate, hour, far = Freshness("at", "1 hour"), 3_600_000_000, MICROS + 10**15
    (broken,) = gate.judge_newest(5, MICROS - 2 * hour, 1, context()).broken
    assert broken.why == (
        "the newest row is of 2026-03-01 10:00:00 UTC, older than 1 hour at 12:00:00; "
        "1 rows with a time further ahead than 1 hour do not count"
    )
    assert gate.judge_newest(5, MICROS, 1, context()).results == {
        "success": True,
        "newest": NOON,
        "rows": 5,
        "ahead": 1,
    }
    remembered = gate.judge_newest(0, None, 0, context(newest=far))
    assert [each.why for each in remembered.broken] == ["there is no row yet"], "nor one that was remembered once"
    assert gate.judge_newest(5, MICROS + hour, 0, context()).broken == (), "clocks may differ a little"


def test_a_schema_may_only_change_as_it_is_allowed_to():
    before = {"id": "bigint", "v": "double", "w": "string"}
    now = {"id": "string", "v": "double", "x": "int"}
    assert SchemaDrift().judge_columns(1, before, context()).broken == (), "there is nothing before the first"
    judged = SchemaDrift().judge_columns(1, now, context(columns=before))
    assert {each.rule: each.why for each in judged.broken} == {
        "added": "x int",
        "removed": "w string",
        "type": "id: bigint was, string is",
    }
    assert judged.memory == {"columns": now}
    allowed = SchemaDrift(allow=["added", "type"]).judge_columns(1, now, context(columns=before))
    assert [each.rule for each in allowed.broken] == ["removed"]


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        (Volume(on_failure="quarantine"), "no single row is to blame"),
        (Volume(-1), "within is -1"),
        (Volume(of=2, after=3), "expected 1 <= after <= of"),
        (Freshness("at", "soon"), "within='soon'"),
        (SchemaDrift(allow=["addde"]), "allow names 'addde'"),
        (Volume(on_failure="stop"), "policy 'stop' for on_failure"),
    ],
)
def test_a_wrong_declaration_is_told(gate: Gate, told: str):
    pipeline = Pipeline("p")
    pipeline.source("in", ToySource(ToyFeed())).gate(gate, name="g").sink("a", ToySink("a", None, 0))
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    assert told in refused.value.what


def test_intervals_know_nothing_of_each_other():
    pipeline = Pipeline("p")
    pipeline.source("in", ToyIntervals(ToyFeed())).gate(Volume(), name="g").sink("a", ToySink("a", None, 0))
    with pytest.raises(Invalid, match="it compares with earlier checkpoints, and intervals come in any order"):
        pipeline.graph()


@pytest.mark.parametrize("on_failure", ["abort", "warn", "quarantine", "hold"])
def test_how_long_a_gate_holds_is_part_of_it_only_where_it_holds(on_failure):
    gate = Unseen("id", on_failure=on_failure, hold_for="2 days")
    assert gate.describe().get("hold_for") == ("2 days" if on_failure == "hold" else None)


@pytest.mark.parametrize(
    ("gate", "what"),
    [
        (lambda: References("id", to="tables/c", on_failure={"critical": "hold"}), "for on_failure: expected abort"),
        (lambda: Unique("id", over="1 day", on_failure=["hold"]), "for on_failure: expected abort"),
        (lambda: Volume(on_failure={"critical": "hold"}), "for on_failure: expected abort"),
        (lambda: Expectations("orders", on_failure=["hold"]), "expected abort"),
        (lambda: Anomaly("avg(v)", sensitivity=["low"]), "sensitivity is ['low']: expected low, medium, high"),
        (lambda: Anomaly("avg(v)", season=["day"]), "season is ['day']: expected"),
        (lambda: Anomaly("avg(v)", event_time=3), "event_time is 3: expected the name of a column"),
    ],
)
def test_arguments_of_another_type_are_told_like_other_mistakes(gate: Any, what: str) -> None:
    pipeline = Pipeline("p")
    rows = pipeline.source("s", Files("a/*.json", schema="id long, v double"))
    rows.gate(gate(), name="g").sink("t", DeltaAppend("tables/t"))
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    assert what in str(refused.value)


def test_so_many_new_columns_are_named_and_of_other_keys_only_the_number():
    keys = [*(f"k{number:02}" for number in range(25)), "a b"]
    found = [FoundColumn(path=key, kind="new", type="string", records=2) for key in keys]
    schema = SourceSchema(ddl="id bigint", evolves=True)
    judged = NewColumns().judge_keys(3, replace(context(), drift=Drift(found=found, records=2), schema=schema))
    why = {each.rule: each.why for each in judged.broken}
    assert why["new_columns"].startswith("k00 string in 2 records, k01 string")
    assert why["new_columns"].endswith("5 more")
    assert why["other_keys"] == "1 key becomes no column: it stays in the rescue column"
