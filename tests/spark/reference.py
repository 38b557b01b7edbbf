"""What operators must give, in plain Python over all events at once: no state, no checkpoints, no Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["distinct_by", "greatest_by", "hops", "interval_join", "ranked", "sessions", "totals_of", "windowed"]

Row = dict[str, Any]
Key = Callable[[Row], Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def distinct_by(rows: Iterable[Row], key: Key) -> list[Row]:
    """One row of each key; rows of a key are copies."""
    return list({key(row): row for row in rows}.values())


def greatest_by(rows: Iterable[Row], key: Key, order: Key) -> dict[Any, Row]:
    """The greatest row of each key."""
    found: dict[Any, Row] = {}
    for row in rows:
        if key(row) not in found or order(row) > order(found[key(row)]):
            found[key(row)] = row
    return found


def ranked(rows: Iterable[Row], key: str, order: Key, n: int) -> list[Row]:
    """The first rows of each key, numbered."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[key]].append(row)
    return [
        {**row, "rank": place} for group in groups.values() for place, row in enumerate(sorted(group, key=order)[:n], 1)
    ]


def interval_join(
    left: Sequence[Row], right: Sequence[Row], near: Callable[[Row, Row], bool], how: str, names: tuple[Row, Row]
) -> list[Row]:
    """Pairs; for left and full joins, with nulls, what has no partner. `names`: a row of nulls for each side."""
    pairs = [(one, other) for one in left for other in right if near(one, other)]
    found = [{**other, **one} for one, other in pairs]
    if how in ("left", "full"):
        found += [{**names[1], **one} for one in left if not any(pair[0] is one for pair in pairs)]
    if how == "full":
        found += [{**names[0], **other} for other in right if not any(pair[1] is other for pair in pairs)]
    return found


def totals_of(rows: Iterable[Row], key: Key, value: str) -> dict[Any, tuple[int, int, float, int]]:
    """Count, sum, mean and how many distinct values, of each key."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row[value])
    return {k: (len(v), sum(v), sum(v) / len(v), len(set(v))) for k, v in groups.items()}


def hops(at: datetime, size: timedelta, step: timedelta) -> Iterator[tuple[datetime, datetime]]:
    """The windows in which a time lies."""
    start = EPOCH + (at - EPOCH) // step * step
    while start + size > at:
        yield start, start + size
        start -= step


def windowed(
    rows: Sequence[Row], key: str, time: str, windows: Callable[[datetime], Iterable[tuple[datetime, datetime]]]
) -> list[tuple[Row, list[Row]]]:
    """Each window of each key, and the rows in it."""
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        for start, end in windows(row[time]):
            found[start, end, row[key]].append(row)
    return [({"window_start": s, "window_end": e, key: k}, inside) for (s, e, k), inside in found.items()]


def sessions(rows: Sequence[Row], key: str, time: str, gap: timedelta) -> list[tuple[Row, list[Row]]]:
    """Each session of each key, and the rows in it."""
    found: list[tuple[Row, list[Row]]] = []
    for k in {row[key] for row in rows}:
        for row in sorted((row for row in rows if row[key] == k), key=lambda row: row[time]):
            if found and found[-1][0][key] == k and row[time] <= found[-1][0]["window_end"]:
                found[-1][1].append(row)
                found[-1][0]["window_end"] = row[time] + gap
            else:
                found.append(({"window_start": row[time], "window_end": row[time] + gap, key: k}, [row]))
    return found
