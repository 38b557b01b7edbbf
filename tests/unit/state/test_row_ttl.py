"""When rows of a state expire: after their last change, or when each says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from tidegate.delta import StagedFile
from tidegate.state import StateFile
from tidegate.state.arrow.merging import living_mask
from tidegate.state.columns import DELETED, TOUCHED
from tidegate.state.compaction import expired
from tidegate.state.record import RowTtl, Ttl
from tidegate.state.versions import _lives

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


# -- so long after the last change ----------------------------------------------------------------------

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LIMIT = round((NOW - timedelta(days=1)).timestamp() * 1_000_000)
"""A row that was changed then is a day old now."""


def state_file(touched: int | None) -> StateFile:
    """Return a file whose rows were all changed by then."""
    staged = StagedFile(path="a.parquet", size=1, rows=1)
    return StateFile(file=staged, checkpoint=1, oldest=1, groups=(0, 63), touched=touched)


def test_a_row_has_expired_once_it_is_as_old_as_its_lifetime() -> None:
    ttl = Ttl(timedelta(days=1), NOW, NOW + timedelta(hours=1))
    assert ttl.limit == LIMIT
    assert ttl.touched == LIMIT + 25 * 3_600_000_000
    assert ttl.limit_after == LIMIT + 3_600_000_000


def test_a_row_that_is_a_microsecond_younger_lives_wherever_that_is_asked() -> None:
    """Workers, Spark, and whole files that are dropped without being read: all draw the same line."""
    times = pa.array([LIMIT - 1, LIMIT, LIMIT + 1, None], pa.int64())
    rows = pa.table({DELETED: pa.array([False] * 4), TOUCHED: times})
    assert living_mask(rows, LIMIT).tolist() == [False, False, True, True], "without a time it never expires"
    assert _lives([DELETED, TOUCHED], LIMIT).endswith(f"{TOUCHED} > {LIMIT})")
    files = {touched: state_file(touched) for touched in times.to_pylist()}
    dropped = {touched for touched, each in files.items() if expired([each], LIMIT)}
    assert dropped == {LIMIT - 1, LIMIT}
