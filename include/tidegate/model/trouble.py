"""What keeps a pipeline from going on that is written in no checkpoint, and whether its hooks were told of it."""

from __future__ import annotations

from typing import ClassVar

from tidegate.model.struct import Id, Record

__all__ = ["Told", "Trouble"]


class Trouble(Record, frozen=True, kw_only=True):
    """The last error that a run met: it could not plan, its job is tried again, or it could not publish.

    A hint, like latest.json: the next one replaces it, and a lost one is no loss.
    """

    title: ClassVar[str] = "trouble.json"

    run: str
    step: str
    """What was being done: a task's id, or a step of `tidegate run`."""
    entry: Id | None
    """The run's checkpoint, if it had one by then."""
    after: int
    """The last entry of the log by then: whatever comes behind it knows more."""
    kind: str
    reason: str
    what: str
    expected: str
    help: str
    unplanned: int = 0
    """So many runs in a row have ended and could not plan a checkpoint."""


class Told(Record, frozen=True, kw_only=True):
    """The pipeline's hooks were told of the suspension that is entry `id`. A lost hint has them told again."""

    title: ClassVar[str] = "told.json"

    id: Id
