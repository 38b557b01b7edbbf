"""Positions in a Delta table."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tidegate.connectors.source import foreign_position_error
from tidegate.records.records import Json

__all__ = ["TablePosition"]


@dataclass(frozen=True)
class TablePosition:
    """A position in a table: up to which file of which version it was read."""

    table: str
    version: int
    sha: str | None
    """The hash of the version's commit file, to detect a version that was replaced. None: the file no longer
    existed."""
    index: int | None
    """The number of files of the version that were read. None: all."""
    is_snapshot: bool
    """True: `index` counts the files of the whole table at `version`, not the files that the version adds."""

    @property
    def json(self) -> Json:
        return asdict(self)

    def covers(self, other: TablePosition) -> bool:
        """Return whether reading up to this position includes everything read up to the other."""
        if self.table != other.table or self.version != other.version:
            return self.table == other.table and self.version > other.version
        if self.is_snapshot != other.is_snapshot and None not in (self.index, other.index):
            return False  # the indexes count different files
        return self.index is None or (other.index is not None and self.index >= other.index)

    @staticmethod
    def parse(start: Json, source: str) -> TablePosition:
        try:
            return TablePosition(**start)
        except TypeError:
            raise foreign_position_error(source, start, "a position of a DeltaTable source") from None
