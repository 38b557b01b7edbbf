"""How an operator was computed in one checkpoint, and why in that way: what it has cost follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.records.records import Computed

__all__ = ["Computing"]


@dataclass
class Computing:
    """What is noted of one operator while it runs."""

    workers: bool = False
    spark: bool = False
    reasons: dict[str, None] = field(default_factory=dict)
    """Why not by workers, in order."""
    spilled: int = 0
    """The bytes that workers have written to local disk, because memory could not hold them."""
    row_groups_read: int = 0
    """Of the row groups of the state's files those that workers have read to look up rows: the statistics of the others
    say that they have none."""
    row_groups: int = 0
    """How many there were."""

    def note_workers(self) -> None:
        """Workers have, with its kernel."""
        self.workers = True

    def note_spark(self, why: str | None = None) -> None:
        """Spark has had a part in it: several queries."""
        self.spark = True
        if why is not None:
            self.note_why_not_workers(why)

    def note_why_not_workers(self, why: str) -> None:
        """Workers cannot, for this reason."""
        self.reasons[why] = None

    def add_row_groups(self, read: int, there: int) -> None:
        """Workers have looked up rows in files with so many row groups, and have read so many of these."""
        self.row_groups_read += read
        self.row_groups += there

    def recorded(self) -> Computed | None:
        """Return what is recorded. None: it had nothing to do."""
        if not self.workers and not self.spark:
            return None
        why = list(self.reasons) if self.spark else []
        return Computed(
            workers=self.workers,
            spark=self.spark,
            why=why,
            spilled=self.spilled,
            row_groups_read=self.row_groups_read,
            row_groups=self.row_groups,
        )
