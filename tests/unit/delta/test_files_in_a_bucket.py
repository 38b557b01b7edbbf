"""Files that are written to a bucket are there whole, or not at all, and what they were to replace stays whole."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.s3 import BUCKET, S3Server, s3
from tidegate.connectors.files.export_folder import LINE, ExportedFile, LogEntry, write_file
from tidegate.delta import Location
from tidegate.delta.files.copy import copy_files
from tidegate.delta.rewrite import write_parquet
from tidegate.errors import Unavailable
from tidegate.state.arrow.sorted_files import GROUP_ROWS, StateLayout, Writer

FOLDERS = count(1)
WHOLE = b"what was there before"
LARGE = 20 << 20  # of several parts


class Broken(Exception):
    """What fails while a file is written."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3() as server:
        yield server


@pytest.fixture(params=["bucket", "disk"])
def folder(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path) -> Location:
    if request.param == "disk":
        return Location(str(tmp_path))
    return Location(f"s3://{BUCKET}/files-{next(FOLDERS)}", server.options)


def put(folder: Location, path: str) -> None:
    with folder.create(path) as file:
        file.write(WHOLE)


def refuse_parts_left_over(folder: Location, requests: list[str]) -> None:
    """Each upload of several parts that was begun is completed, or taken back: parts cost money forever."""
    begun = [request for request in requests if request.endswith("?uploads=")]
    found = (re.match(r"(?:DELETE|POST) .*\?uploadId=(.*)", request) for request in requests)
    ended = {match[1] for match in found if match}  # a client may send a request again whose answer was late
    assert len(begun) == len(ended)


def plainly(file: Any, size: int) -> None:
    file.write(b"x" * size)
    raise Broken


def compressed(file: Any, size: int) -> None:
    import random

    with pa.CompressedOutputStream(file, "gzip") as stream:
        stream.write(random.Random(1).randbytes(size))
        raise Broken


def as_parquet(file: Any, size: int) -> None:
    rows = pa.table({"text": ["x" * size]})
    with pq.ParquetWriter(file, rows.schema, compression="none") as writer:
        writer.write_table(rows)
        raise Broken


def closed_by_hand(file: Any, size: int) -> None:
    file.write(b"x" * size)
    file.close()
    raise Broken


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("write", [plainly, compressed, as_parquet, closed_by_hand])
def test_a_file_whose_writing_fails_is_not_there(
    server: S3Server, folder: Location, write: Callable[[Any, int], None], size: int
) -> None:
    with server.asked() as requests, pytest.raises(Broken), folder.create("new/file") as file:
        write(file, size)
    assert folder.walk("") == []
    refuse_parts_left_over(folder, requests)


def test_an_object_stays_whole_when_what_is_to_replace_it_fails(server: S3Server) -> None:
    folder = Location(f"s3://{BUCKET}/files-{next(FOLDERS)}", server.options)
    put(folder, "file")
    for write in (plainly, compressed, as_parquet, closed_by_hand):
        with pytest.raises(Broken), folder.create("file") as file:
            write(file, LARGE)
    assert folder.read("file") == WHOLE


def test_a_file_that_is_written_whole_is_there(folder: Location) -> None:
    with folder.create("large") as file:
        file.write(b"x" * LARGE)
    with folder.create("gzip") as file, pa.CompressedOutputStream(file, "gzip") as stream:
        stream.write(WHOLE)
    with folder.create("empty") as file:
        assert file.tell() == 0
    assert folder.read("large") == b"x" * LARGE
    assert pa.CompressedInputStream(io.BytesIO(folder.read("gzip") or b""), "gzip").read() == WHOLE
    assert folder.read("empty") == b""


def damaged_lines(tmp_path: Path) -> Location:
    """A staged file of lines whose second half cannot be read."""
    staged = Location(str(tmp_path / "staged"))
    with staged.create("lines.parquet") as file:
        lines = pa.table({LINE: [f"{number:099d}" for number in range(40_000)]})
        pq.write_table(lines, file, compression="none", use_dictionary=False, row_group_size=10_000)
    path = staged.local("lines.parquet")
    data = bytearray(path.read_bytes())
    middle = data.index(b"%099d" % 20_000)
    data[middle - 64 : middle + 64] = b"\xff" * 128
    path.write_bytes(data)
    return staged


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_an_export_that_fails_in_the_middle_of_a_file_leaves_the_whole_one(
    server: S3Server, tmp_path: Path, compression: str
) -> None:
    """Another process has exported the file already, and this one, which is late, fails."""
    export = Location(f"s3://{BUCKET}/files-{next(FOLDERS)}", server.options)
    put(export, "part.csv")
    file = ExportedFile(staged="lines.parquet", path="part.csv", rows=40_000)
    entry = LogEntry(checkpoint=1, after=None, app="a", format="csv", compression=compression, files=[file])
    with pytest.raises((pa.ArrowException, OSError)):
        write_file(entry, damaged_lines(tmp_path), file, export, "part.csv")
    assert export.read("part.csv") == WHOLE


def test_a_copy_that_fails_in_the_middle_leaves_the_whole_one(
    folder: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Location(str(tmp_path / "source"))
    put(folder, "file")
    put(source, "file")

    class Torn(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError("the disk does not answer")
            return super().read(size)

    opened = Location.open
    monkeypatch.setattr(
        Location, "open", lambda self, path: Torn(b"y" * LARGE) if self is source else opened(self, path)
    )
    with pytest.raises(Unavailable, match="the disk does not answer"):
        copy_files(source, folder, ["file"])
    assert folder.read("file") == WHOLE
    assert [path for path, _ in folder.walk("") if not path.startswith("source/")] == ["file"]


def test_rows_that_stop_coming_are_no_file_of_a_table(folder: Location) -> None:
    rows = pa.table({"text": [str(number) for number in range(1000)]})

    def failing() -> Iterator[pa.Table]:
        yield rows
        raise Broken

    with pytest.raises(Broken):
        write_parquet(folder, "part.parquet", rows.schema, failing())
    assert folder.walk("") == []


def test_a_state_whose_rows_stop_coming_is_no_file(folder: Location) -> None:
    rows = pa.table({"k": pa.array(range(2 * GROUP_ROWS), pa.int64())})
    layout = StateLayout(("k",), rows.schema, folder.options)

    def write() -> None:
        writer = Writer(layout, folder.full("state.parquet"))
        writer.write(rows)
        raise Broken

    with pytest.raises(Broken):
        write()
    assert folder.walk("") == []
