"""How far a Delta table was read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tidegate.errors import Invalid
from tidegate.records.records import Json

if TYPE_CHECKING:
    pass

__all__ = ["TablePosition"]


@dataclass(frozen=True)
class TablePosition:
    """How far a table was read: up to file `index` of `version`, or all of it (None)."""

    table: str
    version: int
    sha: str | None
    """Of the version's commit file, so that another one under the same number is noticed; None: it was gone."""
    index: int | None
    is_snapshot: bool
    """Whether `index` counts the files of the whole table as of `version`, not those that it adds."""

    @property
    def json(self) -> Json:
        return asdict(self)

    @staticmethod
    def of(start: Json, source: str) -> TablePosition:
        try:
            return TablePosition(**start)
        except TypeError:
            raise Invalid(
                f"source {source!r} cannot go on from position {start!r}",
                expected="a position of a DeltaTable source",
                help="give the source another name, so that it starts afresh, or put the former source back",
                reason="FOREIGN_POSITION",
            ) from None
