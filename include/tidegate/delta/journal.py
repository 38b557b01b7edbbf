"""An append-only table whose rows are in ascending order of a number. Each commit adds a few rows after the last one.

A writer reads from the table's transaction up to which number rows have been added, and commits exactly the next
version. So each row is added once, even with concurrent writers and after crashes. Small files are merged in tiers:
the commit that would add the eighth file of a size merges all eight into one of the next size. A file's name contains
its first and last number, so a row is found without reading other files.
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
"""Files with this many rows are not merged again. Ten thousand rows are in about forty files."""

_NAME = re.compile(r"([0-9]{12})-([0-9]{12})-[0-9a-f]{16}\.parquet")
_TRIES = 3
"""The number of times that a read is tried, since a writer may merge the files that it reads."""


@dataclass(frozen=True)
class Journal:
    """An append-only table with an ascending number."""

    location: Location
    schema: Json
    number: str
    """The name of the column with the number, a long."""
    app_id: str
    """The app id of the transaction that records up to which number rows have been added."""

    def opened(self) -> Snapshot | None:
        """Return the newest version, or None if the table does not exist yet."""
        return open_table(self.location)

    def last(self, snapshot: Snapshot | None) -> int:
        """Return the highest number that was ever added, or 0."""
        if snapshot is None:
            return 0
        return snapshot.txn(self.app_id) or 0

    def add(self, snapshot: Snapshot | None, rows: pa.Table, stamp: CommitStamp) -> Committed | None:
        """Add rows, all after `last(snapshot)`. Return None if another writer was faster: the caller opens the table
        again."""
        live = [*data_files(snapshot).values()] if snapshot is not None else []
        merged = to_merge(live, rows.num_rows)
        new = self._write([*merged, rows], stamp.attempt)
        # If this raises, the commit may be in the log nevertheless, so the new file stays.
        committed = self._commit(snapshot, new, merged, stamp)
        if committed is None:
            self.location.remove_files([new.path])
        else:
            self.location.remove_files(file.path for file in merged)
        return committed

    def read(self, columns: Sequence[str], only: int | None = None, after: int = 0) -> pa.Table:
        """Return the newest version's rows after number `after`, ascending. only: return only the row with this
        number."""
        for attempt in range(_TRIES):
            snapshot = self.opened()
            try:
                return self._read(snapshot, columns, only, after)
            except Corrupt:
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _read(self, snapshot: Snapshot | None, columns: Sequence[str], only: int | None, after: int) -> pa.Table:
        """Return the rows of a version. Raise Corrupt if its files have been merged and deleted since."""
        import pyarrow as pa
        import pyarrow.compute as pc

        schema = arrow_schema(self.schema, list(columns))
        tables = [schema.empty_table()]
        paths = sorted(data_files(snapshot)) if snapshot is not None else []
        for path in paths:
            low, high = _span(path)
            if high > after and (only is None or low <= only <= high):
                tables.append(self._rows(path, schema))
        rows = pa.concat_tables(tables)
        if only is not None:
            return rows.filter(pc.field(self.number) == only)
        if after:
            return rows.filter(pc.field(self.number) > after)
        return rows

    def clean(self, snapshot: Snapshot) -> None:
        """Remove files left by crashes, and the old part of the log. Older versions are never read."""
        with contextlib.suppress(TidegateError):
            live = set(data_files(snapshot))
            spans = [_span(path) for path in live]
            unused = []
            for path, _ in self.location.walk(""):
                # Numbers in the table are never added again, so the writer of such a file has lost its race.
                if path not in live and _NAME.fullmatch(path) and _is_within_any(_span(path), spans):
                    unused.append(path)
            self.location.remove_files(unused)
            forget_log(self.location, snapshot.version)

    @property
    def _names(self) -> list[str]:
        return [field["name"] for field in self.schema["fields"]]

    def _rows(self, path: str, schema: pa.Schema) -> pa.Table:
        with open_parquet(self.location, path) as file:
            stored = set(file.schema_arrow.names)
            rows = file.read(columns=[name for name in schema.names if name in stored])
        return conform(rows, schema, rows.num_rows, {})

    def _write(self, parts: Sequence[DataFile | pa.Table], attempt: str) -> StagedFile:
        """Write all rows to one file, durably."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = arrow_schema(self.schema, self._names)
        tables = []
        for part in parts:
            tables.append(self._rows(part.path, schema) if isinstance(part, DataFile) else part)
        rows = pa.concat_tables(tables).sort_by(self.number)
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
            if add_columns(snapshot, fields, dataclasses.replace(stamp, publishes=False)) is None:
                return None
            snapshot = self.opened()
            if snapshot is None:
                return None
        return replace(snapshot, [new], merged, stamp)


def to_merge(files: Sequence[DataFile], new: int) -> list[DataFile]:
    """Return the files to merge with this number of new rows."""
    remaining, chosen, rows = list(files), [], new
    while rows < MAX_ROWS:
        mergeable = [file for file in remaining if (file.rows or 0) < MAX_ROWS]
        tier = [file for file in mergeable if _tier(file.rows or 0) <= _tier(rows)]
        if len(tier) < FAN_IN - 1:
            break
        chosen += tier
        remaining = [file for file in remaining if file not in tier]
        rows += sum(file.rows or 0 for file in tier)
    return chosen


def _tier(rows: int) -> int:
    return int(math.log(max(rows, 1), FAN_IN) + 1e-9)


def _span(path: str) -> tuple[int, int]:
    match = _NAME.fullmatch(path)
    if match is None:
        raise Corrupt(
            f"the table has a file {path!r}, which tidegate did not write",
            expected="files that are named by the numbers of their rows",
            help="do not write to this table; move its folder away, and it starts again empty",
            reason="NOT_OURS",
        )
    return int(match[1]), int(match[2])


def _is_within_any(inner: tuple[int, int], spans: Sequence[tuple[int, int]]) -> bool:
    return any(low <= inner[0] and inner[1] <= high for low, high in spans)
