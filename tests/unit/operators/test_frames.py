"""Sums and extremes of the rows up to each row, against plain Python."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import Invalid
from tidegate.operators.kernels.frames import Frames

FLOATS = st.sampled_from([0.1, 0.2, 0.3, -0.0, 1e16, -1e16, float("inf"), float("nan")])
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-(1 << 60), 1 << 60)),
    "double": (pa.float64(), FLOATS),
    "decimal": (pa.decimal128(38, 2), st.integers(-(10**36), 10**36).map(lambda n: Decimal(n).scaleb(-2))),
    "small decimal": (pa.decimal128(20, 2), st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-2))),
    "text": (pa.string(), st.sampled_from(["", "a", "ä", "b"])),
    "boolean": (pa.bool_(), st.booleans()),
    "struct": (pa.struct([("a", pa.int64())]), st.sampled_from([{"a": None}, {"a": 1}, {"a": 2}])),
}
LENGTHS = st.lists(st.integers(1, 7), max_size=5)
"""How many rows each key has."""


def frames(lengths: list[int], rows: int | None) -> Frames:
    begins = np.repeat(np.cumsum([0, *lengths])[: len(lengths)], lengths).astype(np.int64)
    if rows is None:
        return Frames(begins, moving=False)
    return Frames(np.maximum(begins, np.arange(len(begins)) - rows + 1), moving=True)


def in_spark_order(value: Any) -> Any:
    if isinstance(value, dict):
        return (value["a"] is not None, value["a"] or 0)
    return (value != value, 0 if value != value else value)


def added_up(values: list[Any]) -> Any:
    with localcontext(prec=60):
        total = values[0] * 0 if not isinstance(values[0], float) else 0.0
        for value in values:
            total += value
        return total


def told(values: list[Any]) -> list[Any]:
    """NaN equals itself, and -0.0 is not 0.0."""
    return [repr(value) if isinstance(value, float) else value for value in values]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(VALUES)), LENGTHS, st.one_of(st.none(), st.integers(1, 5)), st.data())
def test_each_row_gets_what_the_rows_of_its_frame_come_to(
    name: str, lengths: list[int], rows: int | None, data: Any
) -> None:
    kind, values = VALUES[name]
    count = sum(lengths)
    column = data.draw(st.lists(st.one_of(st.none(), values), min_size=count, max_size=count))
    of = frames(lengths, rows)
    for op in ("min", "max", *(("sum",) if pa.types.is_primitive(kind) and name != "boolean" else ())):
        wanted = []
        for place, first in enumerate(of.first):
            known = [value for value in column[first : place + 1] if value is not None]
            if not known:
                wanted.append(None)
            elif op == "sum":
                wanted.append(added_up(known))
            else:
                wanted.append((min if op == "min" else max)(known, key=in_spark_order))
        found = of.aggregated(op, pa.concat_arrays([pa.array([None], kind), pa.array(column, kind)]).slice(1))
        assert found.type == kind
        assert told(found.to_pylist()) == told(wanted)


@pytest.mark.parametrize("lengths", [[1] * 50, [1, 40, 1], [3, 1, 2] * 9])
def test_floats_are_added_in_order_however_many_keys_have_how_many_rows(lengths: list[int]) -> None:
    column = [0.1 * (place % 7) for place in range(sum(lengths))]
    wanted, start = [], 0
    for length in lengths:
        total = 0.0
        for value in column[start : start + length]:
            total += value
            wanted.append(total)
        start += length
    assert frames(lengths, None).aggregated("sum", pa.array(column)).to_pylist() == wanted


@pytest.mark.parametrize("rows", [None, 2])
@pytest.mark.parametrize(
    ("kind", "most"),
    [(pa.int64(), (1 << 63) - 1), (pa.decimal128(38, 0), 10**38 - 1), (pa.decimal128(10, 0), 10**10 - 1)],
)
def test_a_sum_that_does_not_fit_is_refused_and_one_that_just_fits_is_right(
    kind: pa.DataType, most: int, rows: int | None
) -> None:
    def column(*values: int) -> pa.Array:
        return pa.array(values if pa.types.is_integer(kind) else [*map(Decimal, values)], kind)

    fitting = frames([2, 1, 1], rows).aggregated("sum", column(1, most - 1, most, -most))
    assert fitting.to_pylist() == [1, most, most, -most]
    for values in ([most, 1], [-most, -most]):
        with pytest.raises(Invalid, match="overflow: a sum is more than its type"):
            frames([2], rows).aggregated("sum", column(*values))
