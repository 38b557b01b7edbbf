"""Rows that a backfill sets aside again: those that are as they were are found by what was asked about them before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tests.kit.delta import schema, staged, stamp
from tidegate.connectors.sink import SinkContext
from tidegate.delta import Location, Snapshot, create, open_table
from tidegate.gates.quarantine.columns import CHECKPOINT, ID, RULES, SETTLED, SETTLED_IN
from tidegate.gates.quarantine.recognised import recognised
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.records.place import Place

RULE = {"type": "array", "elementType": "string", "containsNull": True}
NOBODY: Mapping[str, int] = MappingProxyType({})
Aside = tuple[str, int, str, int | None, list[str]]
"""Id, checkpoint, item, amount, rules."""


def quarantine(folder: Path, *rows: Aside, settled: Mapping[str, int] = NOBODY) -> Snapshot:
    """settled: by id, the checkpoint in which a row was let out."""
    kinds: Any = {ID: "string", CHECKPOINT: "long", "item": "string", "amount": "long", RULES: RULE}
    types = [pa.string(), pa.int64(), pa.string(), pa.int64(), pa.list_(pa.string())]
    if settled:
        kinds |= {SETTLED: "string", SETTLED_IN: "long"}
        types += [pa.string(), pa.int64()]
        rows = tuple((*row, "released" if row[0] in settled else None, settled.get(row[0])) for row in rows)  # type: ignore[misc]
    columns = schema(**kinds)
    names = [field["name"] for field in columns["fields"]]
    data = zip(*rows, strict=True) if rows else [[] for _ in names]
    table = pa.table(
        {name: pa.array(list(values), kind) for name, values, kind in zip(names, data, types, strict=True)}
    )
    location = Location(str(folder))
    create(location, columns, staged(location, "tidegate/u-q/1/a", table, columns), stamp(1))
    found = open_table(location)
    assert found is not None
    return found


def names_of(rows: Any) -> list[tuple[str, int]]:
    return [pair for part in rows for pair in zip(part[ID].to_pylist(), part[CHECKPOINT].to_pylist(), strict=True)]


def test_a_row_that_is_as_it_was_keeps_its_name_and_all_others_are_new(tmp_path: Path) -> None:
    before = quarantine(
        tmp_path / "before",
        ("old", 1, "nut", 5, ["price"]),
        ("kept", 4, "nut", 5, ["price"]),
        ("twice 1", 4, "bolt", None, ["price", "name"]),
        ("twice 2", 5, "bolt", None, ["name", "price"]),
        ("other value", 5, "cog", 7, ["price"]),
        ("other rule", 5, "cam", 7, ["price"]),
    )
    again = quarantine(
        tmp_path / "again",
        ("a", 2, "nut", 5, ["price"]),
        ("b", 2, "bolt", None, ["name", "price"]),
        ("c", 2, "bolt", None, ["price", "name"]),
        ("d", 2, "cog", 8, ["price"]),
        ("e", 3, "cam", 7, ["name"]),
        ("f", 3, "nut", 5, ["price"]),
        ("g", 3, "bolt", None, ["price", "name"]),
    )
    assert names_of(recognised(again, before, 1, 9)) == [
        ("kept", 4), ("twice 1", 4), ("twice 2", 5), ("d", 9), ("e", 9), ("f", 9), ("g", 9),
    ]  # fmt: skip
    assert names_of(recognised(again, None, 0, 9)) == [(id, 9) for id in "abcdefg"]


def test_a_row_that_was_let_out_again_is_the_one_that_was_let_out_before(tmp_path: Path) -> None:
    """Else what was asked of that one would let out another one, which is the same, once more."""
    nut = ("nut", 5, ["price"])
    before = quarantine(tmp_path / "before", ("out", 4, *nut), ("waits", 5, *nut), settled={"out": 6})
    again = quarantine(
        tmp_path / "again", ("a", 2, *nut), ("b", 2, *nut), ("c", 3, *nut), ("d", 3, *nut), settled={"b": 4, "c": 4}
    )
    (rows,) = recognised(again, before, 1, 9)
    found = {row[ID]: (row[CHECKPOINT], row[SETTLED], row[SETTLED_IN]) for row in rows.to_pylist()}
    assert found == {
        "waits": (5, None, None),  # the first one
        "out": (4, "released", 6),
        "c": (9, "released", 9),  # nobody has let that out before
        "d": (9, None, None),
    }
    alone = quarantine(tmp_path / "alone", ("e", 2, *nut), ("f", 2, *nut), settled={"x": 1})
    assert names_of(recognised(alone, before, 1, 9)) == [("waits", 5), ("out", 4)], (
        "it waits again, and is let out again"
    )


def test_what_a_swap_brings_lies_in_a_folder_of_the_lines_name(tmp_path: Path) -> None:
    """A discard finds it there; and two tries of a swap share no file, for they may find other rows."""
    sink = QuarantineSink("checked")
    contexts = [
        SinkContext("p", uid, "quarantine.checked", Place(str(tmp_path)), home=str(tmp_path / uid))
        for uid in ("live", "line")
    ]
    quarantine(tmp_path / "live/quarantine/checked", ("kept", 4, "nut", 5, ["price"]))
    quarantine(tmp_path / "line/quarantine/checked", ("a", 2, "nut", 5, ["price"]))
    tries = [sink.promote_line_quarantine(*contexts, since=since, number=9) for since in (1, 1, None)]
    paths = [batch["files"][0]["path"] for batch in tries if batch is not None]
    assert len(set(paths)) == 3
    assert all(path.startswith("tidegate/line-quarantine.checked/00000009/") for path in paths)
    assert all((tmp_path / "live/quarantine/checked" / path).exists() for path in paths)


def test_a_line_without_bad_rows_brings_none(tmp_path: Path) -> None:
    sink = QuarantineSink("checked")
    context = SinkContext("p", "live", "q", Place(str(tmp_path)), home=str(tmp_path / "live"))
    own = SinkContext("p", "line", "q", Place(str(tmp_path)), home=str(tmp_path / "line"))
    assert sink.promote_line_quarantine(context, own, since=1, number=9) is None
    quarantine(tmp_path / "line/quarantine/checked")
    assert sink.promote_line_quarantine(context, own, since=1, number=9) is None
