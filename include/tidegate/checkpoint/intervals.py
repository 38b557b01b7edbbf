"""A run's data interval at the trigger: what it asks for, and why it may get nothing (docs/protocol.md, section 8).

An *interval pipeline* plans by the run's interval and nothing else. Its intervals are independent: made in any
order, several at once, each again if somebody asks for it. All others are *continuous*: there an interval only
tells whether the run comes too late, as those of a backfill do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol import rules as protocol
from tidegate.protocol.view import View
from tidegate.records.interval import Interval
from tidegate.records.records import Plan

__all__ = ["AlreadyCovered", "covered", "misfit", "refuse_archived", "refuse_other_kind", "wanted_by", "with_index"]


@dataclass(frozen=True)
class AlreadyCovered:
    """The run has nothing to do, for its interval is done. No error: a no-op that says so."""

    interval: Interval
    by: int
    """The checkpoint that did it, or went past it."""
    why: str


def wanted_by(graph: Graph, given: tuple[datetime, datetime] | None, reprocess: bool) -> protocol.WantedInterval | None:
    """What a run with this interval asks for; Invalid if the pipeline cannot give it."""
    interval = Interval.of(*given) if given is not None else None
    if graph.by_interval and (interval is None or interval.empty):
        raise Invalid(
            f"pipeline {graph.name!r} reads by data interval, and this run "
            + (f"has none: it begins and ends at {interval.start.isoformat()}" if interval else "has none"),
            expected="a run with a data interval in which some time lies",
            help="under Airflow use a timetable with data intervals (an interval, or CronDataIntervalTimetable); by "
            "hand: tidegate run MODULE:pipeline --interval 2026-01-01T00:00/2026-01-02T00:00",
            reason="NO_INTERVAL",
        )
    if reprocess and not graph.by_interval:
        raise Invalid(
            f"pipeline {graph.name!r} is continuous: what it made of one interval cannot be made again by itself",
            expected="a pipeline whose sources all read by interval",
            help="to make it all again with other code, run it under a new name into new tables",
            reason="NOT_INDEPENDENT",
        )
    return protocol.WantedInterval(interval, graph.by_interval, reprocess) if interval is not None else None


def with_index(wanted: protocol.WantedInterval | None, ledger: Ledger) -> protocol.WantedInterval | None:
    """With what was completed of it below the view, and overlaps it. To be called when the view has been read."""
    if wanted is None or not wanted.independent:
        return wanted
    return replace(wanted, indexed=frozenset(ledger.intervals_at(wanted.interval)))


def refuse_other_kind(graph: Graph, view: View) -> None:
    """A pipeline that has run by interval cannot go on as a continuous one, nor the other way round."""
    last = next((entry for entry in reversed(view.entries) if not entry.aborted), None)
    if last is None or last.plan.by_interval == graph.by_interval:
        return
    before, now = ("by interval", "continuously") if last.plan.by_interval else ("continuously", "by interval")
    raise Invalid(
        f"pipeline {graph.name!r} has run {before} up to checkpoint {last.id}, and its code reads {now} now",
        expected=f"sources that all read {before}",
        help="put the sources back, or start a new pipeline under a new name, with tables of its own",
        reason="PIPELINE_KIND_CHANGED",
    )


def refuse_archived(graph: Graph, plan: Plan, view: View, ledger: Ledger) -> None:
    """An interval that had input, and whose files are gone: to make it again would replace its rows with nothing."""
    if not plan.by_interval or plan.interval is None:
        return
    gone = [name for name, each in graph.sources.items() if each.source.may_be_archived and plan.sources[name].empty]
    interval = Interval.of_record(plan.interval)
    done = next((e for e in reversed(view.entries) if e.completed and e.interval == interval), None)
    if done is not None:
        id, gone = done.id, [name for name in gone if name in done.plan.sources and not done.plan.sources[name].empty]
    else:
        filled = ledger.filled(interval) if all(part.empty for part in plan.sources.values()) else None
        if filled is None or not any(trace.get("files") for trace in filled.traces.values()):
            return
        id = filled.id
    if gone:
        raise Invalid(
            f"checkpoint {id} made interval {interval} of files of source {', '.join(gone)}, and none are there now: "
            "to make it again would replace its rows with nothing",
            expected="the interval's files, as they were or corrected",
            help="put them back from where they were archived; if it is to be empty, put an empty file there (of "
            "Parquet one without rows), which says so",
            reason="INTERVAL_ARCHIVED",
        )


def covered(answer: protocol.Covered, wanted: protocol.WantedInterval, ledger: Ledger) -> AlreadyCovered:
    """The no-op, in words."""
    interval = wanted.interval
    if not wanted.independent:
        assert answer.id is not None
        why = (
            f"interval {interval} is done: checkpoint {answer.id} went past it. A continuous pipeline reads its input "
            "once; to make it all again with other code, run it under a new name into new tables"
        )
        return AlreadyCovered(interval, answer.id, why)
    filled = ledger.filled(interval) if answer.id is None else None
    by = filled.id if filled is not None else answer.id or 0
    why = (
        f"interval {interval} is done: checkpoint {by} completed it. To make it again and replace its rows: "
        "`tidegate run MODULE:pipeline --interval … --reprocess`, or an Airflow backfill with reprocessing"
    )
    return AlreadyCovered(interval, by, why)


def misfit(answer: protocol.Misfit, wanted: protocol.WantedInterval, graph: Graph) -> TidegateError:
    """The refusal, in words."""
    interval, other = wanted.interval, answer.other
    if answer.early:
        return Rejected(
            f"interval {interval} begins before the first one that pipeline {graph.name!r} was given: "
            f"its checkpoints reach from {other.start.isoformat()} to {other.end.isoformat()}",
            expected="intervals behind the first one: a continuous pipeline builds each checkpoint on the one before",
            help="to process older input, run the pipeline under a new name, into tables of its own, from there on",
            reason="BEFORE_FIRST_CHECKPOINT",
        )
    return Invalid(
        f"interval {interval} overlaps {other}, which pipeline {graph.name!r} has made: rows of both would be there "
        "twice",
        expected="intervals that are the same as those already made, or disjoint from all of them",
        help=f"was the schedule changed? Make {other} again as it was; or start anew under a new name, with tables of "
        "its own, and backfill them with the new schedule",
        reason="INTERVALS_OVERLAP",
    )
