"""An upsert with an order: the greatest value counts, in whatever order and pieces the rows come."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.kit.delta import head, schema
from tests.kit.upserts import Upserted


@pytest.fixture
def table(tmp_path: Path) -> Upserted:
    return Upserted(tmp_path)


def test_a_late_row_does_not_replace_a_newer_one(table: Upserted) -> None:
    table.publish(([(1, 10, "new"), (2, 10, "new")], []))
    table.publish(([(1, 5, "late"), (2, 11, "newer"), (3, 1, "first")], []))
    assert table.rows() == [(1, 10, "new"), (2, 11, "newer"), (3, 1, "first")]


def test_of_equals_the_later_checkpoint_counts(table: Upserted) -> None:
    table.publish(([(1, 10, "one")], []))
    table.publish(([(1, 10, "two")], []))
    assert table.rows() == [(1, 10, "two")]


def test_null_is_least(table: Upserted) -> None:
    table.publish(([(1, None, "none"), (2, 1, "some"), (None, 3, "null key")], []))
    table.publish(([(1, 0, "some"), (2, None, "none"), (None, 2, "late")], []))
    assert table.rows() == [(1, 0, "some"), (2, 1, "some"), (None, 3, "null key")]


@pytest.mark.parametrize("cuts", [[0, 3], [0, 1, 3], [0, 2, 3], [0, 1, 2, 3]])
def test_not_a_number_is_greatest_however_the_rows_are_cut(tmp_path: Path, cuts: list[int]) -> None:
    """As for operators, Spark and PostgreSQL."""
    rows = [(1, 1.0, "one"), (1, float("nan"), "not a number"), (1, None, "none")]
    table = Upserted(tmp_path, columns=schema(k="long", a="double", v="string"))
    for first, last in itertools.pairwise(cuts):
        table.publish(*(([row], []) for row in rows[first:last]))
    assert [(row[0], row[2]) for row in table.rows()] == [(1, "not a number")]
    table.publish(([(1, float("nan"), "later")], []))
    assert [(row[0], row[2]) for row in table.rows()] == [(1, "later")], "it equals itself"


def test_a_late_delete_is_ignored_and_a_timely_one_is_not(table: Upserted) -> None:
    table.publish(([(1, 10, "stays"), (2, 10, "goes")], []))
    table.publish(([], [(1, 9, ""), (2, 10, "")]))
    assert table.rows() == [(1, 10, "stays")]


def test_batches_of_one_checkpoint_are_settled_by_the_order_too(table: Upserted) -> None:
    table.publish(([(1, 7, "greatest"), (2, 1, "early")], []), ([(1, 5, "later batch"), (2, 1, "equal, later")], []))
    assert table.rows() == [(1, 7, "greatest"), (2, 1, "equal, later")]
    table.publish(([(1, 9, "gone")], []), ([(3, 1, "x")], [(1, 9, "")]))
    assert table.rows() == [(2, 1, "equal, later"), (3, 1, "x")]


def test_a_checkpoint_of_late_rows_only_still_leaves_its_mark(table: Upserted) -> None:
    table.publish(([(1, 10, "new")], []))
    version = head(table.location).version
    table.publish(([(1, 1, "late")], []))
    assert table.rows() == [(1, 10, "new")]
    assert head(table.location).version == version + 1
    assert table.sink.head(table.context).last_entry == 2


@pytest.mark.parametrize("seed", range(12))
def test_the_table_does_not_depend_on_how_the_rows_are_cut(tmp_path: Path, seed: int) -> None:
    """The same rows in random pieces end as the greatest row of each key."""
    chance = random.Random(seed)
    rows = [(chance.randrange(6), order, f"v{order}") for order in chance.sample(range(1000), 40)]
    table = Upserted(tmp_path)
    left = list(rows)
    while left:
        pieces = []
        for _ in range(chance.randint(1, 2)):
            piece, left = left[: (cut := chance.randint(1, 12))], left[cut:]
            newest = {k: row for row in sorted(piece, key=lambda row: row[1]) for k in [row[0]]}
            pieces.append((list(newest.values()), []))
        table.publish(*pieces)
    expected = {row[0]: row for row in sorted(rows, key=lambda row: row[1])}
    assert table.rows() == sorted(expected.values(), key=repr)
