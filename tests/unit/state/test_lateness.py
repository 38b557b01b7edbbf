"""The rule for "late" and "closed", and its forms in Python and Arrow. SQL has tests/spark/test_lateness.py."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tidegate.delta import StagedFile
from tidegate.state.lateness import (
    ExpiredRows,
    Lateness,
    StartRange,
    WindowLimits,
    closing_starts,
    ended,
    ended_mask,
    late_mask,
    late_rows_mask,
    passed_mask,
    without_expired_files,
)
from tidegate.state.record import StateFile, StateTable

TIME = pa.timestamp("us", "UTC")
NUMBERS = range(-12, 13)
MARKS = [None, -7, 0, 3, 4, 10]


def last_moment_is_before(last: int, watermark: int | None) -> bool:
    """The rule, word by word."""
    return watermark is not None and last < watermark


@pytest.mark.parametrize("allowed", [0, 5])
@pytest.mark.parametrize("now", MARKS)
@pytest.mark.parametrize("before", MARKS)
def test_a_window_has_ended_when_its_last_moment_is_before_the_watermark(
    before: int | None, now: int | None, allowed: int
) -> None:
    for includes_end in (False, True):
        limits = WindowLimits.from_watermarks(before, now, allowed, includes_end=includes_end)
        for end in NUMBERS:
            last = end if includes_end else end - 1
            assert ended(end, limits.closed_before) == last_moment_is_before(last, before)
            assert ended(end, limits.closed) == last_moment_is_before(last, now)
            assert ended(end, limits.late) == last_moment_is_before(last + allowed, before)
            assert ended(end, limits.closed_for_rows) == last_moment_is_before(last + allowed, now)


@pytest.mark.parametrize("allowed", [0, 5])
@pytest.mark.parametrize("before", [mark for mark in MARKS if mark is not None])
def test_what_is_told_of_an_operator_from_outside_is_its_own_rule(before: int, allowed: int) -> None:
    times = np.array(NUMBERS)
    rows = Lateness().lost(times, before)
    assert rows.tolist() == [last_moment_is_before(time, before) for time in NUMBERS]
    for size, slide in ((4, 4), (6, 2)):
        last_ends = [time - time % slide + size for time in NUMBERS]
        limit = WindowLimits.from_watermarks(before, before, allowed).late
        assert Lateness(size, slide, allowed).lost(times, before).tolist() == [ended(end, limit) for end in last_ends]
    gap, limit = 3, WindowLimits.from_watermarks(before, before, allowed, includes_end=True).late
    sessions = Lateness(gap + 1, 0, allowed).lost(times, before)
    assert sessions.tolist() == [ended(time + gap, limit) for time in NUMBERS]


def test_nothing_has_ended_that_has_no_end_or_while_there_is_no_watermark() -> None:
    assert WindowLimits.from_watermarks(None, None, 5, includes_end=True) == WindowLimits(None, None, None, None)
    assert not ended(None, 4)
    assert not ended(4, None)
    assert not ended(None, None)


def extremes(r: random.Random) -> list[int]:
    """Microseconds at both ends of what a column can hold, at limits, and in between."""
    edges = [-(1 << 63), -(1 << 63) + 1, -1, 0, 1, (1 << 63) - 1]
    return [*edges, *NUMBERS, *(r.randint(-(1 << 62), 1 << 62) for _ in range(50))]


@pytest.mark.parametrize("limit", [None, -7, 0, 4, 1 << 60, -(1 << 60)])
def test_a_mask_of_ends_says_what_python_says(limit: int | None) -> None:
    ends = extremes(random.Random(str(limit)))
    column = pa.chunked_array([pa.array(ends[:9], TIME), pa.array(ends[9:], TIME)])
    assert ended_mask(column, limit).tolist() == [ended(end, limit) for end in ends]
    assert ended_mask(column.slice(0, 0), limit).tolist() == []


@pytest.mark.parametrize("size", [1, 10, 3_600_000_000])
@pytest.mark.parametrize("limit", [None, -7, 0, 4, 1 << 60, -(1 << 60)])
def test_a_mask_of_starts_says_what_python_says_of_their_ends(limit: int | None, size: int) -> None:
    starts = [None, *extremes(random.Random(f"{limit} {size}")), None]
    if limit is not None:
        starts += [limit - size - 1, limit - size, limit - size + 1]
    timed, late = late_mask(pa.array(starts, TIME), size, limit)
    assert timed.tolist() == [start is not None for start in starts]
    assert late.tolist() == [ended(None if start is None else start + size, limit) for start in starts]


@pytest.mark.parametrize("watermark", [*MARKS, 1 << 62, -(1 << 62)])
def test_masks_of_rows_say_of_each_time_what_python_says(watermark: int | None) -> None:
    times = extremes(random.Random(f"{watermark}"))
    passed = [last_moment_is_before(time, watermark) for time in times]
    column = pa.chunked_array([pa.array(times[:7]), pa.array(times[7:])])
    assert passed_mask(column, watermark).tolist() == passed
    timed, late = late_rows_mask(pa.chunked_array([*column.chunks, pa.array([None, 4], pa.int64())]), watermark)
    assert timed.tolist() == [True] * len(times) + [False, True], "what has no time is not late"
    assert late.tolist() == [*passed, False, last_moment_is_before(4, watermark)]


@pytest.mark.parametrize("now", MARKS)
@pytest.mark.parametrize("before", MARKS)
@pytest.mark.parametrize("size", [1, 4, 10])
def test_the_starts_of_what_closes_now_are_those_of_closed_windows_that_were_not(
    before: int | None, now: int | None, size: int
) -> None:
    if now is None or (before is not None and before > now):
        return  # a watermark never falls
    import numpy as np

    limits, starts = WindowLimits.from_watermarks(before, now), np.array(NUMBERS)
    closing = [
        ended(int(at) + size, limits.closed) and not ended(int(at) + size, limits.closed_before) for at in starts
    ]
    found = closing_starts(limits, size)
    assert (found.mask(starts).tolist() if found is not None else [False] * len(starts)) == closing
    if found is not None:
        for low in NUMBERS:
            for high in range(low, 13):
                between = found.mask(np.arange(low, high + 1)).any()
                assert found.misses(low, high) == (not between)
    for slide in (1, 2, 4, 5):
        aligned = [start for start in range(-60, 60) if start % slide == 0]
        some = any(ended(at + size, limits.closed) and not ended(at + size, limits.closed_before) for at in aligned)
        assert limits.closes_any(size, slide) == some


def test_windows_close_by_no_watermark_only_when_there_is_none() -> None:
    assert closing_starts(WindowLimits.from_watermarks(None, None), 10) is None
    assert not WindowLimits.from_watermarks(None, None).closes_any(10, 10)
    assert closing_starts(WindowLimits.from_watermarks(None, 30), 10) == StartRange(None, 20)


@pytest.mark.parametrize("last", [-1, 0, 1])
def test_a_file_is_let_go_by_the_same_rule(last: int) -> None:
    limit = 1_767_225_600_000_000
    text = f"2025-12-31T23:59:59.99999{9 + last}+00:00" if last < 1 else "2026-01-01T00:00:00.000000+00:00"
    end = limit - 1 + last
    stats = f'{{"numRecords": 1, "maxValues": {{"end": "{text}"}}, "nullCount": {{"end": 0}}}}'
    table = table_of(stats)
    for at in (limit - 2, limit - 1, limit, limit + 1):
        assert (not without_expired_files(table, ExpiredRows("end", at)).files) == ended(end, at)


STATS = ['{"numRecords": 1}', '{"maxValues": {"end": "1970-01-01T00:00:00+00:00"}, "nullCount": {"end": 1}}']


@pytest.mark.parametrize("stats", STATS)
def test_a_file_is_kept_if_a_row_has_no_end_or_its_statistics_say_nothing(stats: str) -> None:
    table = table_of(stats)
    assert without_expired_files(table, ExpiredRows("end", 1 << 60)) is table


def table_of(stats: str) -> StateTable:
    staged = StagedFile(path="part-0", size=1, rows=1, stats=stats)
    file = StateFile(file=staged, checkpoint=1, oldest=1, groups=(0, 0))
    return StateTable(columns={"type": "struct", "fields": []}, keys=["k"], groups=1, files=[file])
