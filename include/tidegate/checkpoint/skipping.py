"""What no run will do by itself, though nothing fails: it is told, and "well" is not said.

never read   input that a source passes by for good. It finds that while it plans (`Planned.unread`), so the newest
             plan knows it best, whatever became of its entry
gaps         of an interval pipeline: time between its first interval and its last that none of its checkpoints covers
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import View
from tidegate.records.interval import Interval
from tidegate.records.records import Plan, Unread

__all__ = ["counts", "gaps", "is_news", "making_up", "never_read"]


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


def gaps(ledger: Ledger, view: View) -> tuple[Interval, ...]:
    """Time between intervals that no checkpoint, completed or open, covers. To be read behind a view."""
    plans = [entry.plan for entry in view.entries if entry.plan.by_interval and not entry.aborted]
    if not plans or plans[-1].config.get("gaps") == "expected":
        return ()
    covered = {Interval.of_record(plan.interval) for plan in plans if plan.interval} | set(ledger.intervals())
    found: list[Interval] = []
    upto = min(covered).start
    for interval in sorted(covered):
        if interval.start > upto:
            found.append(Interval(upto, interval.start))
        upto = max(upto, interval.end)
    return tuple(found)


def making_up(pipeline: str, missed: tuple[Interval, ...]) -> str:
    """What to do about gaps."""
    first, last = missed[0].start, missed[-1].end
    return (
        f"make them: airflow backfill create --dag-id {pipeline} --from-date {first.isoformat()} --to-date "
        f"{last.isoformat()}, which leaves alone what is done; or tidegate run MODULE:pipeline --interval FROM/TO for "
        'each. If nothing belongs there, set gaps = "expected"'
    )


def _of(plan: Plan) -> dict[str, Unread]:
    return {name: part.unread for name, part in plan.sources.items() if part.unread is not None}


def _counts(found: Mapping[str, Unread]) -> dict[str, int]:
    return {name: each.count for name, each in found.items()}
