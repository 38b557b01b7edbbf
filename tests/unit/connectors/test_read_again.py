"""Before a backfill: what cannot be read again. Before its swap: whether it has read all that its pipeline has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.sources import files, put
from tidegate.connectors.delta.source.position import TablePosition
from tidegate.connectors.kafka.position import TopicPosition
from tidegate.sources import DeltaTable, Kafka, PostgresChanges, PostgresTable, SourceContext
from tidegate.testing.source_contract import drain


def test_files_cover_each_other_by_name_in_whatever_order_they_were_read(context: SourceContext, landing: Path) -> None:
    put(landing, ["b.json"])
    _, first = drain(files(), context)
    put(landing, ["a.json", "c.json"])
    _, one_by_one = drain(files(max_files=1), context, first)
    _, at_once = drain(files(), context)
    source = files()
    assert source.covers(at_once, one_by_one, context)
    assert source.covers(one_by_one, at_once, context)
    assert not source.covers(first, at_once, context)
    assert source.covers(first, None, context)
    assert not source.covers(None, first, context)


def test_files_that_are_gone_since_are_counted_and_new_ones_make_up_for_none(
    context: SourceContext, landing: Path
) -> None:
    put(landing, ["a.json", "b.json"])
    _, start = drain(files(), context)
    put(landing, ["c.json", "d.json"])
    _, end = drain(files(), context, start)
    assert files().missing_input(start, end, context) == []
    (landing / "a.json").unlink()  # read before the start: nobody reads it again
    assert files().missing_input(start, end, context) == []
    (landing / "d.json").unlink()
    put(landing, ["e.json"])
    (told,) = files().missing_input(start, end, context)
    assert told.startswith("1 of 2 files that were read are no longer in ")
    (told,) = files().missing_input(None, end, context)
    assert told.startswith("2 of 4 files")


@pytest.mark.parametrize(
    ("here", "there", "covered"),
    [
        ((7, None), (7, None), True),
        ((8, 0), (7, None), True),
        ((7, None), (7, 3), True),
        ((7, 3), (7, 3), True),
        ((7, 2), (7, 3), False),
        ((7, 3), (7, None), False),
        ((6, None), (7, 0), False),
    ],
)
def test_a_position_in_a_table_covers_those_before_it(
    context: SourceContext, here: tuple[int, int | None], there: tuple[int, int | None], covered: bool
) -> None:
    def at(place: tuple[int, int | None], table: str = "t") -> dict[str, object]:
        return TablePosition(table, place[0], None, place[1], False).json

    source = DeltaTable("changes")
    assert source.covers(at(here), at(there), context) == covered
    assert not source.covers(at(here), at(there, "another"), context)


def test_a_position_in_a_topic_covers_another_if_no_partition_is_behind(context: SourceContext) -> None:
    source = Kafka("orders", servers="one:9092")

    def at(topic: str = "t", **offsets: int) -> dict[str, object]:
        return TopicPosition("c", topic, {int(name[1:]): offset for name, offset in offsets.items()}).json

    assert source.covers(at(p0=5, p1=2), at(p0=5), context)
    assert not source.covers(at(p0=6), at(p0=5, p1=2), context), "a partition that it has not begun"
    assert not source.covers(at("made again", p0=9), at(p0=5), context)


def test_rows_that_are_read_by_transaction_are_covered_by_a_later_one_of_the_same_table(context: SourceContext) -> None:
    source, at = PostgresTable("orders", connection="shop", xid_column="xid"), {"system": "s", "table": 7}
    assert source.covers(at | {"xid": 9}, at | {"xid": 8}, context)
    assert not source.covers(at | {"xid": 7}, at | {"xid": 8}, context)
    assert not source.covers({"system": "s", "table": 8, "xid": 9}, at | {"xid": 8}, context)
    assert not source.covers(None, at | {"xid": 8}, context)


def test_a_slot_gives_nothing_twice(context: SourceContext) -> None:
    source = PostgresChanges("orders", connection="shop", slot="orders", publication="all")
    assert source.missing_input({"lsn": 1}, {"lsn": 1}, context) == []
    assert source.missing_input({"lsn": 1}, {"lsn": 2}, context)
