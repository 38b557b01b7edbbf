"""One row of the history, which outlives a checkpoint's records. Pure, from its records.

Lists are sorted and filtered by columns; everything else is in `details`. No decision depends on it. Times are by the
writers' clocks.

A measure is a column with a `Measure`: declare it here, and compute it in `row_of`. Everything that shows measures
(`show`, `summary`, `diff`, `explain`, metrics, the pages and their API) iterates over MEASURES.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR
from typing import Annotated, Any, Final, Literal, get_type_hints

import msgspec

from tidegate.checkpoint.suspension import STATE_AFTER
from tidegate.history.details import CheckpointDetails, JobDetails, StateSize, details_of, seconds_between
from tidegate.protocol.verdicts import unanswered
from tidegate.protocol.view import Entry
from tidegate.records.moments import moment_of
from tidegate.records.records import Amount, Json, Published, sum_of, work_of

__all__ = ["MEASURES", "PLOTTED", "CheckpointRow", "HistoryRow", "Measure", "row_of", "state_name"]

TEXT = 500
"""Longer reasons are cut in the column; `details` has them in full."""
WORST_LAST = ("pass", "warn", "quarantine", "hold", "abort")
"""Verdicts, from good to bad."""
WRITING = ("stage ", "send ")
"""Prefixes of the steps that write output. All other steps read or compute."""


@dataclass(frozen=True)
class Measure:
    """The heading, unit and metric of a measured column."""

    label: str
    """In lower case."""
    unit: Literal["s", "rows", "bytes", "rows/s", "times"]
    help: str
    """Help text, phrased to follow "5 s …" or the label."""
    wait: bool = False
    """True for time that the checkpoint spends waiting: `explain` names these."""
    plotted: bool = False
    """True if the page of plots shows it."""
    metric: str = ""
    """The name of its metric, about the last completed checkpoint. Durations are in milliseconds."""
    metric_help: str = ""


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns. Null if not applicable or not measured."""

    id: int
    kind: str
    """scheduled, manual, control or fork, as in the plan; restart for a rollback, swap for a swap."""
    outcome: str
    """completed, aborted, rollback, swap, suspended …; open or held while it is not decided."""
    reason: str
    why: str
    quotes_rows: bool | None
    """False if neither `why` nor the details quote the value of a row. Null if an older version wrote it."""
    by: str
    run: str
    attempt: str
    base: int | None
    generation: int
    back_to: int | None
    """For a rollback, its target; for a swap, where its backfill began. 0 is the beginning."""
    backfill: str | None
    """The backfill that it swaps in."""
    interval: str | None
    planned: str
    decided: str | None
    published: str | None
    seconds: Annotated[
        float | None,
        Measure(
            "duration",
            "s",
            "from the plan to the decision",
            plotted=True,
            metric="lastCheckpointDuration",
            metric_help="From its plan to its decision, in ms.",
        ),
    ]
    plan_seconds: Annotated[
        float | None, Measure("planning", "s", "in the trigger, until the plan was written: not part of the duration")
    ]
    delay_seconds: Annotated[
        float | None,
        Measure(
            "start delay",
            "s",
            "from the plan until the last job began",
            wait=True,
            plotted=True,
            metric="checkpointStartDelay",
            metric_help="From its plan until its last job began, in ms.",
        ),
    ]
    align_seconds: Annotated[
        float | None,
        Measure(
            "alignment",
            "s",
            "between the first and the last ack of a job's upstream jobs",
            wait=True,
            metric="checkpointAlignmentTime",
            metric_help="Between the first and the last ack of a job's upstream jobs, in ms.",
        ),
    ]
    """For the job that had to wait longest."""
    sync_seconds: Annotated[
        float | None,
        Measure(
            "sync",
            "s",
            "reading, computing, state, gates and staging, of the slowest job",
            metric="checkpointSyncDuration",
            metric_help="Reading, computing, state, gates and staging of its slowest job, in ms.",
        ),
    ]
    """The longest sync part of a job (records/measures.py)."""
    process_seconds: Annotated[float | None, Measure("processing", "s", "of the sync part, without staging")]
    stage_seconds: Annotated[float | None, Measure("staging", "s", "writing output")]
    async_seconds: Annotated[
        float | None,
        Measure(
            "async",
            "s",
            "making files durable, concurrently",
            metric="checkpointAsyncDuration",
            metric_help="Making files durable concurrently, in ms.",
        ),
    ]
    publish_seconds: Annotated[
        float | None,
        Measure(
            "publish",
            "s",
            "from the decision until every table shows it",
            wait=True,
            plotted=True,
            metric="publishDuration",
            metric_help="From its decision until every table showed it, in ms.",
        ),
    ]
    queries: Annotated[
        int | None, Measure("Spark queries", "times", "computations that its jobs requested from Spark", plotted=True)
    ]
    query_seconds: Annotated[float | None, Measure("in queries", "s", "in which its jobs waited for these")]
    query_plan_seconds: Annotated[float | None, Measure("planned by Spark", "s", "of these, until Spark had a plan")]
    query_run_seconds: Annotated[float | None, Measure("run by Spark", "s", "of these, in which a Spark job ran")]
    task_seconds: Annotated[float | None, Measure("Spark task time", "s", "of all Spark tasks together")]
    analyses: Annotated[
        int | None, Measure("Spark analyses", "times", "questions about a plan, such as for its columns")
    ]
    """Null unless its jobs are clients of a Spark server: only these need requests for an analysis."""
    analysis_seconds: Annotated[float | None, Measure("in analyses", "s", "in which its jobs waited for these")]
    spark_jobs: Annotated[int | None, Measure("Spark jobs", "times", "of its queries")]
    spark_stages: Annotated[int | None, Measure("Spark stages", "times", "of these that ran")]
    spark_tasks: Annotated[int | None, Measure("Spark tasks", "times", "of these")]
    jobs: int
    acked: int
    rows_in: Annotated[int | None, Measure("rows in", "rows", "rows read from all sources", plotted=True)]
    """Null if a source does not report its number of rows."""
    bytes_in: Annotated[int | None, Measure("bytes in", "bytes", "bytes read from all sources")]
    rate: Annotated[float | None, Measure("rows in per second", "rows/s", "of the longest sync part", plotted=True)]
    rows_out: Annotated[int | None, Measure("rows out", "rows", "rows staged for all sinks", plotted=True)]
    bytes_out: Annotated[int | None, Measure("bytes out", "bytes", "bytes staged for all sinks")]
    late: Annotated[int | None, Measure("late rows", "rows", "rows that arrived after the watermark", plotted=True)]
    judged: Annotated[int | None, Measure("rows judged", "rows", "rows that gates have judged")]
    quarantined: Annotated[int | None, Measure("quarantined", "rows", "rows that gates have quarantined", plotted=True)]
    released: int | None
    verdict: str | None
    """The worst verdict of its gates."""
    state_rows: Annotated[
        int | None,
        Measure("stored state rows", "rows", "rows in the files of states: a key has one in each file not merged yet"),
    ]
    state_bytes: Annotated[
        int | None, Measure("state size", "bytes", "the full size of all keyed states", plotted=True)
    ]
    state_delta: Annotated[int | None, Measure("state delta", "bytes", "state that the checkpoint itself has written")]
    processed_rows: Annotated[
        int | None, Measure("in flight, processed (rows)", "rows", "rows that earlier checkpoints had left in flight")
    ]
    """Null if none were in flight."""
    processed_bytes: Annotated[int | None, Measure("in flight, processed", "bytes", "bytes of these")]
    persisted_rows: Annotated[
        int | None,
        Measure(
            "in flight, persisted (rows)",
            "rows",
            "rows that jobs have yet to read: a part of the checkpoint",
        ),
    ]
    persisted_bytes: Annotated[int | None, Measure("in flight, persisted", "bytes", "bytes of these")]
    watermark: str | None
    """The lowest of its sources that are not idle."""
    lag_seconds: Annotated[
        float | None, Measure("watermark lag", "s", "how far event time was behind the clock", plotted=True)
    ]
    """As of its decision."""
    waiting_rows: Annotated[
        int | None, Measure("rows waiting", "rows", "rows that waited at its sources after its range", plotted=True)
    ]
    """An upper bound, as of the plan. Like the other backlogs, null if no source can measure it."""
    waiting_files: Annotated[
        int | None, Measure("files waiting", "times", "files that waited at its sources after its range", plotted=True)
    ]
    waiting_bytes: Annotated[
        int | None, Measure("bytes waiting", "bytes", "bytes that waited at its sources after its range", plotted=True)
    ]
    waiting_seconds: Annotated[
        float | None, Measure("oldest waiting", "s", "the age of the oldest waiting input", plotted=True)
    ]


