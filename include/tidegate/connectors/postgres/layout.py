"""Which column of a table a change is of: the server's log names columns as they were called then.

A column keeps its number when it is renamed, but the log does not have numbers. They follow from the order of the
columns, which is that of their numbers, and from what is known: the columns that the table has and those it had, and,
from the position, the columns as of the last change that was read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.connectors.postgres import FoundTable

__all__ = ["column_numbers"]


def column_numbers(
    names: Sequence[str], table: FoundTable, sent: Collection[str], before: Sequence[tuple[int, str]] | None
) -> list[int] | None:
    """Return the numbers of columns that the log names; 0 for some that are no more. None: they are not certain.

    sent: the columns that the server sends now. before: numbers and names of the columns as of an earlier change.
    """
    numbers = {name: column.number for name, column in table.columns.items()}
    if before is not None and list(names) == [name for _, name in before]:
        present = set(numbers.values())
        return [number if number in present else numbers.get(name, number) for number, name in before]
    by_name = [numbers.get(name, 0) for name in names]
    if all(lower < higher for lower, higher in zip([0, *by_name], by_name, strict=False)):
        return by_name  # all are there, and in order; columns that have exchanged their names are not
    if len(sent) < len(table.columns):
        return None  # the log may have lacked any column
    dropped = list(table.dropped)
    if before is not None and (known := [number for number, _ in before]) and all(known):
        dropped = [each for each in dropped if each in known or each > max(known)]  # others were dropped before
    return _by_place(len(names), sorted(numbers.values()), dropped)


def _by_place(count: int, present: Sequence[int], dropped: Sequence[int]) -> list[int] | None:
    """Return the numbers of so many columns: all that are present, up to some number, and some that were dropped since.
    None: there are several ways."""
    ways: dict[tuple[int, ...], list[list[int]]] = {}
    for last in sorted([*present, *dropped]):
        existed = [number for number in present if number <= last]
        maybe = [number for number in dropped if number < last]
        more = count - len(existed) - (last in dropped)
        if not 0 <= more <= len(maybe):
            continue
        way = [0] * count
        for place, number in enumerate(existed):
            lower = sum(each < number for each in maybe)
            least, most = max(0, more - (len(maybe) - lower)), min(more, lower)
            if least != most:
                return None
            way[place + least] = number
        everything = sorted({*existed, *maybe, last})
        ways.setdefault(tuple(way), []).append(everything if len(everything) == count else way)
    if len(ways) != 1:
        return None
    (possible,) = ways.values()
    return possible[0] if len(possible) == 1 else list(next(iter(ways)))
