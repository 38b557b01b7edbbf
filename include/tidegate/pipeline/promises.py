"""How old the tables of sinks may be, as `pipeline.promise` declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.config.keys import InvalidValue, duration_text, seconds_in
from tidegate.errors import Invalid
from tidegate.records.records import Promise

if TYPE_CHECKING:
    from tidegate.config import Settings
    from tidegate.pipeline.graph.graph import Graph

__all__ = ["checked_promise", "recorded_promises", "refuse_short_promises", "short_promises"]


def checked_promise(sinks: object, fresh: object) -> tuple[list[str], float]:
    """Return the sinks and seconds of a promise, or raise Invalid if its arguments are wrong."""
    names = [sinks] if isinstance(sinks, str) else sinks
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise Invalid(
            f"a promise is for {sinks!r}",
            expected="the name of a sink, or a list of names",
            help='write the name that you gave to .sink(…), as in pipeline.promise("revenue", fresh="15 min")',
            reason="BAD_PIPELINE",
        )
    try:
        seconds = seconds_in(fresh)
    except InvalidValue:
        seconds = 0.0
    if seconds <= 0:
        raise Invalid(
            f"the promise for {', '.join(names)} has fresh={fresh!r}",
            expected='a duration above 0, such as "90 s", "15 min" or "1 day"',
            help="say how old the table may be; without an upper limit, leave out the promise",
            reason="BAD_PIPELINE",
        )
    return list(names), seconds


def short_promises(graph: Graph, settings: Settings) -> list[str]:
    """List promises that cannot be kept, because checkpoints are planned more rarely than that."""
    name, pause = ("max_pause", settings.max_pause) if settings.by_event else ("interval", settings.interval)
    problems = []
    for sink, seconds in graph.promises.items():
        if pause is not None and seconds <= pause:
            problems.append(
                f"sink {sink!r} is promised to be fresh within {duration_text(seconds)}, and {name} is "
                f"{duration_text(pause)}: right before a checkpoint its table is older than that"
            )
    return problems


def refuse_short_promises(graph: Graph, settings: Settings) -> None:
    """Refuse promises that cannot be kept with the schedule that the settings ask for."""
    problems = short_promises(graph, settings)
    if problems:
        raise Invalid(
            f"pipeline {graph.name!r}: {'; '.join(problems)}",
            expected="promises that leave time for a checkpoint, such as three times the time between two of them",
            help="promise less, or let checkpoints be made more often",
            reason="BAD_PIPELINE",
        )


def recorded_promises(graph: Graph) -> dict[str, Promise]:
    """Return the promises as plans record them, with the jobs and sources that each depends on."""
    upstream: dict[str, set[str]] = {}
    for job in graph.jobs:
        upstream[job.name] = {job.name}.union(*(upstream[name] for name in job.after))
    job_of_sink: Mapping[str, str] = {sink.name: job.name for job in graph.jobs for sink in job.sinks}
    recorded = {}
    for sink, seconds in graph.promises.items():
        recorded[sink] = Promise(
            fresh_s=seconds,
            jobs=sorted(upstream[job_of_sink[sink]]),
            sources=graph.lineage.sources(graph.sinks[sink].input),
        )
    return recorded
