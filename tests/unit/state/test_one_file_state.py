"""A state as one file: the newest row of each key, told by a dictionary; or not at all."""

from __future__ import annotations

import msgspec
import pyarrow.parquet as pq
import pytest

from tidegate.delta import Location
from tidegate.delta.files.footers import describe
from tidegate.state.arrow.sorted_files import Writer
from tidegate.state.arrow.workers import layout_of
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP
from tidegate.state.record import StateTable, state_file
from tidegate.state.whole import as_one_file

OWN = [(GROUP, "integer"), (CHECKPOINT, "long"), (DELETED, "boolean")]


def columns(*named):
    fields = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in [*named, *OWN]]
    return {"type": "struct", "fields": fields}


KV = columns(("k", "long"), ("v", "string"))


class States:
    """A state on disk, a file for each checkpoint: key → value, or None for one that is deleted."""

    def __init__(self, folder):
        self.source, self.target = Location(str(folder / "state")), Location(str(folder / "copy"))

    def of(self, *checkpoints, schema=KV):
        files = [self.written(id, rows) for id, rows in enumerate(checkpoints, 1)]
        return StateTable(columns=schema, keys=["k"], groups=8, files=files)

    def written(self, id, rows):
        layout, path, keys = layout_of(KV, ["k"], self.source), f"tidegate/u-s/{id:08d}/a/part.parquet", sorted(rows)
        writer = Writer(layout, self.source.full(path))
        deleted = [rows[k] is None for k in keys]
        given = {"k": keys, "v": [rows[k] for k in keys], GROUP: [k % 8 for k in keys], DELETED: deleted}
        import pyarrow as pa

        arrays = {n: pa.array(given[n], layout.schema.field(n).type) for n in given}
        writer.write(layout.table({**arrays, CHECKPOINT: id}, len(keys)))
        writer.close()
        return state_file(describe(self.source, path, KV, {}))

    def rows(self, table):
        (file,) = table.files
        assert self.target.size(file.file.path) == file.file.size
        return pq.read_table(self.target.full(file.file.path)).to_pylist()


@pytest.fixture
def states(tmp_path):
    return States(tmp_path)


def test_each_key_is_there_once_as_it_was_last_and_what_is_deleted_is_not(states):
    table = states.of({1: "a", 2: "b", 3: "c"}, {2: "B", 3: None}, {12: "d"})
    one = as_one_file(table, states.source, states.target)
    assert [(row["k"], row["v"], row[CHECKPOINT]) for row in states.rows(one)] == [
        (1, "a", 1),
        (2, "B", 2),
        (12, "d", 3),
    ]
    (file,) = one.files
    assert (file.checkpoint, file.oldest, file.groups, file.file.rows) == (3, 1, (1, 4), 3)
    assert as_one_file(table, states.source, states.target) == one, "again: the same file"
    assert len(list(states.target.walk(""))) == 1


def test_a_column_that_came_later_is_null_in_older_rows(states):
    wider = columns(("k", "long"), ("v", "string"), ("w", "double"))
    one = as_one_file(states.of({1: "a"}, {2: "b"}, schema=wider), states.source, states.target)
    assert [(row["k"], row["w"]) for row in states.rows(one)] == [(1, None), (2, None)]


def test_what_it_is_not_made_for_is_copied_as_it_is(states):
    by_key = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    files = states.of({1: "a"}, {1: None})
    assert as_one_file(files, states.source, states.target) is None, "no rows"
    assert as_one_file(states.of({1: "a"}), states.source, states.target) is None, "one file already"
    odd = states.of({1: "a"}, {2: "b"}, schema=columns(("k", "long"), ("v", by_key)))
    assert as_one_file(odd, states.source, states.target) is None
    bare = msgspec.structs.replace(odd, columns={**KV, "fields": KV["fields"][:2]})
    assert as_one_file(bare, states.source, states.target) is None, "not as states are written"
    assert as_one_file(files, Location("s3://bucket/state"), states.target) is None
    assert list(states.target.walk("")) == []
