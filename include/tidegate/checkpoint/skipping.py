"""Find input that no run will ever read, though nothing fails. Such a pipeline is not reported as healthy.

never read   input that a source skips for good. The source notices it while planning (`Planned.unread`), so the newest
             plan has the best figures, even if its entry was aborted
gaps         in an interval pipeline: time between its first interval and its last that no checkpoint covers
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import View
from tidegate.records.interval import Interval
from tidegate.records.records import Range, Unread

__all__ = ["counts", "gaps", "is_news", "making_up", "never_read"]


def never_read(view: View) -> dict[str, Unread]:
    """Return the input that the newest plan has skipped, by source."""
    for entry in reversed(view.entries):
        if entry.control is None and entry.rollback is None:
            return _skip_record(entry.plan.sources)
    return {}


def counts(view: View) -> dict[str, int]:
    """Return how many inputs each source of the newest plan has skipped; usually 0."""
    for entry in reversed(view.entries):
        if entry.control is None and entry.rollback is None:
            return {name: part.unread.count if part.unread else 0 for name, part in entry.plan.sources.items()}
    return {}


def is_news(sources: Mapping[str, Range], view: View) -> bool:
    """Return whether a plan that reads nothing is worth recording because the skipped input has changed."""
    return _counts(_skip_record(sources)) != _counts(never_read(view))


def gaps(ledger: Ledger, view: View) -> tuple[Interval, ...]:
    """Return the gaps that no checkpoint, completed or open, covers. Call it after reading the view."""
    plans = []
    for entry in view.entries:
        if entry.plan.by_interval and not entry.aborted:
            plans.append(entry.plan)
    if not plans or plans[-1].config.get("gaps") == "expected":
        return ()
    covered = {Interval.of_record(plan.interval) for plan in plans if plan.interval} | set(ledger.intervals())
    uncovered: list[Interval] = []
    upto = min(covered).start
    for interval in sorted(covered):
        if interval.start > upto:
            uncovered.append(Interval(upto, interval.start))
        upto = max(upto, interval.end)
    return tuple(uncovered)


def making_up(pipeline: str, missed: tuple[Interval, ...]) -> str:
    """Return the advice for filling gaps."""
    first, last = missed[0].start, missed[-1].end
    return (
        f"make them: airflow backfill create --dag-id {pipeline} --from-date {first.isoformat()} --to-date "
        f"{last.isoformat()}, which skips completed intervals; or tidegate run MODULE:pipeline --interval FROM/TO for "
        'each. If the gaps are intended, set gaps = "expected"'
    )


def _skip_record(sources: Mapping[str, Range]) -> dict[str, Unread]:
    return {name: part.unread for name, part in sources.items() if part.unread is not None}


def _counts(skipped: Mapping[str, Unread]) -> dict[str, int]:
    return {name: unread.count for name, unread in skipped.items()}
