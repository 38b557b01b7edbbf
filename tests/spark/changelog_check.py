"""Whatever an operator takes back, it has given before, exactly so: looked at in every stream that replaces rows.

`watch` adds a table to each such stream, with both sides of it, as of each checkpoint. Whatever befalls the pipeline
(cuts, crashes, changed code, rows that expire, history, changes by hand, rollbacks) befalls these tables, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet
from deltalake import DeltaTable

from tidegate import Pipeline
from tidegate.pipeline.graph.graph import Graph, SinkNode
from tidegate.sinks import DeltaAppend

__all__ = ["given", "plain_rows", "watch"]

WAY = "_way"
"""1: a row that is given; -1: one that is taken back."""


class Changes(DeltaAppend):
    """Both sides of a stream that replaces rows, one below the other."""

    wants_retractions = True
    counts_input_rows = False  # the other side's rows, too

    def __init__(self, path: str) -> None:
        super().__init__(path, changelog=True, schema_evolution="add")

    def prepare_with_retractions(self, frame: Any, retractions: Any, context: Any, staging: Any) -> Any:
        from pyspark.sql import functions as F

        sides = [rows.withColumn(WAY, F.lit(way)) for rows, way in ((frame, 1), (retractions, -1))]
        return self.prepare(sides[0].unionByName(sides[1]), context, staging)


def watch(pipeline: Pipeline, graph: Graph) -> None:
    """Let nothing be given or taken back unseen, but for what the graph itself puts in front of sinks."""
    for stream in sorted(graph.updating.intersection(pipeline.streams)):
        pipeline._sinks.append(SinkNode(f"changes-{stream}", Changes(f"changes/{stream}"), stream))


def given(root: Path) -> tuple[dict[str, Counter[Any]], list[str]]:
    """By stream, the rows that it has given and not taken back; and where it has taken back what it had not given."""
    streams, wrong = {}, []
    for path in sorted((root / "changes").glob("*")):
        rows: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for file in DeltaTable(str(path)).file_uris():
            found = re.search(r"/tidegate/[^/]+/(\d{8})/", file)
            assert found is not None
            rows[int(found[1])] += pyarrow.parquet.ParquetFile(file).read().to_pylist()
        held: Counter[Any] = Counter()
        for id in sorted(rows):
            held = _of_columns(held, {name for row in rows[id] for name in row})
            there, back = (plain_rows(row for row in rows[id] if row[WAY] == way) for way in (1, -1))
            if unknown := back - held:
                wrong.append(f"{path.name}: checkpoint {id} takes back what was not given: {list(unknown)}")
            held = held - back + there
        streams[path.name] = held
    return streams, wrong


def _of_columns(held: Counter[Any], names: set[str]) -> Counter[Any]:
    """Rows as code knows them that has only these columns: it takes back no others."""
    found: Counter[Any] = Counter()
    for row, count in held.items():
        found[tuple(each for each in row if each[0] in names)] += count
    return found


def plain_rows(rows: Any) -> Counter[Any]:
    """Rows in any order, as something that can be compared: without the side, and without what is null."""
    return Counter(
        tuple(sorted((name, _plain(value)) for name, value in row.items() if name != WAY and value is not None))
        for row in rows
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple(sorted((name, _plain(each)) for name, each in value.items()))
    return "NaN" if value != value else value
