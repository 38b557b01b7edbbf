from __future__ import annotations

import pytest

from tidegate.errors import Invalid
from tidegate.sources import Generator, SourceContext
from tidegate.testing.source_contract import drain


def test_ranges_follow_one_another_up_to_the_total(context: SourceContext) -> None:
    plans, end = drain(Generator(rows=4, total=10), context)
    assert [(plan.splits["from"], plan.splits["to"]) for plan in plans] == [(0, 4), (4, 8), (8, 10)]
    assert [plan.has_more for plan in plans] == [True, True, False]
    assert end == {"offset": 10}


def test_at_its_end_nothing_is_new(context: SourceContext) -> None:
    planned = Generator(rows=4, total=4).plan({"offset": 4}, context)
    assert planned.is_empty
    assert planned.end == {"offset": 4}
    assert not planned.has_more


def test_a_total_lowered_below_the_position_ends_the_source(context: SourceContext) -> None:
    assert Generator(rows=4, total=4).plan({"offset": 8}, context).is_empty


def test_of_no_rows_at_all_the_position_stays_none(context: SourceContext) -> None:
    planned = Generator(total=0).plan(None, context)
    assert planned.is_empty
    assert planned.end is None


def test_without_total_it_never_ends(context: SourceContext) -> None:
    planned = Generator(rows=7).plan({"offset": 70}, context)
    assert planned.end == {"offset": 77}
    assert not planned.has_more, "rows are made as they are asked for: none waits"


@pytest.mark.parametrize("position", [{"offset": -1}, {"offset": "3"}, {"offset": True}, {"version": 3}, {}])
def test_a_foreign_position_is_refused(context: SourceContext, position: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        Generator().plan(position, context)
    assert caught.value.reason == "FOREIGN_POSITION"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"rows": None}, "rows is None"),
        ({"rows": 1.5}, "rows is 1.5"),
        ({"rows": True}, "rows is True"),
        ({"total": -1}, "total is -1"),
        ({"partitions": 0}, "partitions is 0"),
        ({"columns": {}}, "at least one column"),
        ({"columns": "id"}, "at least one column"),
        ({"columns": {"": "id"}}, "must be a string, and not empty"),
        ({"columns": {"a": ""}}, "is not an SQL expression"),
        ({"columns": {"a": 3}}, "is not an SQL expression"),
        ({"columns": {"a": "id", "A": "id"}}, "occurs twice"),
        ({"columns": {"a": "rand()"}}, "uses rand()"),
        ({"columns": {"a": "id + RANDN(3)"}}, "uses RANDN()"),
        ({"columns": {"a": "now()"}}, "uses now()"),
        ({"columns": {"a": "current_timestamp"}}, "uses current_timestamp()"),
        ({"columns": {"a": "uuid()"}}, "uses uuid()"),
    ],
)
def test_bad_declarations_are_told(arguments: dict[str, object], said: str) -> None:
    problems = Generator(**arguments).problems()  # type: ignore[arg-type]
    assert len(problems) == 1
    assert said in problems[0]


def test_all_problems_are_told_at_once() -> None:
    assert len(Generator(rows=0, total=-1, partitions=-2, columns={"a": "rand()", "b": ""}).problems()) == 5


@pytest.mark.parametrize(
    "expression", ["'now()'", "concat('rand', id)", "`uuid`", "unix_timestamp('2026-01-01')", "id % 3"]
)
def test_what_only_looks_unrepeatable_is_allowed(expression: str) -> None:
    assert Generator(columns={"a": expression}).problems() == []