def _measures() -> dict[str, Measure]:
    measures = {}
    for name, hint in get_type_hints(CheckpointRow, include_extras=True).items():
        for annotation in getattr(hint, "__metadata__", ()):
            if isinstance(annotation, Measure):
                measures[name] = annotation
    return measures


MEASURES: Final[Mapping[str, Measure]] = _measures()
"""The measured columns. Summaries have percentiles of each."""
PLOTTED: Final[tuple[str, ...]] = tuple(name for name, measure in MEASURES.items() if measure.plotted)
"""The measures that the pages plot, in the order of the plots."""


class HistoryRow(CheckpointRow, frozen=True, kw_only=True):
    """The row that the history stores."""

    details: CheckpointDetails


def row_of(
    entry: Entry,
    published: Published | None,
    states: Mapping[str, StateSize],
    in_flight: Mapping[str, Amount],
) -> HistoryRow:
    """Return the row from the present records. Once the entry is settled, it never changes.

    in_flight: by job, how much it has yet to read.
    """
    plan, decision = entry.plan, entry.decision
    details = details_of(entry, published, states, in_flight)
    jobs = list(details.jobs.values())
    decided = decision.created if decision is not None else None
    action = entry.control or entry.rollback or plan.drain or plan.divert
    line = entry.rollback.line if entry.rollback is not None else None
    watermark = _watermark(jobs)
    return HistoryRow(
        id=entry.id,
        kind="swap" if line is not None else plan.kind,
        outcome=state_name(entry),
        reason=decision.reason if decision is not None and entry.control is None else "",
        why=_why(entry)[:TEXT],
        quotes_rows=plan.quotes_rows,
        by=action.by if action is not None else "",
        run=plan.run,
        attempt=plan.attempt,
        base=plan.base,
        generation=plan.generation,
        back_to=entry.rollback.target if entry.rollback is not None else None,
        backfill=line.name if line is not None else None,
        interval=str(entry.interval) if entry.interval is not None else None,
        planned=plan.created,
        decided=decided,
        published=published.created if published is not None else None,
        seconds=seconds_between(plan.created, decided),
        plan_seconds=plan.planning_s,
        **_durations(jobs),
        publish_seconds=seconds_between(decided, published.created) if published is not None else None,
        **_spark(jobs),
        jobs=len(plan.acks),
        acked=len(jobs),
        **_input(entry, details),
        rows_out=sum(details.staged_rows.values()) if jobs else None,
        bytes_out=sum(details.staged_bytes.values()) if jobs else None,
        late=_late(jobs),
        **_judged(details),
        state_rows=_sum(size.rows for size in states.values()),
        state_bytes=_sum(size.bytes for size in states.values()),
        state_delta=_sum(size.delta for size in states.values()),
        **_in_flight(jobs, in_flight),
        watermark=watermark,
        lag_seconds=_lag(watermark, decided),
        **_waiting(details),
        details=details,
    )


