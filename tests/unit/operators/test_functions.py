"""What can be kept as a running aggregate, and what is refused in words, before anything runs."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from tidegate.operators import Aggregate, Window
from tidegate.operators.calls import parse_call
from tidegate.operators.functions import Function, parse
from tidegate.operators.kernels.results import Result, Results
from tidegate.operators.window.counted import CountWindow


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("sum(amount)", "sum", ["amount"]),
        ("  Count ( * ) ", "count", ["*"]),
        ("count(a, coalesce(b, ','))", "count", ["a", "coalesce(b, ',')"]),
        ("max(m['a)']['b'])", "max", ["m['a)']['b']"]),
        ("min(`odd, (name`)", "min", ["`odd, (name`"]),
        ("sum('it\\'s, (')", "sum", ["'it\\'s, ('"]),
    ],
)
def test_a_call_is_taken_apart_as_sql_would(text: str, name: str, arguments: list[str]) -> None:
    call = parse_call(text)
    assert not isinstance(call, str), call
    assert (call.name, list(call.arguments)) == (name, arguments)


def test_a_filter_becomes_a_condition_on_the_arguments() -> None:
    found = parse("n", "min_by(a, b) FILTER (WHERE c > (1))")
    assert isinstance(found, Function)
    assert found.call.arguments == ("CASE WHEN (c > (1)) THEN a END", "CASE WHEN (c > (1)) THEN b END")
    bounded = parse("n", "collect_list(a, 5) filter (where c)")
    assert isinstance(bounded, Function)
    assert bounded.call.arguments == ("CASE WHEN (c) THEN a END", "5"), "how many is no value of a row"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (7, "write a call as text"),
        ("amount", "is no aggregate"),
        ("sum(amount", "not closed"),
        ("sum('amount)", "not closed"),
        ("sum(a) / count(*)", "continues with '/ count(*)'"),
        ("sum(a) filter (where )", "without a condition"),
        ("sum(a) filter (where b) + 1", "continues with '+ 1'"),
        ("sum(a, b)", "takes 1 argument, here are 2"),
        ("sum()", "takes 1 argument, here are 0"),
        ("sum(*)", "takes 1 argument"),
        ("sum(a,)", "empty argument"),
        ("count()", "has no argument"),
        ("count(distinct *)", "has no argument"),
        ("sum(distinct a)", "count(distinct …) can"),
        ("median(a)", "median cannot be kept; these can: sum, count"),
        ("first(a)", "first(x, at)"),
        ("last(a, true)", "rows have no order of their own"),
        ("collect_list(a)", "collect_list(a, 100)"),
        ("collect_set(a, b)", "at most"),
        ("approx_count_distinct(a, 0.1)", "takes 1 argument, here are 2"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_words(text: object, words: str) -> None:
    found = parse("x", text)
    assert isinstance(found, str)
    assert found.startswith(f"x={text!r}")
    assert words in found


def test_names_that_would_clash_in_the_state_are_refused() -> None:
    twice = Aggregate(["k"], {"a": "avg(v)", "a_sum": "sum(v)"}).problems()
    assert twice == ["'a_sum' needs a column 'a_sum', which is of 'a': name it differently"]
    assert "which is a key" in Aggregate(["k"], {"K": "sum(v)"}).problems()[0]
    assert "tidegate's own" in Aggregate(["k"], {"_rows": "sum(v)"}).problems()[0]


def states_of(functions: dict[str, str]) -> tuple[str, ...]:
    return Aggregate(["k"], functions).spec().state_names


def test_counts_of_one_argument_keep_its_values_together_whatever_their_conditions() -> None:
    many = {"all": "count(distinct v)", "dear": "count(distinct v) filter (where p > 9)", "ws": "count(distinct w)"}
    assert len(states_of(many)) == 3, "the totals, the values of v, and those of w"


def test_a_filtered_count_that_an_earlier_version_kept_apart_is_another_one() -> None:
    """Its values are not in the state that is looked at now, so they would be counted again."""
    dear = "count(distinct v) filter (where p > 9)"
    before = {"all": "count(distinct v)", "dear": "count(distinct CASE WHEN (p > 9) THEN v END)"}
    now = Aggregate(["k"], {"all": "count(distinct v)", "dear": dear}).meaning(over_updates=False)
    assert now["all"] == before["all"]
    assert now["dear"] != before["dear"]
    total, case = (states_of({"d": text})[1] for text in ("count(distinct v)", before["dear"]))
    assert states_of(before) == ("", *sorted([total, case])), "written so, it has the state that it had"
    in_window = Window(["k"], {"dear": dear}, tumbling="1 hour").meaning(over_updates=False)
    assert in_window["dear"] == before["dear"], "a window keeps them with its own row, as it did"


@pytest.mark.parametrize(
    ("by", "keys", "never"),
    [
        (["k"], ["k", "window_start"], True),
        (["k"], ["window_end", "k"], True),
        (["k"], ["k", "window_start", "window_end"], True),
        ([], ["window_start"], True),
        (["k"], ["k"], False),
        (["k"], ["window_start"], False),
        (["k"], ["k", "window_start", "n"], False),
        (["k", "l"], ["k", "k", "window_start"], False),
    ],
)
def test_a_fixed_window_that_changes_keeps_its_key_and_a_session_may_begin_elsewhere(
    by: list[str], keys: list[str], never: bool
) -> None:
    assert (
        Window(by, {"n": "count(*)"}, tumbling="1 h").spec().changelog.never_drops_keys(keys, over_updates=False)
        == never
    )
    assert not Window(by, {"n": "count(*)"}, session="1 h").spec().changelog.never_drops_keys(keys, over_updates=False)


@pytest.mark.parametrize(("mean", "count"), [("mean", "mean_count"), ("Mean", "MEAN_count")])
def test_two_results_that_need_a_column_of_one_name_are_refused_everywhere(mean: str, count: str) -> None:
    """They would be computed of one another."""
    results = {mean: "avg(v)", count: "count(*)"}
    for operator in (Aggregate(["k"], results), Window(["k"], results, tumbling="1 h"), CountWindow(["k"], results, 9)):
        (problem,) = (text for text in operator.problems() if "name it differently" in text)
        assert problem == f"{count!r} needs a column {count!r}, which is of {mean!r}: name it differently"


SUM, COUNT = pa.array([None, 6.0, 0.0, math.inf, -2.0, None]), pa.array([0, 4, 0, 2, None, None])


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("same", [None, 6.0, 0.0, math.inf, -2.0, None]),
        ("or zero", [0.0, 6.0, 0.0, math.inf, -2.0, 0.0]),
        ("unless none", [None, 6.0, None, math.inf, -2.0, None]),
        ("mean", [None, 1.5, None, math.inf, None, None]),
    ],
)
def test_workers_compute_results_as_sql_does(how: str, wanted: list[float | None]) -> None:
    rows = pa.table({"k": range(6), "x_sum": SUM, "x_n": COUNT})
    of = ["x_sum"] if how in ("same", "or zero") else ["x_sum", "x_n"]
    made = Results(["k"], {"x": Result(how, of)})(rows)
    assert made.column_names == ["k", "x"]
    assert made["x"].to_pylist() == wanted


def test_totals_over_all_rows_need_no_key_and_keep_one_row() -> None:
    totals = Aggregate([], {"n": "count(*)", "d": "count(distinct v)"})
    assert not totals.problems()
    assert totals.spec().output.columns == ["n", "d"]
    assert totals.spec().growth.keeps == "each value that d counts"
    assert Aggregate([], {"n": "count(*)"}).spec().growth.keeps is None
    assert not totals.spec().changelog.never_drops_keys([], over_updates=False), "the row before must be taken back"
    assert "needs a column '_all', which is tidegate's own" in Aggregate([], {"_all": "sum(v)"}).problems()[0]


def test_over_an_input_that_replaces_rows_only_what_can_take_them_back_is_kept() -> None:
    assert (
        not Aggregate(
            ["k"], {"n": "count(*)", "s": "sum(v)", "m": "avg(v)", "d": "count(distinct v)", "b": "bool_or(v)"}
        )
        .spec()
        .retraction_problems
    )
    (problem,) = Aggregate(["k"], {"least": "min(v)"}).spec().retraction_problems
    assert "min cannot retract a row" in problem
    assert "sum" in problem
