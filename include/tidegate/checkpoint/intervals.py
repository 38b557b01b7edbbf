"""Check a run's data interval at the trigger (docs/protocol.md, section 8).

An *interval pipeline* plans by the run's interval alone. Its intervals are independent: processed in any order, several
at once, each again on request. All other pipelines are *continuous*: there an interval only shows whether the run is
too late, as the runs of an Airflow backfill are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline.graph.graph import Graph
from tidegate.protocol import rules
from tidegate.protocol.view import View
from tidegate.records.interval import Interval
from tidegate.records.records import Plan

__all__ = [
    "AlreadyCovered",
    "covered",
    "misfit",
    "refuse_archived",
    "refuse_changed_kind",
    "requested_interval",
    "with_index",
]


@dataclass(frozen=True)
class AlreadyCovered:
    """The run has nothing to do because its interval is done. This is a no-op with an explanation, not an error."""

    interval: Interval
    checkpoint: int
    """The checkpoint that completed or passed it."""
    why: str


def requested_interval(
    graph: Graph, times: tuple[datetime, datetime] | None, reprocess: bool
) -> rules.WantedInterval | None:
    """Return the interval that a run requests. Raise Invalid if the pipeline cannot process it."""
    interval = Interval.between(*times) if times is not None else None
    if graph.by_interval and (interval is None or interval.empty):
        problem = "has none"
        if interval is not None:
            problem = f"has an empty one: it begins and ends at {interval.start.isoformat()}"
        raise Invalid(
            f"pipeline {graph.name!r} reads by data interval, and this run {problem}",
            expected="a run with a data interval that is not empty",
            help="under Airflow use a timetable with data intervals (an interval, or CronDataIntervalTimetable); by "
            "hand: tidegate run MODULE:pipeline --interval 2026-01-01T00:00/2026-01-02T00:00",
            reason="NO_INTERVAL",
        )
    if reprocess and not graph.by_interval:
        raise Invalid(
            f"pipeline {graph.name!r} is continuous: a single interval of it cannot be processed again",
            expected="a pipeline whose sources all read by interval",
            help="to process everything again with other code, run it under a new name into new tables",
            reason="NOT_INDEPENDENT",
        )
    if interval is None:
        return None
    if graph.by_interval:
        _refuse_misfit(graph, interval)
    return rules.WantedInterval(interval, graph.by_interval, reprocess)


def _refuse_misfit(graph: Graph, interval: Interval) -> None:
    """Raise Invalid if an operator's result for this interval would be incomplete."""
    problems = []
    for stage in graph.operators:
        problem = stage.spec.intervals.misfit(interval)
        if problem is not None:
            problems.append(f"{stage.title}: {problem}")
    if problems:
        raise Invalid(
            "\n    ".join([f"pipeline {graph.name!r} cannot make interval {interval}:", *problems]),
            expected="intervals that each consist of whole windows",
            help="choose windows that divide the interval, or a schedule whose intervals are whole windows",
            reason="INTERVAL_SPLITS_WINDOWS",
        )


def with_index(wanted: rules.WantedInterval | None, ledger: Ledger) -> rules.WantedInterval | None:
    """Add the overlapping intervals that were completed below the view. Call it after reading the view."""
    if wanted is None or not wanted.independent:
        return wanted
    return replace(wanted, indexed=frozenset(ledger.overlapping_intervals(wanted.interval)))


def refuse_changed_kind(graph: Graph, view: View) -> None:
    """Refuse to continue an interval pipeline as a continuous one, or the other way round."""
    last = next((entry for entry in reversed(view.entries) if not entry.aborted), None)
    if last is None or last.plan.by_interval == graph.by_interval:
        return
    before, now = ("by interval", "continuously") if last.plan.by_interval else ("continuously", "by interval")
    raise Invalid(
        f"pipeline {graph.name!r} has run {before} up to checkpoint {last.id}, and its code reads {now} now",
        expected=f"sources that all read {before}",
        help="put the sources back, or start a new pipeline under a new name, with new tables",
        reason="PIPELINE_KIND_CHANGED",
    )


def refuse_archived(graph: Graph, plan: Plan, view: View, ledger: Ledger) -> None:
    """Refuse to process an interval again if its input files are removed: its rows would be replaced with nothing."""
    if not plan.by_interval or plan.interval is None:
        return
    archived = []
    for name, node in graph.sources.items():
        if node.source.may_be_archived and plan.sources[name].empty:
            archived.append(name)
    interval = Interval.of_record(plan.interval)
    previous = next((e for e in reversed(view.entries) if e.completed and e.interval == interval), None)
    if previous is not None:
        id, parts = previous.id, previous.plan.sources
        archived = [name for name in archived if name in parts and not parts[name].empty]
    else:
        if not all(part.empty for part in plan.sources.values()):
            return
        filled = ledger.filled(interval)
        if filled is None or not any(trace.get("files") for trace in filled.traces.values()):
            return
        id = filled.id
    if archived:
        raise Invalid(
            f"checkpoint {id} made interval {interval} of files of source {', '.join(archived)}, which are all missing "
            "now: processing it again would replace its rows with nothing",
            expected="the interval's files, as they were or corrected",
            help="put them back from where they were archived; if the interval is to be empty, put an empty file there "
            "(for Parquet one without rows)",
            reason="INTERVAL_ARCHIVED",
        )


def covered(answer: rules.Covered, wanted: rules.WantedInterval, ledger: Ledger) -> AlreadyCovered:
    """Return the no-op with an explanation."""
    interval = wanted.interval
    if not wanted.independent:
        assert answer.id is not None
        why = (
            f"interval {interval} is done: checkpoint {answer.id} passed it. A continuous pipeline reads its input "
            "once; to process everything again with other code, run it under a new name into new tables"
        )
        return AlreadyCovered(interval, answer.id, why)
    checkpoint = answer.id or 0
    if answer.id is None:
        filled = ledger.filled(interval)
        checkpoint = filled.id if filled is not None else 0
    why = (
        f"interval {interval} is done: checkpoint {checkpoint} completed it. To process it again and replace its rows: "
        "`tidegate run MODULE:pipeline --interval … --reprocess`, or an Airflow backfill with reprocessing"
    )
    return AlreadyCovered(interval, checkpoint, why)


def misfit(answer: rules.Misfit, wanted: rules.WantedInterval, graph: Graph) -> TidegateError:
    """Return the error for an interval that does not fit."""
    interval, other = wanted.interval, answer.other
    if answer.early:
        return Rejected(
            f"interval {interval} begins before the first interval of pipeline {graph.name!r}: its checkpoints reach "
            f"from {other.start.isoformat()} to {other.end.isoformat()}",
            expected="intervals after the first one: a continuous pipeline builds each checkpoint on the one before",
            help="to process older input, run the pipeline under a new name, into new tables, from there on",
            reason="BEFORE_FIRST_CHECKPOINT",
        )
    return Invalid(
        f"interval {interval} overlaps {other}, which pipeline {graph.name!r} has made: the rows in both would be "
        "duplicated",
        expected="intervals that equal those already made, or are disjoint from all of them",
        help=f"was the schedule changed? Make {other} again as it was; or start over under a new name, with new "
        "tables, and backfill them with the new schedule",
        reason="INTERVALS_OVERLAP",
    )