def state_name(entry: Entry) -> str:
    """Return the entry's state in a word, apart from `rolled back` and `replaced`, which later entries determine."""
    if entry.control is not None:
        return STATE_AFTER[entry.control.action]
    if entry.decision is None:
        return "held" if unanswered(entry) else "open"
    if entry.rollback is not None and entry.completed:
        if entry.rollback.line is None:
            return "rollback"
        return "swap"
    return entry.decision.outcome


def _why(entry: Entry) -> str:
    """Return the reason recorded with the decision, or with the action that the entry records."""
    divert = entry.plan.divert
    if divert is not None and not entry.aborted:
        return f"diverted rows from {divert.table}: {divert.condition}" + (f": {divert.note}" if divert.note else "")
    action = entry.control or entry.rollback or entry.plan.drain
    aborted = entry.aborted and entry.control is None
    if entry.decision is not None and (aborted or action is None):
        return entry.decision.detail
    return action.reason if action is not None else ""


# -- sums and times ------------------------------------------------------------------------------------


def _sum(numbers: Iterable[int]) -> int | None:
    """Return the sum, or None of no numbers."""
    listed = list(numbers)
    return sum(listed) if listed else None


def _longest(durations: Iterable[float | None]) -> float | None:
    return max((seconds for seconds in durations if seconds is not None), default=None)


