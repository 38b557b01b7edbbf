"""Cuts a graph into jobs. A job runs as one Spark job and has one ack.

By default everything runs in one job, "main". `stream.job("name")` puts later stages into another job. An operator
whose inputs are from different jobs, and that names no job, gets its own, named after it. A source is read by the first
job that uses it.

A stream that is emitted in one job and used in others is a channel: it is staged once, named by the ack, and read by
all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidegate.pipeline.graph.nodes import Job, Node, SinkNode, SourceNode, StageNode

__all__ = ["MAIN", "cut", "find_greedy_jobs", "job_problems", "jobs_of", "option_problems", "overtakable", "share_of"]

T = TypeVar("T")

MAIN = "main"


@dataclass(frozen=True)
class _Places:
    """Which job each stage, sink and stream belongs to."""

    stages: Mapping[str, str]
    sinks: Mapping[str, str]
    takes: Mapping[str, set[str]]
    """The streams that each job's stages and sinks read."""
    makers: Mapping[str, str]
    """The job that emits each stage's stream."""

    @property
    def jobs(self) -> list[str]:
        """All jobs, in the order of their first stage."""
        return list(dict.fromkeys([*self.stages.values(), *self.sinks.values()]))

    def after(self, job: str) -> set[str]:
        """Return the jobs directly upstream."""
        return {self.makers[name] for name in self.takes[job] if name in self.makers} - {job}


def _places(ordered: Sequence[Node], sinks: Iterable[SinkNode]) -> _Places:
    stages: dict[str, str] = {}
    makers: dict[str, str] = {}
    takes: dict[str, set[str]] = {}
    for stage in ordered:
        stages[stage.name] = _choose_job(stage, {makers[name] for name in stage.inputs if name in makers})
        makers |= dict.fromkeys(stage.produces, stages[stage.name])
        takes.setdefault(stages[stage.name], set()).update(stage.inputs)
    of_sinks = {}
    for sink in sinks:
        of_sinks[sink.name] = sink.job or makers.get(sink.input, MAIN)
        takes.setdefault(of_sinks[sink.name], set()).add(sink.input)
    return _Places(stages, of_sinks, takes, makers)


def _choose_job(stage: Node, upstream: set[str]) -> str:
    """Return the declared job, else the upstream job, or a new one named after the stage if several are upstream."""
    if stage.job:
        return stage.job
    if len(upstream) > 1:
        return stage.name
    return upstream.pop() if upstream else MAIN


def _sort_jobs(places: _Places) -> tuple[list[str], list[str]]:
    """Return the jobs in topological order, and those that form a cycle."""
    ordered: list[str] = []
    waiting = places.jobs
    while waiting:
        ready = [job for job in waiting if places.after(job).isdisjoint(waiting)]
        if not ready:
            return ordered, waiting
        ordered += ready
        waiting = [job for job in waiting if job not in ready]
    return ordered, []


def job_problems(ordered: Sequence[Node], sinks: Sequence[SinkNode]) -> list[str]:
    """List what is wrong with the assignment of stages to jobs."""
    places = _places(ordered, sinks)
    _, waiting = _sort_jobs(places)
    if not waiting:
        return []
    edges = []
    for stage in ordered:
        job = places.stages[stage.name]
        for name in stage.inputs:
            upstream = places.makers.get(name)
            if upstream in waiting and job in waiting and upstream != job:
                edges.append(f"{stage.name} of {job} takes {name} of {upstream}")
    return [
        f"jobs {', '.join(sorted(waiting))} wait for each other ({'; '.join(sorted(edges))}): "
        "put the stages between them into one of them, with .job(…)"
    ]


def option_problems(settings: Mapping[str, object], ordered: Sequence[Node], sinks: Sequence[SinkNode]) -> list[str]:
    """Return problems of jobs that have options in the pipeline's code, but no stage."""
    names = {key.split(".")[1] for key in settings if key.startswith("jobs.")}
    job_settings = settings.get("jobs")
    if isinstance(job_settings, Mapping):
        for name in job_settings:
            names.add(str(name).partition(".")[0])
    jobs = _places(ordered, sinks).jobs
    return [
        f"job {name!r} has options, but nothing runs in it: the pipeline's jobs are {', '.join(jobs)}"
        for name in sorted(names - set(jobs))
    ]


