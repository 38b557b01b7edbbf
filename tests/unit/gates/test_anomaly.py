"""A gate that learns what is usual: what it judges, what it tells, and what it learns from."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.gates import Anomaly, GateContext, Judgement
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

MONDAY = datetime(2026, 3, 2, tzinfo=timezone.utc)


class LearningGate:
    """Checkpoints one after the other. What aborts is not learned, as the ack's memory does not count then."""

    def __init__(self, gate: Anomaly, every: timedelta = timedelta(hours=1)) -> None:
        self.gate, self.every, self.memory = gate, every, dict[str, Any]()
        self.clock, self.dice = MONDAY, random.Random(1)

    def judge(self, values: dict[str, float | None], of_no_rows: float | None = None) -> Judgement:
        context = GateContext("p", "g", Place("/"), clock=self.clock.isoformat(), memory=self.memory)
        judged = self.gate.judge_values(values, dict.fromkeys(values, 10), {}, of_no_rows, context)
        if not judged.broken or self.gate.on_failure != "abort":
            self.memory = judged.memory
        self.clock += self.every
        return judged

    def usual(self, checkpoints: int, *groups: str, around: float = 100.0) -> None:
        for _ in range(checkpoints):
            self.judge({group: around + self.dice.gauss(0, 1) for group in groups or ("[]",)})


def groups_of(judged: Judgement) -> dict[str, Json]:
    return {",".join(map(str, found["group"])): found for found in judged.results["groups"]}


def test_a_value_far_from_its_history_is_told_with_the_band_in_which_it_was_expected():
    story = LearningGate(Anomaly("avg(v)"))
    story.usual(60)
    judged = story.judge({"[]": 130.0})
    (broken,) = judged.broken
    assert (broken.rule, broken.policy, broken.rows) == ("anomaly", "warn", None)
    assert broken.why.startswith("avg(v) is 130; 9")
    assert broken.why.endswith(" was expected, about 100, from 60 checkpoints") or "about 99" in broken.why
    (found,) = judged.results["groups"]
    assert found["low"] < found["expected"] < found["high"] < found["value"] == 130.0
    assert not judged.results["success"]
    assert story.judge({"[]": 100.0}).broken == ()


def test_a_history_that_is_too_short_judges_nothing_and_says_so():
    story = LearningGate(Anomaly("avg(v)", after=40))
    story.usual(12)
    judged = story.judge({"[]": 1e9})
    assert judged.broken == ()
    assert judged.why == "not judged: its history is too short: 12 of 40 checkpoints"
    weekly = LearningGate(Anomaly("avg(v)", season="week"))
    weekly.usual(200)
    why = "not judged: its history is too short: 200 checkpoints do not show its spread yet"
    assert weekly.judge({"[]": 1e9}).why == why, "each hour was there once or twice"
    daily = LearningGate(Anomaly("avg(v)", season="week"), every=timedelta(days=1))
    daily.usual(60)
    daily.clock += timedelta(hours=12)
    why = "not judged: its history has too few values of this hour of the week"
    assert daily.judge({"[]": 1e9}).why == why


def test_each_group_has_its_own_history():
    story = LearningGate(Anomaly("avg(v)", by="country"))
    for _ in range(60):
        story.judge({'["DE"]': 100 + story.dice.gauss(0, 1), '["FR"]': 10 + story.dice.gauss(0, 0.1)})
    judged = story.judge({'["DE"]': 10.0, '["FR"]': 10.0, '["IT"]': 5.0, "[null]": 1.0})
    assert [name for name, found in groups_of(judged).items() if found["unusual"]] == ["DE"]
    assert judged.broken[0].why.startswith("avg(v) of 1 of 4 groups is unusual; the farthest is 10; 9")
    assert "DE" not in judged.broken[0].why, "whoever may not read rows sees no value of a row"
    assert judged.why == "2 of 4 groups are not judged; of the first one, its history is too short: 0 of 30 checkpoints"


def test_a_group_that_is_missing_has_the_value_of_no_rows():
    counted, mean = LearningGate(Anomaly("count(*)", by="c")), LearningGate(Anomaly("avg(v)", by="c"))
    for story in (counted, mean):
        story.usual(60, '["DE"]', '["FR"]')
    assert groups_of(counted.judge({'["FR"]': 100.0}, of_no_rows=0.0))["DE"]["unusual"]
    found = groups_of(mean.judge({'["FR"]': 100.0}, of_no_rows=None))["DE"]
    assert (found["unusual"], found["not_judged"]) == (False, "it has no value")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_usual_and_is_not_learned(value: float):
    story = LearningGate(Anomaly("avg(v)"))
    judged = story.judge({"[]": value})
    assert judged.broken[0].why == f"avg(v) is {value}, which is no number"
    assert judged.results["groups"][0]["value"] == str(value), "JSON has no such number"
    story.usual(60)
    assert not story.judge({"[]": 100.0}).broken


