"""Declarations of what takes rows in order, of every few checkpoints, and of process with two streams: what is wrong
is told before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.declarations import one_problem
from tidegate import Pipeline
from tidegate.checkpoint.compatibility import growing
from tidegate.errors import Invalid
from tidegate.gates import Unseen
from tidegate.operators import ListState, MapState
from tidegate.operators.over import OverRows
from tidegate.pipeline.graph.meaning import meaning_of
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

Declare = Callable[[Any, Any], Any]


def declared(build: Declare, sink: Any = None) -> Pipeline:
    """Two streams with event time, of which `build` makes one."""
    pipeline = Pipeline("events")
    rows = pipeline.source("rows", Files("rows/*.json", schema="k string, v long, at timestamp"), event_time="at")
    other = pipeline.source(
        "other", Files("other/*.json", schema="k string, w long, then timestamp"), event_time="then"
    )
    build(rows, other).sink("made", sink or DeltaAppend("made"))
    other.sink("other", DeltaAppend("other"))
    return pipeline


def nothing(*_: Any) -> None:
    """A user's function."""


def looked_up(rows: Any, table: Any) -> Any:
    """A stage that looks rows up."""
    return rows.pipeline.stage(rows, table, name="looked-up")(nothing)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda rows, _: rows.over(by="k"), 'it computes nothing: name at least one, such as total="sum(amount)"'),
        (lambda rows, _: rows.over(by="k", rows=0, n="count(*)"), "rows=0: expected a number of rows"),
        (lambda rows, _: rows.over(by="k", n="lag(v, 0)"), "n='lag(v, 0)': write lag(amount), or lag(amount, 3)"),
        (lambda rows, _: rows.over(by="k", n="lag(v, 20000)"), "it may look back 10000 rows at most"),
        (lambda rows, _: rows.over(by="k", n="lag(v"), "n='lag(v' has a parenthesis or a quote that is not closed"),
        (lambda rows, _: rows.over(by="k", n="count(distinct v)"), "n='count(distinct v)' cannot be a running value"),
        (lambda rows, _: rows.over(by="k", n="median(v)"), "n='median(v)': median cannot be kept; these can: "),
        (lambda rows, _: rows.over(by="k", k="count(*)"), "'k' is a key or one of tidegate's own names, and a result"),
        (
            lambda rows, _: rows.over(by="k", mean="avg(v)", mean_sum="sum(v + 1)"),
            "'mean_sum' needs a column 'mean_sum', which is of 'mean': name it differently",
        ),
        (lambda rows, _: rows.over(by="k", n="count(*)", state_ttl="soon"), "state_ttl is 'soon': write a duration"),
        (lambda rows, _: rows.window(count=0, by="k", n="count(*)"), "count=0: expected a number of rows"),
        (lambda rows, _: rows.window(count=3, by="k"), 'it computes nothing: name at least one, such as orders="count'),
        (lambda rows, _: rows.top_n(2, tumbling="1 moon", order_by="v"), "tumbling='1 moon' ('moon' is not a unit"),
        (lambda rows, _: rows.top_n(0, tumbling="1 h", order_by="v"), "n is 0: expected a number of rows per key"),
        (lambda rows, _: rows.top_n(2, tumbling="1 h", by="_k", order_by="v"), "by names '_k', which tidegate"),
        (lambda rows, _: rows.every(0), "it is every 0: expected a number of checkpoints, such as every(5)"),
        (
            lambda rows, _: rows.window(tumbling="1 h", time="processing", late="side", n="count(*)"),
            'time="processing": nothing is late; leave out event_time, late and allowed_lateness',
        ),
        (
            lambda rows, _: rows.window(tumbling="1 h", time="wall", n="count(*)"),
            "time='wall': expected \"event\" or \"processing\", when the checkpoint is planned",
        ),
        (
            lambda rows, _: rows.every(3).window(tumbling="1 h", n="count(*)"),
            "event_time='at' is a time of rows that a join, or every(…), keeps",
        ),
        (
            lambda rows, _: rows.window(count=3, by="k", n="count(*)").window(
                tumbling="1 h", event_time="window_start", s="sum(n)"
            ),
            "event_time='window_start' may be older than a window's end by any time, as long as 3 rows take",
        ),
        (
            lambda rows, _: rows.window(tumbling="1 h", time="processing", at="max(at)").window(
                tumbling="1 h", event_time="at", n="count(*)"
            ),
            "event_time='at' may be older than other rows of its checkpoint",
        ),
        (
            lambda rows, other: rows.process(
                by="k", state="n long", output="n long", other=other, in_order=True, event_time=("at",)
            )(nothing),
            "event_time=('at',): give one column, or one for each stream",
        ),
        (
            lambda rows, other: rows.process(
                by="k", state="n long", output="n long", other=other, order_by="at"
            )(nothing),
            "order_by: rows of two streams have no common columns to sort by",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", outputs={"late": "n long"})(nothing),
            "outputs: 'late' is the name of the output with late rows: choose another name",
        ),
        (
            lambda rows, _: rows.process(
                by="k", state="n long", output="n long", maps={"n": MapState(by="v", state="m long")}
            )(nothing),
            "maps['n']: state.n exists already: rename it",
        ),
        (
            lambda rows, _: rows.process(
                by="k", state="n long", output="n long", maps={"m": MapState(by="k", state="m long")}
            )(nothing),
            "maps['m']: by='k' is a key of the operator: each call has one value of it",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", maps={"m": "v"})(nothing),
            "maps['m'] is a str: expected MapState(by=\"product\", state=\"n long\")",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", lists={"n": ListState("v long")})(
                nothing
            ),
            "lists['n']: state.n exists already: rename it",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", lists={"l": ListState("_v long")})(
                nothing
            ),
            "lists['l']: '_v' begins with '_', which tidegate reserves",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", lists={"l": ListState("k long")})(
                nothing
            ),
            "lists['l']: 'k' is a key, which is stored anyway",
        ),
        (
            lambda rows, _: rows.process(
                by="_place", state="n long", output="n long", lists={"l": ListState("v long")}
            )(nothing),
            "by names '_place', which its lists need",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", lists={"l": "v"})(nothing),
            "lists['l'] is a str: expected ListState(\"page string, at timestamp\")",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", state_ttl={"m": "1 day"})(nothing),
            "state_ttl names 'm': expected one of the state's fields, n",
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", state_ttl={"n": "soon"})(nothing),
            "n: state_ttl is 'soon': write a duration",
        ),
        (
            lambda rows, _: rows.process(
                by="k", state="n long", output="n long", maps={"m": MapState("v", "m long", "soon")}
            )(nothing),
            "maps['m']: state_ttl is 'soon': write a duration",
        ),
        (
            lambda rows, other: rows.process(by="k", state="n long", output="n long", lookup=other)(nothing),
            "looks up other, which is no lookup table: use .broadcast(by=…, order_by=…)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(build: Declare, problem: str) -> None:
    assert problem in one_problem(declared(build))


def test_a_window_of_rows_is_no_window_of_time() -> None:
    with pytest.raises(Invalid, match="a window of 3 rows also has emit, late"):
        declared(lambda rows, _: rows.window(count=3, by="k", emit="update", late="side", n="count(*)"))
    with pytest.raises(Invalid, match="a window of time also has state_ttl='1 day'"):
        declared(lambda rows, _: rows.window(tumbling="1 h", by="k", state_ttl="1 day", n="count(*)"))


def test_what_goes_with_its_window_does_not_expire() -> None:
    with pytest.raises(Invalid, match="top_n has tumbling='1 h' and state_ttl='1 day'"):
        declared(lambda rows, _: rows.top_n(2, tumbling="1 h", by="k", order_by="v", state_ttl="1 day"))
    with pytest.raises(Invalid, match="top_n has event_time='at', and no windows"):
        declared(lambda rows, _: rows.top_n(2, by="k", order_by="v", event_time="at"))


def test_a_union_of_one_stream_is_refused() -> None:
    with pytest.raises(Invalid, match="a union of 'rows' with nothing"):
        declared(lambda rows, _: rows.union())


@pytest.mark.parametrize(
    ("build", "kept"),
    [
        (lambda rows, _: rows.over(by="k", n="count(*)", uid="it"), "the last rows of each k"),
        (lambda rows, _: rows.over(n="count(*)", uid="it"), None),
        (lambda rows, _: rows.over(by="k", n="count(*)", state_ttl="1 day", uid="it"), None),
        (lambda rows, _: rows.window(count=3, by="k", n="count(*)", uid="it"), "a window of each k that is not full"),
        (lambda rows, _: rows.window(tumbling="1 h", by="k", n="count(*)", uid="it"), None),
        (lambda rows, _: rows.deduplicate(by="k", uid="it"), "each k"),
        (lambda rows, _: rows.aggregate(by="k", n="count(*)", uid="it"), "a row for each k"),
        (lambda rows, _: rows.latest(by="k", order_by="at", uid="it"), "a row for each k"),
        (lambda rows, _: rows.top_n(3, by="k", order_by="at", uid="it"), "the first rows of each k"),
        (lambda rows, other: rows.join(other, on="k", uid="it"), "all rows of both sides"),
        (lambda rows, other: rows.join(other, on="k", as_of=True, prefix="o", uid="it"), "a version for each k"),
        (lambda rows, other: rows.join(other, on="k", within="1 h", event_time=("at", "then"), uid="it"), None),
        (lambda rows, other: looked_up(other, rows.broadcast(by="k", order_by="at", uid="it")), "a row for each k"),
        (
            lambda rows, other: looked_up(other, rows.broadcast(by="k", order_by="at", state_ttl="1 day", uid="it")),
            None,
        ),
        (
            lambda rows, _: rows.process(by="k", state="n long", output="n long", uid="it")(nothing),
            "the state of each k that its function does not clear",
        ),
    ],
)
def test_what_is_kept_permanently_is_named(build: Declare, kept: str | None) -> None:
    graph = declared(build, DeltaUpsert("made", keys=["k"])).graph()
    found = [line for line in growing(graph) if "'it'" in line]
    assert found == [] if kept is None else f" permanently keeps {kept}: " in found[0]


def with_entries(rows: Any, **more: Any) -> Any:
    maps, lists = {"bought": MapState("v", "n long")}, {"seen": ListState("v long")}
    return rows.process(
        by="k", state="n long, m long", output="n long", maps=maps, lists=lists, uid="it", **more
    )(nothing)  # fmt: skip


def chain(rows: Any, _: Any) -> Any:
    first = rows.aggregate(by=["k", "v"], n="count(*)", uid="it")
    return first.aggregate(by="k", keys="count(*)", uid="second")


def over_what_came_late(rows: Any, _: Any) -> Any:
    hours = rows.window(tumbling="1 h", by="k", emit="update", late="side", n="count(*)", uid="hours")
    hours.sink("hours", DeltaUpsert("hours", keys=["k", "window_start"]))
    return hours["late"].aggregate(by="k", n="count(*)", uid="it")


def compared(rows: Any, _: Any) -> Any:
    rows.gate(Unseen("k", against="it"), name="new").sink("new", DeltaAppend("new"))
    return rows.deduplicate(by="k", uid="it")


ENTRIES = 'bought=MapState(…, state_ttl="30 days") and seen=ListState(…, state_ttl="30 days")'
WITH_TTL = 'with state_ttl="30 days", what has not changed for that long is dropped'


@pytest.mark.parametrize(
    ("build", "advice"),
    [
        (lambda rows, _: rows.aggregate(by="k", n="count(*)", uid="it"), WITH_TTL),
        (over_what_came_late, WITH_TTL),
        (lambda rows, _: rows.aggregate(by="k", n="count(distinct v)", uid="it"), WITH_TTL),
        (lambda rows, _: with_entries(rows), f'with state_ttl="30 days" and {ENTRIES}, what'),
        (lambda rows, _: with_entries(rows, state_ttl={"n": "1 day", "m": "1 day"}), f"with {ENTRIES}, what"),
        (
            lambda rows, _: with_entries(rows, state_ttl={"n": "1 day"}),
            f'with state_ttl={{…, "m": "30 days"}} (under a new uid if it has state already) and {ENTRIES}, what',
        ),
        (chain, "it cannot have state_ttl, because aggregate 'second' retracts its rows; use windows"),
        (
            lambda rows, _: rows.aggregate(by=["k", "v"], n="count(*)").aggregate(by="k", keys="count(*)", uid="it"),
            "it cannot have state_ttl, because its input replaces rows; use windows",
        ),
        (compared, "because gate 'new' compares with all of it"),
    ],
)
def test_it_is_said_what_would_forget_it_or_that_nothing_can(build: Declare, advice: str) -> None:
    graph = declared(build, DeltaUpsert("made", keys=["k"])).graph()
    (told,) = [line for line in growing(graph) if "'it' permanently" in line]
    assert advice in told


@pytest.mark.parametrize("by", ["k", []])
def test_it_is_said_that_distinct_values_stay_as_long_as_their_key(by: Any) -> None:
    def build(rows: Any, _: Any) -> Any:
        return rows.aggregate(by=by, n="count(distinct v)", m="count(*)", state_ttl="30 days", uid="it")

    assert growing(declared(build, DeltaUpsert("made", keys=["k", "m"])).graph()) == [
        "aggregate 'it' keeps each value that n counts until its key is forgotten: if one always gets rows with new "
        "values, use approx_count_distinct"
    ]


def test_of_totals_that_expire_nothing_grows() -> None:
    def build(rows: Any, _: Any) -> Any:
        return rows.aggregate(by="k", m="count(*)", state_ttl="1 day")

    bounded = declared(build, DeltaUpsert("made", keys=["k"]))
    assert growing(bounded.graph()) == []


def test_more_results_may_look_as_far_back_as_rows_are_kept() -> None:
    def meaning(**functions: str) -> Any:
        return OverRows(["k"], functions).meaning(over_updates=False)

    assert meaning(before="lag(v)")["rows that are kept"] == meaning(n="count(*)", other="lag(v)")["rows that are kept"]
    assert meaning(before="lag(v, 2)")["rows that are kept"] == 2


def test_the_streams_of_what_waits_belong_to_what_its_state_means() -> None:
    def meaning(**more: Any) -> Any:
        def build(rows: Any, other: Any) -> Any:
            taken = {"other": other, "event_time": ("at", "then")} if more.pop("two", False) else {}
            return rows.process(by="k", state="n long", output="n long", uid="it", **taken, **more)(nothing)

        return meaning_of(declared(build).graph())["it.meaning"]

    assert meaning() | {"its rows": 0, "what it takes back": 0} == meaning(two=True) | {
        "its rows": 0, "what it takes back": 0
    }  # fmt: skip
    one, two = meaning(in_order=True), meaning(in_order=True, two=True)
    assert one["in order of event time"] is True
    assert two["in order of event time"] == "of two streams"
    assert (one["event_time"], two["event_time"]) == (["at"], ["at", "then"])


def test_every_few_checkpoints_replace_rows_if_their_input_does() -> None:
    totals = declared(
        lambda rows, _: rows.aggregate(by="k", s="sum(v)").every(3, uid="it"), DeltaUpsert("it", keys=["k"])
    )
    assert "it" in totals.graph().updating
    assert "it" not in declared(lambda rows, _: rows.every(3, uid="it")).graph().updating


def test_what_finishes_by_itself_reads_what_has_an_end() -> None:
    pipeline = Pipeline("history", finishes=True)
    old = pipeline.source("old", Files("old/*.json", schema="k string"), bounded=True)
    new = pipeline.source("new", Files("new/*.json", schema="k string"))
    old.union(new).sink("made", DeltaAppend("made"))
    assert "it finishes once its sources have been read to their end, and source 'new' may get more" in one_problem(
        pipeline
    )
