"""The shadow of a Delta table: what a swap brings into the real one, and what it removes there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from tests.kit.delta import KV, kv
from tests.kit.sinks import Published
from tidegate.connectors.delta.sink.shadow import LINE
from tidegate.connectors.sink import Publication
from tidegate.delta import open_table
from tidegate.records.records import Json, Restored
from tidegate.sinks import DeltaAppend, DeltaUpsert


class Shadowed(Published):
    """A table that has a shadow, to which a line publishes."""

    def begin_line(self, origin: int) -> Published:
        """Return the line's shadow, which begins with the rows as of checkpoint `origin`."""
        way = self.sink.restore_plan(origin, None, [], self.context)
        folder = f"tidegate/{self.context.uid}-{self.context.sink}/{LINE}fix"
        line = Published(Path("/"), self.sink.shadow(folder))
        line.context = dataclasses.replace(self.context, uid="of-the-line")
        self.sink.create_shadow(line.sink, way.target_version, self.context, line.context)
        self._since = way.target_version
        return line

    def swap_in(self, id: int, line: Published, how: Any = "restore") -> Json:
        """Publish what the line brings, as entry `id`."""
        brought = self.sink.promote_shadow(line.sink, self._since, self.context, line.context)
        assert brought is not None
        head = self.head()
        restored = Restored(how=how, to=self._since)
        publication = Publication(id, 1, f"publisher-{id}", head.last_entry, (brought,), restore=restored, target=1)
        assert self.sink.restore(publication, head, self.context) is not None
        return brought


@pytest.fixture
def upsert(tmp_path: Path) -> Shadowed:
    table = Shadowed(tmp_path, DeltaUpsert("t", keys=["k"]))
    table.checkpoint(1, kv((0, "by 1"), (1, "by 1")))
    table.checkpoint(2, kv((0, "by 2"), (2, "by 2")))
    return table


def test_a_swap_removes_the_rows_of_an_upsert_that_the_line_has_replaced(upsert: Shadowed) -> None:
    """The line rewrote a file that was there at its origin: with both files, a key would be there twice."""
    line = upsert.begin_line(1)
    line.checkpoint(2, kv((0, "by the line"), (3, "by the line")))
    brought = upsert.swap_in(3, line)
    assert len(brought["without"]) == 1
    assert upsert.rows() == [(0, "by the line"), (1, "by 1"), (3, "by the line")]


def test_a_swap_leaves_the_files_of_an_upsert_that_the_line_has_not_touched(tmp_path: Path) -> None:
    table = Shadowed(tmp_path, DeltaUpsert("t", keys=["k"]))
    table.checkpoint(1, kv((0, "by 1")))
    table.checkpoint(2, kv((1, "by 2")))
    line = table.begin_line(1)
    line.checkpoint(2, kv((5, "by the line")))
    assert not table.swap_in(3, line).get("without")
    assert table.rows() == [(0, "by 1"), (5, "by the line")]


def test_rows_that_a_swap_brought_are_the_pipelines_own_and_can_be_retracted(tmp_path: Path) -> None:
    """Their files lie below the line's folder: by the paths they are still of this sink, and of a checkpoint."""
    table = Shadowed(tmp_path, DeltaAppend("t"))
    table.checkpoint(1)
    table.checkpoint(2)
    line = table.begin_line(1)
    line.checkpoint(2, kv((2, "by the line")))
    table.swap_in(3, line)
    assert table.rows() == [(1, "row 1"), (2, "by the line")]
    table.checkpoint(4)
    head = table.head()
    back = Publication(
        5, 2, "publisher-5", head.last_entry, (), restore=Restored(how="retract", to=table._since), target=1
    )
    assert table.sink.restore(back, head, table.context) is not None
    assert table.rows() == [(1, "row 1")], "also those that the line had made"


WIDER = {**KV, "fields": [*KV["fields"], {"name": "note", "type": "string", "nullable": True, "metadata": {}}]}


@pytest.mark.parametrize("sink", [DeltaUpsert("t", keys=["k"]), DeltaAppend("t")], ids=["upsert", "append"])
def test_a_column_that_was_added_by_hand_since_the_origin_is_there_in_the_shadow(tmp_path: Path, sink: Any) -> None:
    table = Shadowed(tmp_path, sink)
    table.checkpoint(1, kv((0, "by 1")))
    DeltaTable(str(tmp_path / "t")).alter.add_columns(Field("note", PrimitiveType("string")))
    wider = pa.table({"k": [2], "v": ["by 2"], "note": ["new"]})
    table.checkpoint(2, wider, WIDER)
    line = table.begin_line(1)
    shadow = open_table(line.location)
    assert shadow is not None
    assert [field["name"] for field in shadow.schema["fields"]] == ["k", "v", "note"]
    line.checkpoint(2, pa.table({"k": [2], "v": ["by the line"], "note": ["again"]}), WIDER)
    table.swap_in(3, line, how="discard")
    assert table.rows() == [(0, "by 1", None), (2, "by the line", "again")]
