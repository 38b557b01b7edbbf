"""The one view of a checkpoint, which all commands that show checkpoints, the metrics, the pages and their API render.

It is made from an entry's records while they are there, and from its row of the history afterwards.
"""

from __future__ import annotations

import msgspec

from tidegate.history.details import CheckpointDetails
from tidegate.history.row import CheckpointRow
from tidegate.records.records import Json

__all__ = ["CheckpointView", "ListedCheckpoint"]


class ListedCheckpoint(CheckpointRow, frozen=True, kw_only=True):
    """A row as lists have it."""

    state: str
    """The outcome; or `rolled back`, which depends on later rollbacks."""
    undone_by: int | None
    """The rollback since which it no longer counts."""

    def document(self) -> Json:
        """As JSON has it."""
        document: Json = msgspec.to_builtins(self)
        return document


class CheckpointView(ListedCheckpoint, frozen=True, kw_only=True):
    """All that is known of one checkpoint."""

    details: CheckpointDetails
    kept: bool
    """Whether its records are still there; else this is from the history."""

    @property
    def shown_state(self) -> str:
        """The state, and whether a completed one is still missing on a table."""
        pending = self.kept and self.published is None and self.state in ("completed", "rollback")
        return "completed, unpublished" if pending else self.state

    @property
    def cause(self) -> str:
        """Why it was aborted, or what the person wrote whose act it is."""
        act = self.details.control or self.details.rollback
        return act.reason if act is not None and self.outcome != "aborted" else self.details.reason
