"""A checkpoint's time as a tree of spans, from its plan to its tables. Pure, from its view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.history.details import JobDetails, seconds_between
from tidegate.history.view import CheckpointView
from tidegate.records.moments import moment_of
from tidegate.records.records import Computed, SparkWork, StepStats, work_of

__all__ = ["Span", "span_tree"]


@dataclass(frozen=True)
class Span:
    """A named stretch of time. Times are by the writers' clocks."""

    name: str
    start_s: float | None
    """Seconds from the plan, negative before it. None if it is not contiguous, or unknown."""
    seconds: float | None
    """None if it has not ended, or is unknown."""
    spark: SparkWork | None = None
    """Spark's work in it, if any."""
    parts: list[Span] = field(default_factory=list)
    computed: Computed | None = None
    """How an operator was computed in it."""

    @property
    def end_s(self) -> float | None:
        """When it ended, in seconds from the plan."""
        if self.start_s is None or self.seconds is None:
            return None
        return round(self.start_s + self.seconds, 3)


def span_tree(view: CheckpointView) -> Span:
    """Return the checkpoint's span. Its parts: planning, its jobs with their steps, deciding, publishing."""
    jobs = [_job(name, job) for name, job in view.details.jobs.items()]
    jobs.sort(key=lambda span: span.start_s or 0.0)
    parts = []
    if view.plan_seconds is not None:
        parts.append(Span("planning", -view.plan_seconds, view.plan_seconds))
    parts += jobs
    acked = max((job.acked for job in view.details.jobs.values()), key=_moment, default=None)
    for name, begin, end in (("deciding", acked, view.decided), ("publishing", view.decided, view.published)):
        if begin and end:
            parts.append(Span(name, seconds_between(view.planned, begin), seconds_between(begin, end)))
    ends = [part.end_s for part in parts if part.end_s is not None]
    start = min([0.0, *(part.start_s for part in parts if part.start_s is not None)])
    spark = None
    if jobs:
        spark = work_of(job.spark for job in view.details.jobs.values())
    return Span(f"checkpoint {view.id}", start, round(max(ends) - start, 3) if ends else None, spark, parts)


def _moment(text: str) -> float:
    moment = moment_of(text)
    return moment.timestamp() if moment is not None else 0.0


def _job(name: str, job: JobDetails) -> Span:
    """Return the span of a job's counting attempt. In older records, steps have no start, or are missing."""
    steps = []
    for step in job.steps:
        start_s = None
        if job.delay is not None:
            start_s = round(job.delay + step.after_s, 3)
        steps.append(Span(step.name, start_s, step.seconds, step.spark, computed=step.computed))
    if not steps:
        steps = [Span(step, None, seconds) for step, seconds in job.seconds.items()]
    seconds = seconds_between(job.started, job.acked)
    if seconds is not None and job.steps:
        rest = round(max(seconds - _seconds_of_any(job.steps), 0.0), 3)
        steps.append(Span("between the steps", None, rest, job.between_steps))
    if job.async_s:
        steps.append(Span("made durable, concurrently", None, job.async_s))
    return Span(f"job {name}", job.delay, seconds, job.spark, steps)


def _seconds_of_any(steps: Sequence[StepStats]) -> float:
    """Return how long at least one of the steps was running."""
    seconds, covered_until = 0.0, 0.0
    for step in sorted(steps, key=lambda step: step.after_s):
        end = step.after_s + step.seconds
        seconds += max(end - max(step.after_s, covered_until), 0.0)
        covered_until = max(covered_until, end)
    return seconds
