"""Numbers stand for keys: they sort, tell apart and find rows as the keys themselves would."""

from __future__ import annotations

import numpy as np
import pytest

from tidegate.state.arrow.keys_as_numbers import distinct_codes, order, order_by, positions_in

LEAST, GREATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize(
    ("low", "high"),
    [
        pytest.param(0, 5, id="few values, many ties"),
        pytest.param(-(10**6), 10**6, id="numbers that fit beside their position"),
        pytest.param(-(10**15), 10**15, id="numbers that are too wide for that"),
        pytest.param(LEAST, GREATEST, id="all numbers"),
        pytest.param(GREATEST - 3, GREATEST, id="the greatest numbers"),
    ],
)
def test_numbers_of_any_width_are_sorted_and_ties_keep_their_order(low, high):
    dice = np.random.default_rng(7)
    for count in (0, 1, 2, 1000):
        numbers = dice.integers(low, high, count, endpoint=True)
        numbers = np.concatenate([numbers, numbers[: count // 2]])
        assert list(order(numbers)) == list(np.argsort(numbers, kind="stable"))


@pytest.mark.parametrize("width", [3, 10**4, 10**18])
def test_rows_are_sorted_by_several_columns_whether_or_not_these_fit_into_one_number(width):
    dice = np.random.default_rng(11)
    for count in (0, 1, 500):
        columns = [dice.integers(-width, width, count), dice.integers(0, 3, count), dice.integers(-width, width, count)]
        assert list(order_by(*columns)) == list(np.lexsort(columns[::-1]))


def test_each_distinct_code_is_found_with_its_first_row():
    dice = np.random.default_rng(13)
    for count in (0, 1, 400):
        codes = dice.integers(0, 90, count)
        _, first, number = np.unique(codes, return_index=True, return_inverse=True)
        found_first, found_number = distinct_codes(codes)
        assert list(found_first) == list(first)
        assert list(found_number) == list(number)


def test_a_code_is_found_at_the_first_row_that_has_it_or_nowhere():
    codes = np.array([4, 2, 4, 9])
    assert list(positions_in(codes, np.array([2, 4, 5, 12]))) == [1, 0, -1, -1]
    assert list(positions_in(codes, codes[:0])) == []
    assert list(positions_in(codes[:0], np.array([0, 3]))) == [-1, -1]
