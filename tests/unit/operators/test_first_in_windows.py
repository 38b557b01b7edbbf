"""The first rows of each window, as their kernel finds them, against plain Python: each window once."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from tidegate.operators.kernels.first_in_windows import FirstInWindows
from tidegate.operators.kernels.ranked import TopRows
from tidegate.state.columns import DELETED, GROUP
from tidegate.state.lateness import WindowLimits

SIZE, DELAY = 10, 4
TIME = pa.timestamp("us", "UTC")
KEPT = pa.schema(
    [
        *((GROUP, pa.int32()), ("start", TIME), ("k", pa.string()), ("_row", pa.string())),
        *(("end", TIME), ("v", pa.int64()), ("_n", pa.int64())),
    ]
)

NUMBERS = pa.schema([("start", pa.int64()), ("k", pa.string()), ("v", pa.int64()), ("rank", pa.int32())])


def kernel(limits: WindowLimits, rank: str) -> FirstInWindows:
    first = TopRows(["start", "k"], ["end", "v"], [("v", False)], 2, False, ["start", "k", "v"], "rank", rank)
    return FirstInWindows(first, "start", "end", SIZE, limits, ["k", "v"])


def row(at: int | None, k: str, v: int) -> dict[str, Any]:
    start = None if at is None else at - at % SIZE
    end = None if start is None else start + SIZE
    return {GROUP: 0, "start": start, "k": k, "_row": f"{k}{at}{v}", "end": end, "v": v, "_n": 1}


@pytest.mark.parametrize("rank", ["row_number", "rank", "dense_rank"])
@pytest.mark.parametrize("seed", range(20))
def test_each_window_is_given_once_though_rows_of_it_come_too_late(seed: int, rank: str) -> None:
    """Windows that have been given are still in the state's files, until all of a file is over."""
    dice = random.Random(seed)
    state: dict[Any, dict[str, Any]] = {}
    taken: dict[tuple[int, str], list[int]] = {}
    given, late = Counter[Any](), 0
    before: int | None = None
    for at in range(0, 60, 6):
        rows = [(at + dice.randrange(-24, 6), dice.choice("ab"), dice.randrange(4)) for _ in range(6)]
        rows = [(max(0, time), k, v) for time, k, v in rows]
        now = max([time - DELAY for time, _, _ in rows] + ([] if before is None else [before]))
        limits = WindowLimits.from_watermarks(before, now)
        for time, k, v in rows:
            if before is not None and time - time % SIZE + SIZE <= before:
                late += 1
            else:
                taken.setdefault((time - time % SIZE, k), []).append(v)
        work = kernel(limits, rank)
        arrived = pa.Table.from_pylist([row(*each) for each in rows] + [row(None, "a", 0)], KEPT)
        fewer = work.combine(arrived)
        folded = [work(some, [pa.Table.from_pylist(list(state.values()), KEPT)]) for some in (arrived, fewer)]
        assert folded[0].counts == folded[1].counts
        for each in folded[0].changes[0].to_pylist():
            gone = each.pop(DELETED)
            key = (each["start"], each["k"], each["_row"])
            state[key] = each
            if gone:
                del state[key]
        tables = [pa.concat_tables(some.rows).sort_by([("start", "ascending"), ("k", "ascending")]) for some in folded]
        assert Counter(map(repr, tables[0].to_pylist())) == Counter(map(repr, tables[1].to_pylist()))
        for each in tables[0].cast(NUMBERS).to_pylist():
            given[tuple(each.values())] += 1
        before = now
    assert before is not None
    wanted = Counter[Any]()
    for (start, k), values in taken.items():
        if start + SIZE <= before:
            ordered = sorted(values, reverse=True)
            distinct = sorted(set(values), reverse=True)
            ranks = {
                "row_number": list(range(1, len(ordered) + 1)),
                "rank": [ordered.index(v) + 1 for v in ordered],
                "dense_rank": [distinct.index(v) + 1 for v in ordered],
            }[rank]
            wanted.update((start, k, v, place) for v, place in zip(ordered, ranks, strict=True) if place <= 2)
    assert given == wanted
    assert late
