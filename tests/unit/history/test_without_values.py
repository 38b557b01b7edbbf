"""What people see who may not read rows."""

from __future__ import annotations

import json

from tidegate.history.without_values import manifest_without_rows
from tidegate.records.records import DivertedPart, Manifest, Payload, TablePart


def test_a_manifest_has_no_statistics_of_rows_not_even_of_diverted_ones() -> None:
    staged = [Payload(data={"files": [{"path": "a.parquet", "stats": {"minValues": {"name": "CANARY"}}}]})]
    part = TablePart(after=1, committables=staged, diverted=DivertedPart(table="out", after=1, committables=staged))
    tables = {"out": part, "other": TablePart(after=1, committables=staged)}
    manifest = Manifest(
        attempt="a", created="now", id=2, base=1, base_manifest=None, positions={}, jobs={}, tables=tables
    )
    document = manifest_without_rows(manifest)
    assert "CANARY" not in json.dumps(document)
    assert document["tables"]["out"]["diverted"]["committables"][0]["data"] is None
