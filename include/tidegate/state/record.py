"""What an ack says of a keyed state: every file of it, so that the next job needs no other record.

A record is complete, not a difference: restoring any checkpoint is reading one record, and the publisher makes the
Delta table's live files exactly these, whatever it held before. A state that did not change is carried on from ack
to ack as it is. What is small (watermarks, counters) lies in the ack's `memory`, as plain JSON.
"""

from __future__ import annotations

from tidegate.model.records import Json, Struct
from tidegate.tables import StagedFile

__all__ = ["StateFile", "StateTable"]


class StateFile(Struct, frozen=True, kw_only=True):
    """One file of a keyed state: rows of some key groups, sorted by key, at most one row per key."""

    file: StagedFile
    checkpoint: int
    """The newest checkpoint that a row in it comes from."""
    groups: tuple[int, int]
    """The least and the greatest key group in it."""


class StateTable(Struct, frozen=True, kw_only=True):
    """A keyed state as of one checkpoint."""

    columns: Json
    """The Delta schema of its files: keys, values and what tidegate adds."""
    keys: list[str]
    groups: int
    """Into how many groups keys are hashed (`max_parallelism`): fixed when the state begins."""
    files: list[StateFile]
