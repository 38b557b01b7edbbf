"""What lies at a pipeline's sources and will never be read by itself: it is told, and "well" is not said.

A source finds it while it plans (`Planned.unread`): so the newest plan knows it best, whatever became of its entry.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.model.records import Plan, Unread
from tidegate.model.view import View

__all__ = ["counts", "is_news", "never_read"]


def never_read(view: View) -> dict[str, Unread]:
    """By source, what the newest plan has passed by."""
    for entry in reversed(view.entries):
        if entry.control is None and entry.restart is None:
            return _of(entry.plan)
    return {}


def counts(view: View) -> dict[str, int]:
    """By source of the newest plan, how much it has passed by; mostly 0."""
    for entry in reversed(view.entries):
        if entry.control is None and entry.restart is None:
            return {name: part.unread.count if part.unread else 0 for name, part in entry.plan.sources.items()}
    return {}


def is_news(plan: Plan, view: View) -> bool:
    """Whether a plan that reads nothing has something to tell all the same: what is passed by, or is so no more."""
    return _counts(_of(plan)) != _counts(never_read(view))


def _of(plan: Plan) -> dict[str, Unread]:
    return {name: part.unread for name, part in plan.sources.items() if part.unread is not None}


def _counts(found: Mapping[str, Unread]) -> dict[str, int]:
    return {name: each.count for name, each in found.items()}
