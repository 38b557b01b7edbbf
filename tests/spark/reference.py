"""What operators must give, in plain Python over all events at once: no state, no checkpoints, no Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["distinct_by", "greatest_by", "interval_join", "least_apart", "ranked", "totals_of"]

Row = dict[str, Any]


def distinct_by(rows: Iterable[Row], key: str) -> list[Row]:
    """One row of each key; rows of a key are copies."""
    return list({row[key]: row for row in rows}.values())


def least_apart(rows: Sequence[Row], key: str, time: str, apart: float) -> list[Row]:
    """Rows that are not within `apart` of an earlier row of their key; no row is near to two."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: row[time]):
        if all(row[key] != other[key] or abs((row[time] - other[time]).total_seconds()) >= apart for other in found):
            found.append(row)
    return found


def greatest_by(rows: Iterable[Row], key: str, order: Callable[[Row], Any]) -> dict[Any, Row]:
    """The greatest row of each key."""
    found: dict[Any, Row] = {}
    for row in rows:
        if row[key] not in found or order(row) > order(found[row[key]]):
            found[row[key]] = row
    return found


def ranked(rows: Iterable[Row], key: str, order: Callable[[Row], Any], n: int) -> list[Row]:
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


def totals_of(rows: Iterable[Row], key: Callable[[Row], Any], value: str) -> dict[Any, tuple[int, int, float, int]]:
    """Count, sum, mean and how many distinct values, of each key."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row[value])
    return {k: (len(v), sum(v), sum(v) / len(v), len(set(v))) for k, v in groups.items()}
