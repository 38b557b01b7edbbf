"""Rows as Python objects, whatever bytes Spark has written into their texts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.delta.as_python import python_rows, python_values
from tidegate.records.readable import readable_text


def any_bytes(values: list[bytes | None]) -> pa.Array:
    """Texts with any bytes in them, as Spark writes them."""
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers())


def test_texts_that_are_no_utf8_are_written_so_that_nothing_is_lost() -> None:
    texts = [b"Gen\xe8ve", "Zürich".encode(), None, b"C:\\x \xff"]
    rows = pa.table({"id": [1, 2, 3, 4], "name": any_bytes(texts)})
    assert [row["name"] for row in python_rows(rows)] == ["Gen\\xE8ve", "Zürich", None, "C:\\x5Cx \\xFF"]
    assert [row["id"] for row in python_rows(rows)] == [1, 2, 3, 4]


def test_they_may_be_within_lists_structs_and_maps() -> None:
    inner = any_bytes([b"\xe8", b"x"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), inner)
    structs = pa.StructArray.from_arrays([inner, pa.array([1, None])], ["a", "n"])
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2]), inner, pa.array([1, 2]))
    assert python_values(lists) == [["\\xE8"], ["x"]]
    assert python_values(structs) == [{"a": "\\xE8", "n": 1}, {"a": "x", "n": None}]
    assert python_values(maps) == [[("\\xE8", 1)], [("x", 2)]]
    assert python_values(inner.dictionary_encode()) == ["\\xE8", "x"]
    assert python_values(pa.chunked_array([inner])) == ["\\xE8", "x"]


def test_rows_of_files_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"name": any_bytes([b"\xff"])}), tmp_path / "a.parquet")
    assert python_rows(pq.read_table(tmp_path / "a.parquet")) == [{"name": "\\xFF"}]


def test_what_was_text_stays_as_it_is() -> None:
    assert readable_text("\\xE8 Zürich".encode()) == ("\\xE8 Zürich", True)
    assert readable_text(b"\\xE8 \xe8") == ("\\x5CxE8 \\xE8", False)
