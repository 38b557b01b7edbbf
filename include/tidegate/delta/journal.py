"""A table of rows in ascending order of a number, a few at a time: each commit adds rows after the last.

Whoever adds asks the table's own transaction how far it is, and commits at exactly the next version: so rows are there
once, whoever adds them, at once or after a crash. Small files become larger ones as more come: eight of a size are one
of the next, in the commit that adds the eighth. A file's name says from which number to which it goes, so a row is
found without reading the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tidegate.delta.arrow_types import arrow_schema, conform
from tidegate.delta.files.access import Location
from tidegate.delta.files.footers import StagedFile, open_parquet
from tidegate.delta.log.active_files import data_files
from tidegate.delta.log.cleanup import forget_log
from tidegate.delta.log.commits import CommitStamp, Committed, add_columns, create, replace
from tidegate.delta.log.files import DataFile
from tidegate.delta.log.snapshot import Snapshot, open_table
from tidegate.errors import Corrupt, TidegateError
from tidegate.records.records import Json

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Journal", "to_merge"]

FAN_IN = 8
MAX_ROWS = FAN_IN**3
"""Files with this many rows are not merged again: ten thousand rows are in forty files then."""

_NAME = re.compile(r"([0-9]{12})-([0-9]{12})-[0-9a-f]{16}\.parquet")
_RACES = 3
"""How often a reader starts again because others have merged what it was reading."""


@dataclass(frozen=True)
class Journal:
    """The table's location, its columns, and the one with the number (a long, its rows ascending)."""

    location: Location
    schema: Json
    number: str
    app_id: str
    """The application whose transaction says up to where rows have been added."""

    def opened(self) -> Snapshot | None:
        """Return the newest version; None: there are no rows yet."""
        return open_table(self.location)

    def last(self, snapshot: Snapshot | None) -> int:
        """Return the highest number that was ever added; 0: none."""
        return (snapshot.txn(self.app_id) or 0) if snapshot is not None else 0

    def add(self, snapshot: Snapshot | None, rows: pa.Table, stamp: CommitStamp) -> Committed | None:
        """Add rows, all after `last(snapshot)`. Return None if others have added some meanwhile: look again."""
        live = [*data_files(snapshot).values()] if snapshot is not None else []
        merged = to_merge(live, rows.num_rows)
        new = self._write([*merged, rows], stamp.attempt)
        committed = self._commit(snapshot, new, merged, stamp)  # if it fails, perhaps it is in the log: the file stays
        if committed is None:
            self.location.remove_files([new.path])
        else:
            self.location.remove_files(file.path for file in merged)
        return committed

    def read(self, columns: Sequence[str], only: int | None = None, after: int = 0) -> pa.Table:
        """Return the rows of the newest version after `after`, ascending; `only`: that with this number."""
        for race in range(_RACES):
            snapshot = self.opened()
            try:
                return self._read(snapshot, columns, only, after)
            except Corrupt:
                if race == _RACES - 1:
                    raise
        raise AssertionError("unreachable")

    def _read(self, snapshot: Snapshot | None, columns: Sequence[str], only: int | None, after: int) -> pa.Table:
        """Return the rows of a version. Raise Corrupt if others have merged its files since."""
        import pyarrow as pa
        import pyarrow.compute as pc

        spans = {path: _span(path) for path in data_files(snapshot)} if snapshot is not None else {}
        chosen = [
            path
            for path, (low, high) in sorted(spans.items())
            if high > after and (only is None or low <= only <= high)
        ]
        shape = arrow_schema(self.schema, list(columns))
        merged_rows = pa.concat_tables([shape.empty_table(), *(self._rows(path, shape) for path in chosen)])
        if only is not None:
            return merged_rows.filter(pc.field(self.number) == only)
        return merged_rows.filter(pc.field(self.number) > after) if after else merged_rows

    def clean(self, snapshot: Snapshot) -> None:
        """Remove files left by crashes, and the log's old part: nobody reads an older version."""
        with contextlib.suppress(TidegateError):
            live = set(data_files(snapshot))
            spans = [_span(path) for path in live]
            old = [path for path, _ in self.location.walk("") if _NAME.fullmatch(path) and path not in live]
            # Numbers that are there already are never committed again: whoever has written this file has lost.
            self.location.remove_files(path for path in old if any(_within(_span(path), span) for span in spans))
            forget_log(self.location, snapshot.version)

    @property
    def _names(self) -> list[str]:
        return [field["name"] for field in self.schema["fields"]]

    def _rows(self, path: str, shape: pa.Schema) -> pa.Table:
        with open_parquet(self.location, path) as file:
            stored = set(file.schema_arrow.names)
            rows = file.read(columns=[name for name in shape.names if name in stored])
        return conform(rows, shape, rows.num_rows, {})

    def _write(self, parts: Sequence[DataFile | pa.Table], attempt: str) -> StagedFile:
        """Write one file with all of these rows, durably."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        shape = arrow_schema(self.schema, self._names)
        read = [self._rows(part.path, shape) if isinstance(part, DataFile) else part for part in parts]
        rows = pa.concat_tables(read).sort_by(self.number)
        low, high = rows[self.number][0].as_py(), rows[self.number][-1].as_py()
        path = f"{low:012d}-{high:012d}-{attempt}.parquet"
        with self.location.create(path) as out:
            pq.write_table(rows, out, compression="zstd", use_dictionary=False, write_statistics=False)
        self.location.sync([path])
        stats = {"numRecords": rows.num_rows, "minValues": {self.number: low}, "maxValues": {self.number: high}}
        size = self.location.size(path)
        assert size is not None
        return StagedFile(path=path, size=size, rows=rows.num_rows, stats=msgspec.json.encode(stats).decode())

    def _commit(
        self, snapshot: Snapshot | None, new: StagedFile, merged: Sequence[DataFile], stamp: CommitStamp
    ) -> Committed | None:
        if snapshot is None:
            return create(self.location, self.schema, [new], stamp, properties={"delta.checkpointInterval": "20"})
        existing = {field["name"] for field in snapshot.schema["fields"]}
        fields = [field for field in self.schema["fields"] if field["name"] not in existing]
        if fields:
            step = dataclasses.replace(stamp, publishes=False)
            if add_columns(snapshot, fields, step) is None or (now := self.opened()) is None:
                return None
            snapshot = now
        return replace(snapshot, [new], merged, stamp)


def to_merge(files: Sequence[DataFile], new: int) -> list[DataFile]:
    """Return the files that are merged with this number of new rows."""
    remaining, chosen, rows = list(files), [], new
    while rows < MAX_ROWS:
        same = [file for file in remaining if (file.rows or 0) < MAX_ROWS and _tier(file.rows or 0) <= _tier(rows)]
        if len(same) < FAN_IN - 1:
            break
        chosen += same
        remaining = [file for file in remaining if file not in same]
        rows += sum(file.rows or 0 for file in same)
    return chosen


def _tier(rows: int) -> int:
    return int(math.log(max(rows, 1), FAN_IN) + 1e-9)


def _span(path: str) -> tuple[int, int]:
    match = _NAME.fullmatch(path)
    if match is None:
        raise Corrupt(
            f"the table has a file {path!r}, which tidegate has not written",
            expected="files that are named by the numbers of their rows",
            help="do not write to this table; move its folder away, and it begins anew",
            reason="NOT_OURS",
        )
    return int(match[1]), int(match[2])


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
