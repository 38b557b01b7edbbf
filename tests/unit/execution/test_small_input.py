"""Plans of small jobs do not adapt: where that pays, and only for as long as the job works."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidegate.delta import Location
from tidegate.execution.job.small_input import (
    FEW_BYTES,
    FEW_ROWS,
    SMALL_BYTES,
    amounts_of,
    is_small,
    is_small_input,
    planned_simply,
)
from tidegate.pipeline.graph.graph import Node
from tidegate.pipeline.graph.nodes import StageNode
from tidegate.pipeline.selection import selection
from tidegate.records.place import LOCAL_WRITES
from tidegate.records.records import Amount
from tidegate.spark.materialize import StoredRows, mark_stored

ADAPTIVE = "spark.sql.adaptive.enabled"


class Session:
    """The settings of one: a real one takes a JVM. Without arguments, of a small Spark that tidegate has started."""

    def __init__(self, **other: str) -> None:
        ours = {"spark.master": "local[2]", LOCAL_WRITES: "true", "spark.sql.shuffle.partitions": "2", ADAPTIVE: "true"}
        self.settings = ours | other
        self.conf = self

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.settings.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.settings[key] = value


def inside(session: Session) -> str:
    with planned_simply(cast(Any, session)):
        return session.settings[ADAPTIVE]


def test_plans_adapt_again_afterwards_also_if_the_job_fails() -> None:
    session = Session()
    assert inside(session) == "false"
    assert session.settings[ADAPTIVE] == "true"
    with pytest.raises(ZeroDivisionError), planned_simply(cast(Any, session)):
        raise ZeroDivisionError
    assert session.settings[ADAPTIVE] == "true"


@pytest.mark.parametrize(
    ("elsewhere", "stays"),
    [
        ({"spark.master": "spark://host:7077"}, "true"),
        ({LOCAL_WRITES: ""}, "true"),
        ({"spark.sql.shuffle.partitions": "200"}, "true"),
        ({ADAPTIVE: "false"}, "false"),
    ],
    ids=["a cluster", "a Spark of the user's own", "many partitions", "they never adapt"],
)
def test_elsewhere_nothing_is_changed(elsewhere: dict[str, str], stays: str) -> None:
    session = Session(**elsewhere)
    assert inside(session) == stays
    assert session.settings[ADAPTIVE] == stays


@pytest.mark.parametrize(
    ("amounts", "small"),
    [
        ([], False),
        ([Amount()], False),
        ([Amount(bytes=1), Amount()], False),
        ([Amount(bytes=0)], True),
        ([Amount(bytes=SMALL_BYTES), Amount(bytes=0)], True),
        ([Amount(bytes=SMALL_BYTES), Amount(bytes=1)], False),
        ([Amount(bytes=SMALL_BYTES, rows=FEW_ROWS + 1)], True),
        ([Amount(rows=FEW_ROWS)], True),
        ([Amount(rows=FEW_ROWS + 1)], False),
        ([Amount(rows=FEW_ROWS // 2), Amount(bytes=SMALL_BYTES // 2)], True),
        ([Amount(rows=FEW_ROWS), Amount(bytes=SMALL_BYTES // 2)], False),
    ],
)
def test_small_is_what_is_known_to_be(amounts: list[Amount], small: bool) -> None:
    assert is_small(amounts) is small


@pytest.mark.parametrize(
    ("amounts", "few"),
    [
        ([], False),
        ([Amount()], False),
        ([Amount(rows=1), Amount()], False),
        ([Amount(rows=0)], True),
        ([Amount(rows=FEW_ROWS)], True),
        ([Amount(rows=FEW_ROWS, bytes=FEW_BYTES + 1)], False),
        ([Amount(bytes=FEW_BYTES)], True),
        ([Amount(rows=FEW_ROWS // 2), Amount(bytes=FEW_BYTES // 2)], True),
        ([Amount(rows=FEW_ROWS), Amount(bytes=FEW_BYTES // 2)], False),
    ],
)
def test_few_is_what_is_known_to_be(amounts: list[Amount], few: bool) -> None:
    assert is_small_input(amounts) is few


class Frame:
    """What is known of a frame: a real one takes a JVM."""


def stored(rows: int) -> Any:
    return mark_stored(cast(Any, Frame()), StoredRows(Location("file:///nowhere"), [], rows))


def amounts(stream: str, streams: dict[str, Any], read: dict[str, Amount]) -> list[Amount]:
    """Of these streams: orders → chosen (columns, in SQL) → guessed (a function of the user's)."""
    stages = [
        StageNode("chosen", selection("a > 1", ["a"]), ("orders",)),
        StageNode("guessed", lambda rows: rows, ("chosen",)),
    ]
    makers: dict[str, Node] = {stage.name: stage for stage in stages}
    return amounts_of(stream, makers, streams, read)


def test_what_is_selected_is_as_much_as_it_is_selected_from() -> None:
    read = {"orders": Amount(rows=7, bytes=900)}
    assert amounts("chosen", {"orders": Frame(), "chosen": Frame()}, read) == [read["orders"]]


def test_of_what_a_function_of_the_users_makes_nothing_is_known() -> None:
    streams = dict.fromkeys(("orders", "chosen", "guessed"), Frame())
    assert amounts("guessed", streams, {"orders": Amount(rows=7)}) == [Amount()]


def test_rows_in_files_are_counted_also_those_that_are_replaced() -> None:
    streams = {"orders": stored(30), "orders.-": stored(12)}
    assert amounts("orders", streams, {}) == [Amount(rows=30), Amount(rows=12)]
    assert amounts("chosen", streams | {"chosen": Frame(), "chosen.-": Frame()}, {}) == [
        Amount(rows=30),
        Amount(rows=12),
    ]
