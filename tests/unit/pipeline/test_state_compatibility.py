"""A state that was made by other code is not taken for what it is not: told when a checkpoint is planned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.gates import Expectations, Unseen, Volume
from tidegate.pipeline.graph.graph import Graph
from tidegate.pipeline.graph.meaning import meaning_of, refuse_misread_states, refuse_untold, without_removed
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

Build = Callable[[Any, Any], Any]


def graph(build: Build, **left: Any) -> Graph:
    pipeline = Pipeline("p")
    rows = pipeline.source("rows", Files("rows/*.json", schema="k string, at timestamp"), **{"event_time": "at"} | left)
    other = pipeline.source("other", Files("other/*.json", schema="k string, at timestamp"), event_time="at")
    build(rows, other).sink("told", DeltaAppend("tables/told", changelog=True))
    other.sink("other", DeltaAppend("tables/other"))
    return pipeline.graph()


def refusal(before: Build, now: Build, **left: Any) -> str:
    """What is said if code changes; "" if the state continues."""
    try:
        refuse_misread_states(graph(now, **left), meaning_of(graph(before)), 7)
    except Invalid as error:
        return f"{error.reason}: {error.what}"
    return ""


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            lambda rows, _: rows.aggregate(by="k", uid="u", a="sum(v)", b="count(*)"),
            lambda rows, _: rows.aggregate(by=["k", "l"], uid="u", a="sum(v) filter (where w)", c="min(v)"),
            "aggregate 'u': by is k, l, and was k\n"
            "    aggregate 'u': a is sum(CASE WHEN (w) THEN v END), and was sum(v)",
        ),
        (
            lambda rows, _: rows.window(hopping=("60 min", "600 s"), uid="u", n="count(*)"),
            lambda rows, _: rows.window(tumbling="1 h", uid="u", n="count(*)"),
            "window 'u': the window is tumbling 1 h, and was hopping 1 h every 10 min",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long, m long", output="n long", uid="u")(print),
            lambda rows, _: rows.process(
                by="k", state="n long, m long", output="n long", uid="u", state_ttl={"n": "1 day"}
            )(print),
            "process 'u': field n is kept on its own, and was kept with its key",
        ),
        (
            lambda rows, _: rows.top_n(2, by="k", order_by="v", uid="u"),
            lambda rows, _: rows.top_n(2, by="k", order_by="v asc", uid="u"),
            "top-n 'u': order_by is v asc, and was v desc",
        ),
        (
            lambda rows, _: rows.latest(by="k", order_by="at", uid="u"),
            lambda rows, _: rows.aggregate(by="k", uid="in", n="count(*)").latest(by="k", order_by="at", uid="u"),
            "latest 'u': over a stream that replaces rows is True, and was False",
        ),
        (
            lambda rows, _: rows.aggregate(by="k", n="count(distinct v)", uid="u"),
            lambda rows, _: rows.latest(by="k", order_by="v", uid="in").aggregate(
                by="k", n="count(distinct v)", uid="u"
            ),
            "aggregate 'u': over a stream that replaces rows is True, and was False",
        ),
        (
            lambda rows, other: rows.join(other, on="k", within="1 h", uid="u"),
            lambda rows, other: rows.join(other, on="k", uid="u"),
            "join 'u': within is left out, and was there",
        ),
        (
            lambda rows, other: rows.join(other, on="k", within="1 h", uid="u"),
            lambda rows, other: rows.join(other, on="k", within="1 h", how="full", event_time=("then", "at"), uid="u"),
            "join 'u': how is full, and was inner\n    join 'u': event_time is then, at, and was at, at",
        ),
        (
            lambda rows, _: rows.deduplicate(by="k", uid="u"),
            lambda rows, _: rows.deduplicate(by="k", within="1 h", uid="u"),
            "deduplicate 'u': within a time is True, and was False",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="k string", uid="u")(print),
            lambda rows, _: rows.process(by="k", state="n long", output="k string", in_order=True, uid="u")(print),
            "process 'u': in order of event time is True, and was False",
        ),
        (
            lambda rows, _: rows.aggregate(by="k", uid="u", d="count(distinct CASE WHEN (w) THEN v END)"),
            lambda rows, _: rows.aggregate(by="k", uid="u", d="count(distinct v) filter (where w)"),
            "aggregate 'u': d is count(distinct v) filter (where w), and was count(distinct CASE WHEN (w) THEN v END)",
        ),
        (
            lambda rows, _: rows.aggregate(by="k", uid="u", n="count(*)", old="count(distinct v)"),
            lambda rows, _: rows.aggregate(by="k", uid="u", n="count(*)", new="count(distinct v)"),
            "aggregate 'u': new counts what old did: values that are there already would not count for it",
        ),
    ],
)
def test_a_state_is_not_taken_for_something_else(before: Build, now: Build, said: str) -> None:
    begin = "STATE_CHANGED: operators were declared differently as of checkpoint 7:"
    assert refusal(before, now) == f"{begin}\n    {said}"
    assert refusal(before, before) == refusal(now, now) == ""


def test_what_changes_nothing_is_no_change() -> None:
    def before(rows: Any, other: Any) -> Any:
        hours = rows.window(tumbling="1 h", by="k", uid="hours", n="count( * )", s="SUM(v)")
        return hours.join(other, on="k", within="1 h", event_time=("window_start", None), uid="near")

    def now(rows: Any, other: Any) -> Any:
        hours = rows.window(tumbling=3600, by=["k"], uid="hours", n="count(*)", s="sum( v )", m="max(v)", late="side")
        return hours.join(other, on="k", within="2 h", event_time=("window_start", "at"), uid="near")

    assert refusal(before, now) == ""


def test_a_source_that_goes_by_another_column_changes_what_follows() -> None:
    def windowed(rows: Any, _: Any) -> Any:
        return rows.window(tumbling="1 h", uid="u", n="count(*)")

    assert "window 'u': event_time is then, and was at" in refusal(windowed, windowed, event_time="then")


def test_an_operator_that_comes_back_under_its_uid_begins_without_what_its_predecessor_remembered() -> None:
    def both(rows: Any, _: Any) -> Any:
        return rows.aggregate(by="k", uid="sums", n="count(*)").aggregate(by="n", uid="gate", m="count(*)")

    memory = {"rows": {}, "sums": {}, "sums.watermark": {}, "gate.sums": {}, **meaning_of(graph(both))}
    left = without_removed(graph(lambda rows, _: rows.aggregate(by="k", uid="tops", n="count(*)")), memory)
    assert set(left) == {"rows", "gate.sums"}
    assert without_removed(graph(both), memory) == memory


# -- names that nobody gave ------------------------------------------------------------------------------


def names(build: Build) -> list[str]:
    return [stage.name for stage in graph(build).stages]


def test_an_operator_without_a_uid_is_not_called_by_its_place() -> None:
    def before(rows: Any, _: Any) -> Any:
        return rows.aggregate(by="k", n="count(*)")

    def now(rows: Any, other: Any) -> Any:
        other.aggregate(by="k", n="count(*)").sink("above", DeltaAppend("tables/above", changelog=True))
        rows.aggregate(by="at", n="count(*)").sink("beside", DeltaAppend("tables/beside", changelog=True))
        return rows.aggregate(by="k", n="count(*)", most="max(at)")

    assert names(before) == ["aggregate-rows-k"]
    assert names(now) == ["aggregate-other-k", "aggregate-rows-at", "aggregate-rows-k"]


def test_names_say_what_an_operator_is_however_it_is_written() -> None:
    def each(rows: Any, other: Any) -> Any:
        hours = rows.window(tumbling="60 min", by=["k", "Größe", "l" * 80], n="count(*)")
        day = rows.window(tumbling="1 day", n="count(*)").join(hours, on="k", within="1 h", event_time="window_start")
        return day.join(other.latest(by="k", order_by="at"), on="k")

    found = names(each)
    assert found == names(each), "the same in every process"
    assert {"window-rows-tumbling-1-day", "latest-other-k-at"} < set(found)
    assert found[0].startswith("window-rows-tumbling-1-h-k-gr-e-lll")
    assert any(name.startswith("join-window-rows-tumbling-1-day-window-rows-t") for name in found)
    assert found[-1].startswith("join-join-window-rows")
    assert all(len(name) <= 63 for name in found)


def test_a_gate_in_front_renames_nothing_and_gates_are_called_by_what_they_judge() -> None:
    def before(rows: Any, _: Any) -> Any:
        return rows.gate(Volume()).aggregate(by="k", n="count(*)")

    def now(rows: Any, _: Any) -> Any:
        checked = rows.gate(Unseen("k")).gate(Expectations("rows", on_failure="quarantine"))
        return checked.gate(Volume()).aggregate(by="k", n="count(*)")

    assert names(before) == ["rows-volume", "aggregate-rows-k"]
    assert names(now) == ["rows-unseen-k", "rows-expectations-rows", "rows-volume", "aggregate-rows-k"]


def test_two_that_would_be_called_the_same_need_names_of_their_own() -> None:
    def both(rows: Any, other: Any) -> Any:
        rows.aggregate(by="k", m="max(at)").sink("above", DeltaAppend("tables/above", changelog=True))
        return rows.gate(Volume()).gate(Volume()).aggregate(by="k", n="count(*)")

    with pytest.raises(Invalid) as caught:
        graph(both)
    told = caught.value.what
    assert "2 of aggregate would be called 'aggregate-rows-k': set uid=\"…\" on each" in told
    assert "uid='aggregate-rows-k' on the one that existed before" in told
    assert "2 of volume would be called 'rows-volume': set name=\"…\" on each" in told
    assert len(told.splitlines()) == 3, "and that is all"


def test_a_uid_that_is_given_to_another_operator_does_not_take_over_the_state() -> None:
    def before(rows: Any, _: Any) -> Any:
        return rows.aggregate(by="k", uid="u", n="count(*)")

    def over_other(rows: Any, other: Any) -> Any:
        rows.sink("rows", DeltaAppend("tables/rows"))
        return other.aggregate(by="k", uid="u", n="count(*)")

    said = refusal(before, lambda rows, _: rows.aggregate(by="k", uid="u", most="max(at)"))
    assert "aggregate 'u': none of its results is among those that it had, which were n" in said
    said = refusal(before, over_other)
    assert "aggregate 'u': its rows come from other, and came from rows" in said


def test_the_sides_of_a_join_are_not_exchanged_over_the_same_state() -> None:
    def before(rows: Any, other: Any) -> Any:
        return rows.join(other, on="k", uid="u")

    said = refusal(before, lambda rows, other: other.join(rows, on="k", uid="u"))
    assert "join 'u': its rows come from other, and came from rows" in said
    assert "join 'u': its rows come from rows, and came from other" in said


def test_rows_may_come_by_another_way_as_long_as_they_come_from_the_same_source() -> None:
    def now(rows: Any, other: Any) -> Any:
        once = rows.gate(Volume()).deduplicate(by="k")
        both = rows.pipeline.stage(once, other, name="both")(lambda one, two: one.unionByName(two))
        return both.aggregate(by="k", uid="u", n="count(*)")

    assert refusal(lambda rows, _: rows.aggregate(by="k", uid="u", n="count(*)"), now) == ""


# -- what is taken back was given ------------------------------------------------------------------------

FACTOR = 10


def helper(value: int) -> int:
    return value * 2


def first(frame: Any) -> Any:
    return frame.selectExpr("k", f"n + {helper(1)} AS n")


def behind(function: Callable[..., Any] | None, uid: str = "down", **more: str) -> Build:
    """An aggregate of an aggregate, with a stage in between."""

    def build(rows: Any, _: Any) -> Any:
        latest = rows.aggregate(by="k", uid="up", n="count(*)")
        given = latest if function is None else rows.pipeline.stage(latest, name="between")(function)
        return given.aggregate(by="k", uid=uid, **({"total": "sum(n)"} | more))

    return build


def test_a_stage_that_was_changed_between_operators_that_replace_rows_is_refused() -> None:
    def tidied(frame: Any) -> Any:
        """Says more now."""
        # The name, comments, types and layout of a stage do nothing.
        return frame.selectExpr(
            "k",
            f"n + {helper(1)} AS n",
        )

    def other(frame: Any) -> Any:
        return frame.selectExpr("k", f"n * {helper(1)} AS n")

    assert refusal(behind(first), behind(tidied)) == ""
    begin = "STATE_CHANGED: rows would be retracted that were never emitted, as of checkpoint 7:\n    "
    assert (
        refusal(behind(first), behind(other)) == f"{begin}aggregate 'down': the stages between up and it have changed"
    )
    assert "the stages between up and it have changed" in refusal(behind(None), behind(first)), "or has come in between"
    assert "the stages between up and it have changed" in refusal(behind(first), behind(None)), "or is gone"


def test_so_is_a_change_of_what_such_a_stage_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(frame: Any) -> Any:
        return frame.selectExpr("k", f"n * {FACTOR} AS n")

    told = meaning_of(graph(behind(scaled)))
    assert told == meaning_of(graph(behind(scaled)))
    monkeypatch.setitem(globals(), "FACTOR", 11)
    assert told != meaning_of(graph(behind(scaled))), "a constant"

    told = meaning_of(graph(behind(first)))
    monkeypatch.setitem(globals(), "helper", lambda value: value * 3)
    assert told != meaning_of(graph(behind(first))), "a function of the user's own"


def test_where_nothing_is_taken_back_a_stage_may_change() -> None:
    def before(rows: Any, _: Any) -> Any:
        return rows.pipeline.stage(rows, name="between")(first).aggregate(by="k", uid="u", n="count(*)")

    def now(rows: Any, _: Any) -> Any:
        changed = rows.pipeline.stage(rows, name="between")(lambda frame: frame.where("k > 'a'"))
        return changed.aggregate(by="k", uid="u", n="count(*)")

    assert refusal(before, now) == ""


def untold(before: Build, now: Build, began: set[str]) -> str:
    there = {stage.name for stage in graph(before).operators}
    try:
        refuse_untold(graph(now), meaning_of(graph(before)), there, began, 7)
    except Invalid as error:
        return f"{error.reason}: {error.what}"
    return ""


def alone(rows: Any, _: Any) -> Any:
    return rows.aggregate(by="k", uid="up", n="count(*)")


def test_an_operator_that_is_new_behind_one_that_has_given_rows_is_refused() -> None:
    said = untold(alone, behind(None), {"up"})
    assert said.endswith("aggregate 'down' has none of the rows that up emitted before")
    assert untold(alone, behind(None), set()) == "", "it has given none yet"
    assert untold(behind(None), behind(None), {"up"}) == "", "it was there, but nothing came to it"
    assert untold(behind(None), behind(None, m="avg(n)"), {"up"}) == ""


def test_a_result_that_is_new_over_rows_that_were_given_is_refused_unless_it_is_of_a_new_one() -> None:
    def grown(rows: Any, _: Any) -> Any:
        return rows.aggregate(by="k", uid="up", n="count(*)", c="count(at)").aggregate(
            by="k", uid="down", total="sum(n)", all="sum(c)", rows="count(*)"
        )

    said = untold(behind(None), grown, {"up", "down"})
    assert said.endswith("aggregate 'down': its result rows has none of the rows that were emitted before")


def test_who_gave_rows_stays_as_long_as_they_are_held() -> None:
    def renamed(rows: Any, _: Any) -> Any:
        return rows.aggregate(by="k", uid="anew", n="count(*)").aggregate(by="k", uid="down", total="sum(n)")

    said = refusal(behind(None), renamed)
    assert said.endswith("aggregate 'down' holds rows of up, which would never be retracted")


def test_how_windows_replace_rows_stays_where_that_is_counted_on() -> None:
    def windows(emit: str) -> Build:
        def build(rows: Any, _: Any) -> Any:
            hours = rows.window(tumbling="1 h", by="k", uid="up", emit=emit, allowed_lateness="1 h", n="count(*)")
            return hours.aggregate(by="k", uid="down", total="sum(n)")

        return build

    assert "the stages between up and it have changed" in refusal(windows("update"), windows("close"))


def test_what_forgets_rows_that_it_gave_feeds_nothing_that_counts_them() -> None:
    def forgetting(rows: Any, _: Any) -> Any:
        sums = rows.aggregate(by="k", uid="up", n="count(*)", state_ttl="30 days")
        staged = rows.pipeline.stage(sums, name="between")(first)
        return staged.aggregate(by="k", uid="down", total="sum(n)")

    with pytest.raises(Invalid) as caught:
        graph(forgetting)
    assert "aggregate 'down' takes between, but up forgets rows (state_ttl), and emits them anew" in caught.value.what
    assert names(lambda rows, _: rows.aggregate(by="k", uid="up", n="count(*)", state_ttl="30 days")) == ["up"]


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda rows, _: rows.latest(by="k", order_by="at desc"),
            "order_by has 'at desc': name columns, without a direction",
        ),
        (
            lambda rows, _: rows.aggregate(by="date(at)", n="count(*)"),
            "by names 'date(at)', which is computed: compute a",
        ),
        (lambda rows, _: rows.top_n(1, by=["k", "v + 1"], order_by="at"), "by names 'v + 1', which is computed"),
        (
            lambda rows, _: rows.deduplicate(by="k", within="0 s"),
            "within='0 s' is too short: give a duration such as \"1 hour\"",
        ),
        (
            lambda rows, _: rows.window(tumbling="1 h", uid="hours", n="count(*)").window(tumbling="1 day", m="sum(n)"),
            "its time column 'at' is not in the rows of 'hours', which have window_start, window_end, n",
        ),
        (
            lambda rows, other: other.join(
                rows.aggregate(by="k", uid="sums", n="count(*)").gate(Volume()), on="k", within="1 h"
            ),
            "its time column 'at' is not in the rows of 'sums', which have k, n",
        ),
        (lambda rows, other: rows.join(other, on={"k": ["l"]}), "on names ['l']: expected names of columns"),
        (lambda rows, other: rows.join(other, on={"k": "k", "at": "k"}), "on names 'k' twice"),
    ],
)
def test_what_cannot_be_is_told_when_it_is_declared(declare: Build, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        graph(declare)
    assert said in caught.value.what


def test_a_window_behind_a_window_goes_by_the_time_that_it_is_told() -> None:
    def days(rows: Any, _: Any) -> Any:
        hours = rows.window(tumbling="1 h", uid="hours", n="count(*)")
        return hours.window(tumbling="1 day", event_time="window_start", uid="days", n="sum(n)")

    assert names(days) == ["hours", "days"]


@pytest.mark.parametrize("keys", [{"k", "at"}, {"k": 1}.keys(), None, 7])
def test_keys_are_a_name_or_a_list_of_names(keys: Any) -> None:
    with pytest.raises(Invalid) as caught:
        graph(lambda rows, _: rows.latest(by=keys, order_by="at"))
    assert 'a name, or a list of names: "id", ["id", "country"]' in caught.value.expected


def test_an_output_that_an_operator_would_have_is_told_with_how() -> None:
    for declare, how in (
        (lambda rows: rows.window(tumbling="1 h", uid="u", n="count(*)"), 'late="side"'),
        (lambda rows: rows.deduplicate(by="k", uid="u"), 'within="1 day"'),
    ):
        with pytest.raises(Invalid) as caught:
            graph(lambda rows, _, declare=declare: declare(rows)["late"])
        assert caught.value.what.endswith("'u' has no output 'late'")
        assert caught.value.help == f"declare it: {how}"


def test_a_join_by_columns_of_other_names_is_another_than_one_by_the_same() -> None:
    def by(on: Any) -> Build:
        return lambda rows, other: rows.join(other, on=on, uid="u")

    assert "join 'u': on is k = at, and was k" in refusal(by("k"), by({"k": "at"}))
    assert refusal(by("k"), by({"k": "k"})) == ""
