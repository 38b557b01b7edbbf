"""Rows that are the same are found by numbers, whatever their types, and however they are cut into pieces."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.gates.judging.repeated import (
    find_repeated,
    first_positions,
    positions_among,
    row_numbers,
    scramble,
)
from tidegate.state.arrow.keys_as_numbers import codes_of

KINDS: dict[str, tuple[Any, Any]] = {
    "text": (pa.string(), lambda n: "ä" * abs(5 * n) + "x" * (n < 0)),
    "long text": (pa.string(), lambda n: "z" * 300 + str(n)),
    "bytes": (pa.binary(), lambda n: bytes([n + 3]) * abs(n)),
    "decimal": (pa.decimal128(38, 2), lambda n: Decimal(n * 10**30)),
    "boolean": (pa.bool_(), lambda n: n > 0),
    "byte": (pa.int8(), lambda n: n),
    "long": (pa.int64(), lambda n: n * 2**61),
    "date": (pa.date32(), lambda n: n),
    "time": (pa.timestamp("us", "UTC"), lambda n: n * 10**15),
}


def column(dice: random.Random, kind: str, count: int) -> pa.ChunkedArray:
    """In two pieces, of which one begins somewhere in an array."""
    of, value = KINDS[kind]
    values = [None if dice.random() < 0.2 else value(dice.randint(-3, 3)) for _ in range(count)]
    cut = dice.randint(0, count)
    return pa.chunked_array([pa.array(values[:cut], of), pa.array([None, value(1), *values[cut:]], of).slice(2)])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_equal_values_have_equal_numbers_and_are_in_one_group(kind):
    dice = random.Random(kind)
    for _ in range(30):
        count = dice.randint(0, 40)
        kinds = [kind, *dice.sample(sorted(KINDS), dice.randint(0, 2))]
        rows = pa.table({f"c{at}": column(dice, each, count) for at, each in enumerate(kinds)})
        values = list(zip(*(each.to_pylist() for each in rows.columns), strict=True))
        numbers, (group,) = row_numbers(rows, rows.column_names), codes_of([rows], rows.column_names)
        times = Counter(values)
        assert len(numbers) == count
        for value in times:
            at = [place for place, each in enumerate(values) if each == value]
            assert len(set(numbers[at])) == len(set(group[at])) == 1
        assert len(set(group)) == len(times), "different values are in different groups"
        if "long text" not in kinds:
            assert len(set(numbers)) == len(times), "and have different numbers"


def test_what_is_there_twice_is_found_wherever_it_is():
    dice = np.random.default_rng(7)
    numbers = dice.integers(0, 2**64, 10_000, np.uint64)
    parts = [numbers[:4_000], numbers[4_000:], numbers[::100], np.zeros(0, np.uint64)]
    found = find_repeated(parts)
    assert sorted(found) == sorted(numbers[::100])
    assert list(positions_among(parts[0], found)) == list(range(0, 4_000, 100))
    assert list(positions_among(parts[3], found)) == []
    assert list(find_repeated([])) == list(find_repeated([numbers])) == []
    assert list(first_positions(np.array([5, 3, 5, 3, 9]))) == [1, 0, 4]


def test_different_numbers_stay_different_when_they_are_mixed():
    near = np.concatenate([np.arange(100_000, dtype=np.uint64), np.arange(100_000, dtype=np.uint64) << np.uint64(40)])
    assert len(np.unique(scramble(near))) == len(np.unique(near))
