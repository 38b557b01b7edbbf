"""Which columns of a table the log of PostgreSQL means by the names that they had then."""

from __future__ import annotations

import random

import pytest

from tidegate.connectors.postgres import FoundTable, TableColumn
from tidegate.connectors.postgres.layout import column_numbers


def table(columns: dict[str, int], dropped: tuple[int, ...] = ()) -> FoundTable:
    found = {
        name: TableColumn(name, number, "text", False, False, False, False, "", True)
        for name, number in columns.items()
    }
    return FoundTable(7, True, True, found, dropped, (), frozenset())


@pytest.mark.parametrize(
    ("names", "now", "dropped", "before", "numbers"),
    [
        ("k v", {"k": 1, "v": 2}, (), None, [1, 2]),
        ("k v", {"k": 1, "v": 2, "later": 3}, (), None, [1, 2]),
        ("k v", {"k": 1, "w": 2}, (), None, [1, 2]),
        ("k v w", {"k": 1, "w": 3}, (2,), None, [1, 2, 3]),
        ("k v w", {"k": 1, "w": 2}, (3,), None, [1, 2, 3]),
        ("k a b", {"k": 1, "b": 2, "a": 3}, (), None, [1, 2, 3]),
        ("k v", {"k": 1, "v": 3}, (2,), None, [1, 3]),
        ("k v", {"k": 1, "w": 3}, (2,), None, None),
        ("k v", {"k": 1, "w": 3}, (2,), [(1, "k"), (3, "v")], [1, 3]),
        ("k u", {"k": 1, "w": 3}, (2,), [(1, "k"), (3, "v")], [1, 3]),
        ("k v", {"k": 1, "x": 2, "v": 3}, (), [(1, "k"), (2, "v")], [1, 2]),
    ],
)
def test_columns_are_known_by_name_or_place_or_are_not_certain(names, now, dropped, before, numbers):
    assert column_numbers(names.split(), table(now, dropped), list(now), before) == numbers


def test_without_some_columns_in_the_log_places_tell_nothing():
    now = table({"k": 1, "computed": 2, "w": 3})
    assert column_numbers(["k", "v"], now, ["k", "w"], None) is None
    assert column_numbers(["k", "v"], now, ["k", "w"], [(1, "k"), (3, "v")]) == [1, 3]


@pytest.mark.parametrize("seed", range(500))
def test_random_changes_of_a_table_never_give_a_value_to_another_column(seed):
    """A position is taken at any time; from then on each layout of the log is either right, or not certain."""
    dice = random.Random(seed)
    columns, last, history = {1: "k"}, 1, []
    for names in range(12):
        history.append(dict(columns))
        act, chosen = dice.choice(["add", "drop", "rename"]), dice.choice(list(columns))
        if act == "add":
            last += 1
            columns[last] = f"n{names}"
        elif act == "drop" and chosen != 1:
            del columns[chosen]
        elif act == "rename":
            columns[chosen] = f"n{names}"
    history.append(dict(columns))
    now = table({name: number for number, name in columns.items()}, tuple(set(range(1, last + 1)) - set(columns)))
    at = dice.randrange(len(history))
    before = list(history[at].items())
    certain = 0
    for layout in history[at:]:
        found = column_numbers(list(layout.values()), now, list(now.columns), before)
        if found is not None:
            certain += 1
            present = [number if number in columns else 0 for number in found]
            assert present == [number if number in columns else 0 for number in layout]
            before = list(zip(found, layout.values(), strict=True))
    assert certain, "at least that of the position itself"
