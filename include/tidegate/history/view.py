"""The one view of a checkpoint, which all commands that show checkpoints, the metrics, the pages and their API render.

It is made from an entry's records while they are there, and from its row of the history afterwards.
"""

from __future__ import annotations

import msgspec

from tidegate.history.details import CheckpointDetails
from tidegate.history.row import CheckpointRow
from tidegate.records import typed
from tidegate.records.records import Json

__all__ = ["CheckpointView", "ListedCheckpoint"]


class ListedCheckpoint(CheckpointRow, frozen=True, kw_only=True):
    """A row as lists have it."""

    state: str
    """The outcome; or `rolled back` or `replaced`, which depend on later rollbacks and swaps."""
    undone_by: int | None
    """The rollback or swap since which it no longer counts."""
    replaced_by: str | None
    """The backfill that was swapped in by that."""

    @property
    def described_state(self) -> str:
        """The state, for people."""
        return f"replaced by backfill {self.replaced_by}" if self.replaced_by is not None else self.state

    def document(self) -> Json:
        """As JSON has it."""
        document: Json = msgspec.to_builtins(self)
        return document


class CheckpointView(ListedCheckpoint, frozen=True, kw_only=True):
    """All that is known of one checkpoint."""

    details: CheckpointDetails
    records_retained: bool
    """Whether its records are still there; else this is from the history."""

    def document(self) -> Json:
        """As JSON has it."""
        document: Json = typed.document_of(self)
        return document

    @property
    def shown_state(self) -> str:
        """The state, and whether a completed one is still missing on a table."""
        return "completed, unpublished" if self._is_pending else self.state

    @property
    def described_state(self) -> str:
        """The same, for people."""
        return "completed, unpublished" if self._is_pending else super().described_state

    @property
    def _is_pending(self) -> bool:
        return self.records_retained and self.published is None and self.state in ("completed", "rollback", "swap")

    @property
    def cause(self) -> str:
        """Why it was aborted, or what the person wrote whose act it is."""
        act = self.details.control or self.details.rollback
        return act.reason if act is not None and self.outcome != "aborted" else self.details.reason
