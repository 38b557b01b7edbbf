"""Which part of a pipeline runs when an operator's state is changed by hand."""

from __future__ import annotations

from typing import Any

from tidegate import Pipeline
from tidegate.execution.by_hand.manual_edits import ManualEdit
from tidegate.gates import Volume
from tidegate.pipeline.graph.graph import OperatorNode
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

COUNTS = "named-materializer-k-window_start"
"""Stands in front of the sink: nobody knows by what a stage of two streams tells rows apart."""


def by_hand(uid: str, *, needs_input: bool) -> ManualEdit:
    pipeline = Pipeline("shop")
    rows = pipeline.source("rows", Files("rows/*.json", schema="k string, v long, at timestamp"), event_time="at")
    names = pipeline.source("names", Files("names/*.json", schema="k string, name string"))
    checked = rows.gate(Volume(), name="volume")
    once = checked.deduplicate(by="k", uid="once")
    once.sink("once", DeltaAppend("tables/once"))
    hours = once.window(tumbling="1 hour", by="k", emit="update", late="side", uid="hours", n="count(*)")
    hours.sink("hours", DeltaUpsert("tables/hours", keys=["k", "window_start"]))
    known = names.latest(by="k", order_by="name", uid="known")
    known.sink("known", DeltaUpsert("tables/known", keys=["k"]))

    @pipeline.stage(hours, hours["late"])
    def both(hours: Any, late: Any) -> Any:
        return hours

    named = both.join(known, on="k", how="left", uid="named")
    named.sink("named", DeltaUpsert("tables/named", keys=["k", "window_start"]))
    graph = pipeline.graph()
    stage = next(each for each in graph.stages if each.name == uid)
    assert isinstance(stage, OperatorNode)
    return ManualEdit(graph, stage, "edit", lambda _: None, lambda *_: {}, needs_input=needs_input)


def test_what_gives_for_good_is_changed_alone() -> None:
    alone = by_hand("once", needs_input=False)
    assert (alone.stages, alone.live, alone.streams) == ({"once"}, set(), set())


def test_what_replaces_rows_is_followed_by_all_behind_it_and_what_these_need_beside() -> None:
    given = by_hand("hours", needs_input=False)
    made = {"hours", "both", "named", "known", COUNTS}
    assert given.stages == made
    assert given.live == made, "an operator that runs may have something to give"
    assert given.streams == {*made, "hours.late", "names"}, "late rows are none, but there"


def test_whose_input_must_be_known_runs_behind_those_that_make_it() -> None:
    edited = by_hand("hours", needs_input=True)
    assert edited.stages == {"volume", "once", "hours", "both", "named", "known", COUNTS}
    assert "volume" not in edited.live, "what stands still is not judged"
    assert {"rows", "names"} <= edited.streams