def _late(jobs: list[JobDetails]) -> int | None:
    """Return the late rows of all operators, or None if no job uses event time."""
    late = 0
    uses_event_time = False
    for job in jobs:
        late += sum(job.late_rows.values())
        if job.watermarks or any(job.counts.values()):
            uses_event_time = True
    return late if uses_event_time else None


def _durations(jobs: list[JobDetails]) -> Json:
    """Return the durations of its jobs. `process` and `stage` are parts of the job that was busy longest."""
    durations: Json = {
        "delay_seconds": _longest(job.delay for job in jobs),
        "align_seconds": _longest(job.aligned_s for job in jobs),
        "sync_seconds": _longest(job.sync_s for job in jobs),
        "async_seconds": _longest(job.async_s for job in jobs),
        "process_seconds": None,
        "stage_seconds": None,
    }
    if jobs:
        slowest = max(jobs, key=lambda job: job.busy_seconds)
        writing = slowest.seconds_of(*WRITING)
        durations["process_seconds"] = round(slowest.busy_seconds - writing, 3)
        durations["stage_seconds"] = round(writing, 3)
    return durations


def _spark(jobs: list[JobDetails]) -> Json:
    """Return Spark's work for all jobs."""
    work = work_of(job.spark for job in jobs)
    return {
        "queries": work.queries,
        "query_seconds": work.query_s,
        "query_plan_seconds": work.planning_s,
        "query_run_seconds": work.running_s,
        "task_seconds": work.task_s,
        "analyses": work.analyses,
        "analysis_seconds": work.analysis_s,
        "spark_jobs": work.jobs,
        "spark_stages": work.stages,
        "spark_tasks": work.tasks,
    }


def _input(entry: Entry, details: CheckpointDetails) -> Json:
    """Return the input from sources. It is unknown until all jobs that read have acked."""
    total = Amount()
    if entry.plan.triggers:
        total = sum_of(details.amounts_read.get(name, Amount()) for name in entry.plan.triggers)
    sync = _longest(job.sync_s for job in details.jobs.values())
    rate = None
    if total.rows is not None and sync:
        rate = round(total.rows / sync, 1)
    return {"rows_in": total.rows, "bytes_in": total.bytes, "rate": rate}


def _waiting(details: CheckpointDetails) -> Json:
    """Return the backlog at all sources, where they can measure it."""
    lags = [source.lag for source in details.sources.values() if source.lag is not None]
    return {
        "waiting_rows": _sum(lag.rows for lag in lags if lag.rows is not None),
        "waiting_files": _sum(lag.files for lag in lags if lag.files is not None),
        "waiting_bytes": _sum(lag.bytes for lag in lags if lag.bytes is not None),
        "waiting_seconds": _longest(lag.seconds for lag in lags),
    }


def _judged(details: CheckpointDetails) -> Json:
    """Return the gates' counts."""
    verdicts = details.gates.values()
    return {
        "judged": _sum(verdict.rows for verdict in verdicts),
        "quarantined": _sum(verdict.quarantined for verdict in verdicts),
        "released": _sum(verdict.released for verdict in verdicts),
        "verdict": max((verdict.outcome for verdict in verdicts), key=WORST_LAST.index, default=None),
    }


def _in_flight(jobs: list[JobDetails], persisted_by_job: Mapping[str, Amount]) -> Json:
    """Return the rows in flight between jobs."""
    processed_amounts = [job.processed for job in jobs if job.processed is not None]
    processed = sum_of(processed_amounts) if processed_amounts else Amount()
    if persisted_by_job:
        persisted = sum_of(persisted_by_job.values())
    else:
        persisted = Amount()
    return {
        "processed_rows": processed.rows,
        "processed_bytes": processed.bytes,
        "persisted_rows": persisted.rows,
        "persisted_bytes": persisted.bytes,
    }


def _watermark(jobs: list[JobDetails]) -> str | None:
    """Return the lowest watermark that is not of an idle source. The end of time, after a drain, does not count."""
    lowest: tuple[Any, str] | None = None
    for job in jobs:
        for name, mark in job.watermarks.items():
            moment = moment_of(mark)
            if name in job.idle or moment is None or moment.year == MAXYEAR:
                continue
            if lowest is None or moment < lowest[0]:
                lowest = moment, mark
    return lowest[1] if lowest is not None else None


def _lag(watermark: str | None, decided: str | None) -> float | None:
    mark, moment = moment_of(watermark), moment_of(decided)
    if mark is None or moment is None:
        return None
    return round((moment - mark).total_seconds(), 3)
