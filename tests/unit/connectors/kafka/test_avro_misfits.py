"""What becomes of values of Avro that no column is declared for."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.connectors.kafka.avro.misfits import UnfitField, fit_record, json_of
from tidegate.connectors.kafka.avro.values import fitting
from tidegate.connectors.schema.drift import SchemaPolicy

ID = uuid.UUID("550e8400-e29b-41d4-a716-446655440000")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([], "string"),
        ([None], "string"),
        ([1, None, 2], "array<bigint>"),
        (["a", ID], "array<string>"),
        ([1, "a"], "string"),
        ([1, 2.5], "string"),
        ([{"a": 1}], "string"),
        ([[1]], "string"),
        ([datetime.time(1)], "string"),
        (Decimal("1.50"), "decimal(38,2)"),
        (Decimal("1E-38"), "decimal(38,38)"),
        (Decimal("1E-40"), "string"),
    ],
)
def test_a_new_column_has_a_type_that_holds_its_values(value: Any, kind: str) -> None:
    assert UnfitField("x", "new", value).type == kind
    if kind.startswith("array"):
        fitting(value, pa.list_(pa.string() if "string" in kind else pa.int64()))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ID, str(ID)),
        (datetime.time(12, 30), "12:30:00"),
        (b"\0\1", "AAE="),
        (float("inf"), "Infinity"),
        ("plain", "plain"),
        (5, "5"),
        ([1, "a"], '[1,"a"]'),
    ],
)
def test_a_new_column_of_text_holds_texts_without_quotes(value: Any, text: str) -> None:
    row, misfits = fit_record({"x": value}, {"x": pa.string()}, SchemaPolicy(), as_text={"x"})
    assert (row, misfits) == ({"x": text}, [])


def test_the_rescue_column_names_floats_that_json_lacks() -> None:
    inf = float("inf")
    assert json_of({"a": [float("nan"), 1.5], "b": {"c": inf, "d": -inf}}) == (
        '{"a":["NaN",1.5],"b":{"c":"Infinity","d":"-Infinity"}}'
    )


def test_a_date_is_midnight_in_a_column_of_times_without_a_zone() -> None:
    day = datetime.date(2026, 2, 28)
    midnight = datetime.datetime(2026, 2, 28)  # noqa: DTZ001
    assert fitting(day, pa.timestamp("us")) == midnight
    assert fitting(midnight, pa.timestamp("us")) == midnight
    with pytest.raises(TypeError):
        fitting(day, pa.timestamp("us", tz="UTC"))
