"""How an operator was computed in one checkpoint, and why. This explains what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.records.records import Computed

__all__ = ["Computing"]


@dataclass
class Computing:
    """Collects, while one operator runs, how it is computed."""

    workers: bool = False
    spark: bool = False
    reasons: dict[str, None] = field(default_factory=dict)
    """Why workers could not do it alone, in order. A dict, to keep each reason once."""
    spilled: int = 0
    """The bytes that workers have spilled to local disk because they did not fit into memory."""
    row_groups_read: int = 0
    """The number of row groups of the state's files that workers have read to look up rows. The statistics of the
    others rule them out."""
    row_groups: int = 0
    """The number of row groups of the files in which workers have looked up rows."""
    rows_in: int = 0
    """The number of rows that workers have got, and not looked up."""
    rows_out: int = 0
    """The number of rows that workers have emitted, without retractions and side outputs."""

    def note_workers(self) -> None:
        """Note that workers have run the operator's kernel."""
        self.workers = True

    def note_spark(self, reason: str | None = None) -> None:
        """Note that Spark has read or written rows, which takes several queries."""
        self.spark = True
        if reason is not None:
            self.note_why_not_workers(reason)

    def note_why_not_workers(self, reason: str) -> None:
        """Note a reason why workers cannot read and write the files themselves."""
        self.reasons[reason] = None

    def add_row_groups(self, read: int, total: int) -> None:
        """Add a worker's count of row groups: those that it has read, and all of the files that it has looked into."""
        self.row_groups_read += read
        self.row_groups += total

    def add_rows(self, taken: int, emitted: int) -> None:
        """Add the rows that workers have got from upstream, and those that they have emitted."""
        self.rows_in += taken
        self.rows_out += emitted

    def recorded(self) -> Computed | None:
        """Return the record for the ack, or None if the operator had nothing to do."""
        if not self.workers and not self.spark:
            return None
        return Computed(
            workers=self.workers,
            spark=self.spark,
            why=list(self.reasons) if self.spark else [],
            spilled=self.spilled,
            row_groups_read=self.row_groups_read,
            row_groups=self.row_groups,
            rows_in=self.rows_in if self.workers else None,
            rows_out=self.rows_out if self.workers else None,
        )