def jobs_of(ordered: Sequence[Node], sinks: Iterable[SinkNode]) -> Mapping[str, str]:
    """Return the job of each stage."""
    return _places(ordered, sinks).stages


def cut(sources: Collection[SourceNode], ordered: Sequence[Node], sinks: Collection[SinkNode]) -> tuple[Job, ...]:
    """Cut the graph into jobs, in topological order."""
    places = _places(ordered, sinks)
    jobs, _ = _sort_jobs(places)
    makers = dict(places.makers)
    for source in sources:
        makers[source.name] = next(job for job in jobs if source.name in places.takes[job])
    inputs = {job: {name for name in places.takes[job] if makers[name] != job} for job in jobs}
    channels = set()
    for names in inputs.values():
        for name in names:
            channels.add(name)
    made = []
    for name in jobs:
        upstream = {makers[stream] for stream in inputs[name]}
        job = Job(
            name,
            tuple(source for source in sources if makers[source.name] == name),
            tuple(stage for stage in ordered if places.stages[stage.name] == name),
            tuple(sink for sink in sinks if places.sinks[sink.name] == name),
            takes=tuple(sorted(inputs[name])),
            gives=tuple(sorted(stream for stream in channels if makers[stream] == name)),
            after=tuple(other for other in jobs if other in upstream),
        )
        made.append(job)
    return tuple(made)


def overtakable(jobs: Sequence[Job], aligned: Collection[str]) -> tuple[str, ...]:
    """Return the jobs that a checkpoint may overtake. They only read channels, so it need not wait for them.

    These may not be overtaken: jobs with a source, because the checkpoint records how far sources are read; jobs with a
    gate, whose verdict is about the checkpoint; and jobs upstream of these.
    """
    names: list[str] = []
    for job in reversed(jobs):
        downstream = [reader.name for reader in jobs if job.name in reader.after]
        free = job.after and not job.sources and not job.gates and job.name not in aligned
        if free and set(downstream) <= set(names):
            names.insert(0, job.name)
    return tuple(names)


def find_greedy_jobs(jobs: Sequence[Job], aligned: Collection[str], updating: Collection[str]) -> tuple[str, ...]:
    """Return the jobs that, in mode at_least_once, may take all available input, also that of later checkpoints.

    These may not:

    - jobs that read a stream with retractions: if a row were repeated, it would retract the same rows twice;
    - jobs with an upserting sink: attempts at one checkpoint would take different amounts of input, and a delayed
      attempt would overwrite newer rows with older ones, although the newer input is consumed;
    - jobs whose rows are combined with rows from another path, in a stage of the job or downstream: a stage sees one
      checkpoint's rows of each input, so it could miss rows that belong together. Joins keep state, so they are fine.
    """
    combining: set[str] = set()
    for job in reversed(jobs):
        downstream = {reader.name for reader in jobs if job.name in reader.after}
        combines = any(isinstance(stage, StageNode) and len(set(stage.inputs)) > 1 for stage in job.stages)
        if combines or downstream & combining:
            combining.add(job.name)
    greedy = []
    for job in jobs:
        upserts = any(sink.sink.upserts for sink in job.sinks)
        if not job.after or upserts or job.name in combining or job.name in aligned:
            continue
        if set(updating).isdisjoint(job.takes):
            greedy.append(job.name)
    return tuple(greedy)


def share_of(jobs: Sequence[Job], job: Job, memory: Mapping[str, T]) -> dict[str, T]:
    """Return the entries for this job's ack. Each entry goes into one ack; those without an owner into the first."""
    owners: dict[str, str] = {}
    for candidate in jobs:
        owners |= dict.fromkeys(candidate.names, candidate.name)
    return {name: value for name, value in memory.items() if owners.get(_subject(name), jobs[0].name) == job.name}


def _subject(name: str) -> str:
    """Return the source, operator or gate that a state or a memory entry is about."""
    first, _, rest = name.partition(".")
    if first in ("gate", "state"):
        return rest.partition(".")[0]
    return first
