"""How much a planned range is: told by those who verify it, and only where it is certain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.delta_sources import Table, add, source
from tests.kit.sources import files, put
from tidegate.records.records import Amount
from tidegate.sources import Generator, Source, SourceContext


def amount(source: Source, context: SourceContext, start: Any = None) -> Amount | None:
    return source.verify(source.plan(start, context).splits, context)


def test_parquet_files_tell_their_rows(context: SourceContext, landing: Path) -> None:
    for name, rows in (("a", 3), ("b", 4)):
        landing.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64())}), landing / f"{name}.parquet")
    size = sum(path.stat().st_size for path in landing.iterdir())
    assert amount(files("landing/*.parquet"), context) == Amount(rows=7, bytes=size, files=2)


def test_lines_of_text_are_not_taken_for_rows(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json"], '{"id": 1}\n\n{"id": 2}\n')
    assert amount(files(), context) == Amount(rows=None, bytes=21, files=1)


def test_no_files_have_no_rows(context: SourceContext, landing: Path) -> None:
    landing.mkdir(exist_ok=True)
    assert amount(files(), context) == Amount(rows=0, bytes=0, files=0)


def told(rows: int) -> dict[str, str]:
    return {"stats": json.dumps({"numRecords": rows, "minValues": {"id": 1}})}


def test_a_delta_log_tells_the_rows_of_its_files(context: SourceContext, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.commit(add("a", **told(5)), add("b", deletionVector={"cardinality": 2}, **told(7)))
    assert amount(source(), context) == Amount(rows=10, bytes=20, files=2)


def test_a_file_without_statistics_leaves_the_sum_unknown(context: SourceContext, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    for more in ({}, {"stats": "{"}, {"stats": None}, {"deletionVector": {}, **told(7)}):
        table.commit(add(f"b{table.next}", **more))
        table.commit(add(f"a{table.next}", **told(5)))
        start = source().plan(None, context).end
        table.commit(add(f"c{table.next}", **told(5)))
        assert amount(source(), context) == Amount(rows=None, bytes=10 * (table.next - 1), files=table.next - 1)
        assert amount(source(), context, start) == Amount(rows=5, bytes=10, files=1)


def test_a_change_feed_has_as_many_rows_as_it_has(context: SourceContext, tmp_path: Path) -> None:
    table = Table(tmp_path / "table", **{"delta.enableChangeDataFeed": "true"})
    start = source(mode="changes").plan(None, context).end
    table.commit(add("a", **told(5)))
    assert amount(source(mode="changes"), context, start) == Amount(rows=None, bytes=10, files=1)


def test_a_range_that_was_planned_before_rows_were_noted_is_read_all_the_same(
    context: SourceContext, tmp_path: Path
) -> None:
    table = Table(tmp_path / "table")
    table.commit(add("a", **told(5)))
    splits = source().plan(None, context).splits
    for file in splits["files"]:
        del file["rows"]
    assert source().verify(splits, context) == Amount(rows=None, bytes=10, files=1)


def test_a_generator_knows(context: SourceContext) -> None:
    assert amount(Generator(rows=12, total=20), context, {"offset": 10}) == Amount(rows=10)


# -- bounds from outside -----------------------------------------------------------------------------------


def bounded(context: SourceContext, at_most: int) -> SourceContext:
    return replace(context, at_most=at_most)


def test_files_take_no_more_bytes_than_they_may_but_one_file(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json", "b.json", "c.json", "d.json"], "x" * 10)
    planned = files().plan(None, bounded(context, 29))
    assert (len(planned.splits["files"]), planned.amount, planned.has_more) == (2, 20, True)
    assert planned.summary == "2 of 4 files, 20 B"
    assert files(max_bytes=15).plan(None, bounded(context, 29)).amount == 10, "its own bound holds as well"
    assert files(max_files=3).plan(None, bounded(context, 1000)).amount == 30
    assert files().plan(None, bounded(context, 1)).amount == 10
    assert files().plan(planned.end, bounded(context, 1000)).summary == "2 files, 20 B"


def test_delta_tables_take_no_more_bytes_than_they_may_but_one_file(context: SourceContext, tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.append("a", "b", "c")
    assert [source().plan(None, bounded(context, most)).amount for most in (1, 29, 1000)] == [10, 20, 30]
    assert source(max_bytes=10).plan(None, bounded(context, 29)).amount == 10


def test_generators_make_no_more_rows_than_they_may(context: SourceContext) -> None:
    assert [Generator(rows=5).plan(None, bounded(context, most)).amount for most in (1, 3, 100)] == [1, 3, 5]
    assert Generator(rows=5, total=2).plan(None, bounded(context, 3)).amount == 2