def test_what_is_aborted_is_not_learned_and_what_is_approved_is():
    aborting, asking = (
        LearningGate(Anomaly("avg(v)", on_failure="abort")),
        LearningGate(Anomaly("avg(v)", on_failure="hold")),
    )
    for story in (aborting, asking):
        story.usual(60)
    before = dict(aborting.memory)
    assert [bool(aborting.judge({"[]": 150.0}).broken) for _ in range(10)] == [True] * 10
    assert aborting.memory == before
    assert [bool(asking.judge({"[]": 150.0}).broken) for _ in range(10)] == [True] * 6 + [False] * 4


def test_seasons_go_by_a_time_zone_and_by_the_time_of_the_rows():
    gate = Anomaly("sum(v)", season="day", timezone="Asia/Tokyo", after=3)
    context = GateContext("p", "g", Place("/"), clock=MONDAY.isoformat())
    learned = gate.judge_values({"[]": 5.0}, {"[]": 1}, {}, None, context).memory["groups"]["[]"]["usual"]
    assert list(learned["first"]) == ["9"]
    at = {"[]": MONDAY + timedelta(hours=5)}
    learned = gate.judge_values({"[]": 5.0}, {"[]": 1}, at, None, context).memory["groups"]["[]"]["usual"]
    assert list(learned["first"]) == ["14"]


def test_groups_with_few_rows_are_not_judged():
    story = LearningGate(Anomaly("avg(v)", least=11))
    story.usual(60)
    assert story.judge({"[]": 1e9}).why == "not judged: it has fewer than 11 rows"
    assert story.memory["groups"]["[]"]["usual"]["count"] == 0


def test_the_history_of_another_declaration_is_forgotten():
    story = LearningGate(Anomaly("avg(v)"))
    story.usual(60)
    story.gate = Anomaly("avg(w)")
    assert story.judge({"[]": 1e9}).why == "not judged: its history is too short: 0 of 30 checkpoints"
    story.usual(60)
    story.gate = Anomaly("avg(w)", sensitivity="low", on_failure="hold")
    assert story.judge({"[]": 1e9}).broken, "how it is judged is no part of the history"


def test_of_many_groups_the_newest_are_remembered():
    story = LearningGate(Anomaly("count(*)", by="c"))
    story.judge({f'["{number}"]': 1.0 for number in range(50)}, 0.0)
    story.judge({f'["{number}"]': 1.0 for number in range(40, 60)}, 0.0)
    assert set(story.memory["groups"]) >= {f'["{number}"]' for number in range(40, 60)}
    assert len(story.memory["groups"]) == 50


def test_a_backfill_with_cuts_of_its_own_is_not_judged_and_learns_nothing():
    gate = Anomaly("count(*)")
    assert gate.interval_problems()
    assert "aggregates over all rows of a checkpoint" in gate.depends_on_checkpoint_cuts


def test_rows_of_unusual_groups_go_to_quarantine_and_a_group_without_rows_only_warns():
    story = LearningGate(Anomaly("count(*)", by="country", on_failure="quarantine"))
    story.usual(60, '["DE"]', '["FR"]')
    (broken,) = story.judge({'["DE"]': 130.0, '["FR"]': 100.0}).broken
    assert (broken.rule, broken.policy, broken.rows) == ("anomaly", "quarantine", 10)
    judged = story.judge({'["FR"]': 100.0}, of_no_rows=0.0)
    (broken,) = judged.broken
    assert (broken.rule, broken.policy, broken.rows) == ("anomaly_without_rows", "warn", None)
    assert broken.why.startswith("count(*) of 1 of 2 groups is unusual; the farthest is 0; 9")


def test_quarantine_needs_groups_and_a_share():
    gate = Anomaly("count(*)", on_failure="quarantine", at_most=2)
    assert gate.problems() == [
        "on_failure is 'quarantine', but without by=… no rows are to blame",
        "at_most is 2: expected a share from 0 to 1",
    ]


def test_what_is_wrong_with_its_declaration_is_told():
    pipeline = Pipeline("p")
    rows = pipeline.source("rows", Files("rows/*.json", schema="v long"))
    gate: Any = Anomaly("", by=["a", "a"], season="year", sensitivity="some", after=1, least=-1, timezone="Mars/City")
    rows.gate(gate, name="bad").sink("s", DeltaAppend("t"))
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    for said in (
        "'' is no SQL aggregate",
        "by names 'a' twice",
        "season is 'year'",
        "sensitivity is 'some'",
        "after is 1",
        "least is -1",
        "timezone is 'Mars/City'",
    ):
        assert f"gate 'bad': {said}" in refused.value.what
