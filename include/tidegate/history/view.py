"""The one view of a checkpoint, which all commands that show checkpoints, the metrics, the pages and their API render.

It is made from an entry's records while they exist, and from its row of the history afterwards.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidegate.history.details import CheckpointDetails
from tidegate.history.row import CheckpointRow
from tidegate.records import typed
from tidegate.records.records import Json, State

__all__ = ["CheckpointView", "ListedCheckpoint"]


class ListedCheckpoint(CheckpointRow, frozen=True, kw_only=True):
    """A checkpoint in short. Durations are seconds, sizes bytes, times ISO 8601; null: none, or not measured."""

    state: State
    """The outcome, unless it is `rolled back` or `replaced`, which depend on later rollbacks and swaps."""
    undone_by: Annotated[int | None, msgspec.Meta(description="The rollback or swap that undid it")]
    replaced_by: Annotated[str | None, msgspec.Meta(description="The backfill that this swapped in")]

    @property
    def described_state(self) -> str:
        """The state, for people."""
        if self.replaced_by is not None:
            return f"replaced by backfill {self.replaced_by}"
        return self.state

    def document(self) -> Json:
        """Return it as JSON."""
        document: Json = msgspec.to_builtins(self)
        return document


class CheckpointView(ListedCheckpoint, frozen=True, kw_only=True):
    """All that is known of one checkpoint."""

    details: CheckpointDetails
    records_retained: bool
    """True if its records still exist. Otherwise this view is from the history."""

    def document(self) -> Json:
        """Return it as JSON."""
        document: Json = typed.document_of(self)
        return document

    @property
    def displayed_state(self) -> str:
        """The state, and whether a completed one is still missing on a table."""
        if self._is_pending:
            return "completed, unpublished"
        return self.state

    @property
    def described_state(self) -> str:
        """The same, for people."""
        if self._is_pending:
            return "completed, unpublished"
        return super().described_state

    @property
    def _is_pending(self) -> bool:
        return self.records_retained and self.published is None and self.state in ("completed", "rollback", "swap")

    @property
    def cause(self) -> str:
        """Why it was aborted; for an action, the person's note."""
        action = self.details.control or self.details.rollback
        if action is not None and self.outcome != "aborted":
            return action.reason
        return self.details.reason
