"""The types of values in sketches, which an operator remembers beside its state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T

from tidegate.errors import Invalid
from tidegate.operators.functions import parse_functions
from tidegate.operators.inputs import record_sketched_types

FUNCTIONS = parse_functions({"kinds": "approx_count_distinct(amount)", "spent": "sum(amount)"})


def kept(kind: str, memory: dict[str, Any]) -> dict[str, Any]:
    """What an operator remembers over a column of this type."""
    schema = T.StructType().add("amount", kind)
    rows: Any = SimpleNamespace(
        schema=schema, sparkSession=SimpleNamespace(), selectExpr=lambda *_: SimpleNamespace(schema=schema)
    )
    context: Any = SimpleNamespace(uid="totals", memory=memory, remember={})
    record_sketched_types(FUNCTIONS, rows, context)
    return dict(context.remember)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("integer", "long"),
        ("integer", "double"),
        ("float", "double"),
        ("decimal(6,2)", "decimal(8,4)"),
        ("date", "string"),
    ],
)
def test_values_that_would_count_again_are_refused(before: str, now: str) -> None:
    with pytest.raises(Invalid, match=r"\'kinds\' counts values of the type") as refused:
        kept(now, kept(before, {}))
    assert refused.value.reason == "STATE_CHANGED"


@pytest.mark.parametrize(
    ("before", "now"),
    [("integer", "integer"), ("byte", "integer"), ("integer", "short"), ("decimal(6,2)", "decimal(9,2)")],
)
def test_values_with_the_same_hashes_are_counted_on(before: str, now: str) -> None:
    assert kept(now, kept(before, {})) == kept(before, {})


def test_a_state_of_an_earlier_version_is_continued() -> None:
    assert kept("integer", {"other": 1}) == {"sketched_types": {"kinds": "int"}}
