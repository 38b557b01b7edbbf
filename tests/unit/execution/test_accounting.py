"""Rows that were written and are not here are no ack, whatever Spark says. By real Spark: spark/test_other_disk.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.delta import KV, kv, table_at
from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySink
from tidegate.connectors.sink import Prepared
from tidegate.delta import sync_and_list
from tidegate.errors import Unavailable


def test_what_was_written_and_lies_in_another_folder_is_missed(tmp_path: Path) -> None:
    """Two tasks wrote; the machine of one of them has a disk of its own."""
    location = table_at(tmp_path)
    folder = location.local("1/a1")
    folder.mkdir(parents=True)
    written: list[pa.Table] = [kv((1, "a"), (2, "b")), kv((3, "c"))]
    for part, rows in enumerate(written):
        pq.write_table(rows, folder / f"part-{part}.parquet")
    assert sum(file.rows for file in sync_and_list(location, "1/a1", KV, written=3)) == 3
    (folder / "part-1.parquet").rename(tmp_path / "part-1.parquet")
    with pytest.raises(Unavailable, match="3 rows were written into .*, and the files there hold 2") as missed:
        sync_and_list(location, "1/a1", KV, written=3)
    assert missed.value.reason == "ROWS_MISSING"
    assert [file.rows for file in sync_and_list(location, "1/a1", KV, written=None)] == [2], "nobody has counted"


class Elsewhere(ToySink):
    """A sink to which each row comes, and whose files are half of them on another disk; it counts what lies there."""

    counts_input_rows = True
    elsewhere = True

    def prepare(self, frame: Any, context: Any, staging: Any) -> Prepared:
        prepared = super().prepare(frame, context, staging)
        names = (prepared.committable or {"files": []})["files"]
        if not self.elsewhere or self.name != "b":
            return prepared
        for name in names[1:]:
            del self._table.files[name]
        return Prepared(committable={"files": names[:1]}, rows=1, files=1)


def test_a_checkpoint_of_which_rows_are_elsewhere_is_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kit.toy_world.ToySink", Elsewhere)
    world = ToyWorld(tmp_path)
    world.feed_more(3)
    id = world.trigger("run")
    with pytest.raises(Unavailable, match="of 'in', source in has 3, staged for a 3, staged for b 1") as missed:
        world.work(id)
    assert missed.value.reason == "ROWS_MISSING"
    assert world.ledger.ack(id, "main") is None
    assert world.coordinator().complete(id).state == "open"
    monkeypatch.setattr(Elsewhere, "elsewhere", False)
    world.work(id)
    assert world.coordinator().complete(id).state == "completed"
    world.coordinator().publish()
    world.exact()
