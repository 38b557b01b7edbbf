"""Positions in a Delta table."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tidegate.errors import Invalid
from tidegate.records.records import Json

__all__ = ["TablePosition"]


@dataclass(frozen=True)
class TablePosition:
    """A position in a table: it was read up to file `index` of `version`, or all of it (None)."""

    table: str
    version: int
    sha: str | None
    """The hash of the version's commit file, so that a replaced version is noticed. None: the file no longer
    existed."""
    index: int | None
    is_snapshot: bool
    """True: `index` counts the files of the whole table as of `version`, not the files that it adds."""

    @property
    def json(self) -> Json:
        return asdict(self)

    def covers(self, other: TablePosition) -> bool:
        """Return whether all that lies before the other position lies before this one, too."""
        if self.table != other.table or self.version != other.version:
            return self.table == other.table and self.version > other.version
        if self.is_snapshot != other.is_snapshot and None not in (self.index, other.index):
            return False  # they count different files
        return self.index is None or (other.index is not None and self.index >= other.index)

    @staticmethod
    def of(start: Json, source: str) -> TablePosition:
        try:
            return TablePosition(**start)
        except TypeError:
            raise Invalid(
                f"source {source!r} cannot continue from position {start!r}",
                expected="a position of a DeltaTable source",
                help="give the source another name, so that it starts from scratch, or put the former source back",
                reason="FOREIGN_POSITION",
            ) from None
