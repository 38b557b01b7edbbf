"""A declaration that was inferred from files reads these files, and loses no value of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate import Pipeline
from tidegate.cli.project.infer import declaration, infer
from tidegate.connectors.source import SourceContext
from tidegate.ledger import Ledger, LocalStore
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

JSON = [
    {"id": 1, "large": 2**64, "number": 1.5, "day": "2026-02-28", "at": "2026-01-31T10:00:00Z", "yes": True},
    {"id": 2, "number": 1, "local": "2026-01-31 10:00:00", "at": "2026-01-31T10:00:00.123456+02:00", "mixed": 1},
    {"id": 3, "local": "2026-01-31T10:00:00.5", "mixed": {"a": [1]}, "of": {"a": {"b": 1}}, "tags": ["x", None]},
    {"id": 4, "items": [{"sku": "a"}, {"n": 2}], "by": {f"k{n}": n for n in range(101)}, "text": "2026-02-30"},
]
CSV = (
    "id,zip,price,day,at,ok\n1,0101,9.50,2026-01-01,2026-01-31T10:00:00Z,true\n2,,10,,2026-01-31 10:00:00+02:00,FALSE\n"
)


@pytest.mark.parametrize("name", ["1.json", "1.csv"])
def test_every_value_of_the_sample_is_read(tmp_path: Path, spark: Any, name: str) -> None:
    text = "\n".join(map(json.dumps, JSON)) if name == "1.json" else CSV
    (tmp_path / name).write_text(text)
    inferred = infer([str(tmp_path / name)])
    assert all(not column.why_not for column in inferred.columns)
    scope: dict[str, Any] = {"pipeline": Pipeline("shop"), "Files": Files}
    exec(declaration("orders", inferred), scope)
    scope["orders"].sink("orders", DeltaAppend("orders"))
    source = scope["pipeline"].graph(Place(str(tmp_path))).sources["orders"].source
    assert not source.problems()
    context = SourceContext("orders", "orders", Place(str(tmp_path)), Ledger(LocalStore(tmp_path / "ledger"), "orders"))
    rows = source.read(spark, source.plan(None, context).splits, context).collect()
    read = {(row.id, column) for row in rows for column in row.asDict() if row[column] is not None}
    if name == "1.json":
        assert read == {(record["id"], key) for record in JSON for key in record}
    else:
        filled = {(1, column) for column in ("id", "zip", "price", "day", "at", "ok")}
        assert read == filled | {(2, column) for column in ("id", "price", "at", "ok")}
