"""Identifies the columns of changes in the server's log, which has the names that the columns had at the time.

A column keeps its number when it is renamed, but the log does not contain numbers. They are derived from the order of
the columns, which is that of their numbers, from the current and the dropped columns of the table, and from the columns
as of the last change that was read, which are in the position.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tidegate.connectors.postgres import FoundTable

__all__ = ["column_numbers"]


def column_numbers(
    names: Sequence[str], table: FoundTable, sent: Collection[str], before: Sequence[tuple[int, str]] | None
) -> list[int] | None:
    """Return the numbers of columns in the log, 0 for some dropped ones, or None if they are ambiguous.

    sent: the columns that the server currently sends.
    before: the numbers and names of the columns as of an earlier change.
    """
    numbers = {name: column.number for name, column in table.columns.items()}
    if before is not None and list(names) == [name for _, name in before]:
        present = set(numbers.values())
        return [number if number in present else numbers.get(name, number) for number, name in before]
    by_name = [numbers.get(name, 0) for name in names]
    if all(lower < higher for lower, higher in zip([0, *by_name], by_name, strict=False)):
        return by_name  # all exist, and are in order, which they would not be if two had exchanged their names
    if len(sent) < len(table.columns):
        return None  # any column may be missing in the log
    dropped = list(table.dropped)
    earlier_numbers = [number for number, _ in before or ()]
    if earlier_numbers and all(earlier_numbers):
        # Other columns had been dropped before that earlier change.
        dropped = [number for number in dropped if number in earlier_numbers or number > max(earlier_numbers)]
    return _column_numbers(len(names), sorted(numbers.values()), dropped)


def _column_numbers(count: int, present: Sequence[int], dropped: Sequence[int]) -> list[int] | None:
    """Return the numbers of `count` columns, or None if several solutions exist.

    They are all `present` columns up to some number, and some of the `dropped` ones.
    """
    solutions: dict[tuple[int, ...], list[list[int]]] = {}
    for last in sorted([*present, *dropped]):
        existing = [number for number in present if number <= last]
        candidates = [number for number in dropped if number < last]
        needed = count - len(existing) - (last in dropped)
        if not 0 <= needed <= len(candidates):
            continue
        solution = [0] * count
        for index, number in enumerate(existing):
            # How many dropped columns come before this one decides its place.
            lower = sum(candidate < number for candidate in candidates)
            fewest, maximum = max(0, needed - (len(candidates) - lower)), min(needed, lower)
            if fewest != maximum:
                return None
            solution[index + fewest] = number
        all_numbers = sorted({*existing, *candidates, last})
        complete = all_numbers if len(all_numbers) == count else solution
        solutions.setdefault(tuple(solution), []).append(complete)
    if len(solutions) != 1:
        return None
    ((solution_key, alternatives),) = solutions.items()
    return alternatives[0] if len(alternatives) == 1 else list(solution_key)
