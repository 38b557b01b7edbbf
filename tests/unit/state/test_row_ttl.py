"""Rows that each say until when they live."""

from __future__ import annotations

import numpy as np
import pytest

from tidegate.state.record import RowTtl

MAX = (1 << 63) - 1


@pytest.mark.parametrize(
    ("lasts", "at", "until"),
    [(10, 5, 16), (0, 5, 6), (-3, 5, 3), (10, MAX, None), (10, MAX - 11, MAX), (-3, -MAX, None), (-3, MAX, MAX - 2)],
)
def test_a_row_lives_until_the_watermark_is_later_than_its_time_and_what_it_lasts(
    lasts: int, at: int, until: int | None
) -> None:
    """A time that would be too large or too small to be told: it never expires."""
    assert RowTtl("_at", lasts, None, None).until_of(np.array([at])).to_pylist() == [until]


def test_what_has_expired_is_judged_by_the_watermark_of_the_base() -> None:
    ttl = RowTtl("_at", 10, before=16, after=20)
    assert (ttl.limit, ttl.limit_after) == (16, 20)
    assert ttl.until_of(np.array([5]))[0].as_py() <= ttl.limit, "the watermark has gone past 15: it meets nothing more"
    assert ttl.until_of(np.array([6]))[0].as_py() > ttl.limit, "a row at 16 is not late, and may still meet it"
