"""Cut a graph into jobs. A job runs as one Spark job and has one ack.

Everything is fused into one job, "main", except for the parts that the user puts into another job with
`stream.job("name")`. What follows stays in the same job. An operator whose inputs come from different jobs, and which
names no job, gets a job that is named after it. A source is read by the job that takes it; if several do, by the first.

A stream that one job makes and others take is a channel: staged once, named by the ack, read by all of them.
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
    """By job, the streams that its stages and sinks take."""
    makers: Mapping[str, str]
    """By stream of a stage, the job that makes it."""

    @property
    def jobs(self) -> list[str]:
        """All jobs, in the order of their first stage."""
        return list(dict.fromkeys([*self.stages.values(), *self.sinks.values()]))

    def after(self, job: str) -> set[str]:
        """Return the jobs whose streams it takes."""
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
    """Choose the declared job; else the only upstream job, or a new one named after the stage if there are several."""
    if stage.job:
        return stage.job
    if len(upstream) > 1:
        return stage.name
    return upstream.pop() if upstream else MAIN


def _sort_jobs(places: _Places) -> tuple[list[str], list[str]]:
    """Return the jobs, each after those that it takes from; and those that wait for each other."""
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
    edges = sorted(
        f"{stage.name} of {places.stages[stage.name]} takes {name} of {places.makers[name]}"
        for stage in ordered
        for name in stage.inputs
        if {places.makers.get(name), places.stages[stage.name]} <= set(waiting)
        and places.makers[name] != places.stages[stage.name]
    )
    return [
        f"jobs {', '.join(sorted(waiting))} wait for each other ({'; '.join(edges)}): "
        "put the stages between them into one of them, with .job(…)"
    ]


def option_problems(settings: Mapping[str, object], ordered: Sequence[Node], sinks: Sequence[SinkNode]) -> list[str]:
    """List the jobs to which the pipeline's code gives options, and which it does not have."""
    dotted = {key.split(".")[1] for key in settings if key.startswith("jobs.")}
    given = settings.get("jobs")
    named = dotted | {str(name).partition(".")[0] for name in (given if isinstance(given, Mapping) else ())}
    jobs = _places(ordered, sinks).jobs
    return [
        f"job {name!r} has options of its own, but nothing runs in it: its jobs are {', '.join(jobs)}"
        for name in sorted(named - set(jobs))
    ]


def jobs_of(ordered: Sequence[Node], sinks: Iterable[SinkNode]) -> Mapping[str, str]:
    """Return the job of each stage."""
    return _places(ordered, sinks).stages


def cut(sources: Collection[SourceNode], ordered: Sequence[Node], sinks: Collection[SinkNode]) -> tuple[Job, ...]:
    """Cut the graph into jobs, each after those that it takes from."""
    places = _places(ordered, sinks)
    jobs, _ = _sort_jobs(places)
    makers = dict(places.makers)
    for source in sources:
        makers[source.name] = next(job for job in jobs if source.name in places.takes[job])
    inputs = {job: {name for name in places.takes[job] if makers[name] != job} for job in jobs}
    channels = {name for names in inputs.values() for name in names}
    return tuple(
        Job(
            name,
            tuple(source for source in sources if makers[source.name] == name),
            tuple(stage for stage in ordered if places.stages[stage.name] == name),
            tuple(sink for sink in sinks if places.sinks[sink.name] == name),
            takes=tuple(sorted(inputs[name])),
            gives=tuple(sorted(stream for stream in channels if makers[stream] == name)),
            after=tuple(job for job in jobs if job in {makers[stream] for stream in inputs[name]}),
        )
        for name in jobs
    )


def overtakable(jobs: Sequence[Job], aligned: Collection[str]) -> tuple[str, ...]:
    """Return the jobs that a checkpoint may overtake: it need not wait for them, because they only take channels.

    A job that reads a source may not lag behind, because the checkpoint says how far sources are read; nor may one with
    a gate, whose verdict is about the checkpoint; nor one from which such a job takes.
    """
    names: list[str] = []
    for job in reversed(jobs):
        downstream = [reader.name for reader in jobs if job.name in reader.after]
        free = job.after and not job.sources and not job.gates and job.name not in aligned
        if free and set(downstream) <= set(names):
            names.insert(0, job.name)
    return tuple(names)


def find_greedy_jobs(jobs: Sequence[Job], aligned: Collection[str], updating: Collection[str]) -> tuple[str, ...]:
    """Return the jobs that, in mode at_least_once, may take all available input, also of later checkpoints. Not these:

    - jobs that take a stream that replaces rows: if a row came again, it would retract the same rows twice;
    - jobs with a sink that replaces rows: attempts at one checkpoint would have taken more or less input, and a delayed
      attempt would overwrite newer rows with older ones, although the newer input is consumed and does not come again;
    - jobs whose rows meet rows from another path, in a stage of the job or downstream: a stage sees one checkpoint's
      rows of each input, and rows that belong together would miss each other. Joins keep state, so they are allowed.
    """
    meeting: set[str] = set()
    for job in reversed(jobs):
        downstream = {reader.name for reader in jobs if job.name in reader.after}
        if downstream & meeting or any(isinstance(s, StageNode) and len(set(s.inputs)) > 1 for s in job.stages):
            meeting.add(job.name)
    upserting = {job.name for job in jobs if any(sink.sink.upserts for sink in job.sinks)}
    excluded = {*meeting, *aligned, *upserting}
    return tuple(j.name for j in jobs if j.after and j.name not in excluded and set(updating).isdisjoint(j.takes))


def share_of(jobs: Sequence[Job], job: Job, memory: Mapping[str, T]) -> dict[str, T]:
    """Return the entries that belong into this job's ack: each into one. The first job has those without an owner."""
    owner = {name: candidate.name for candidate in jobs for name in candidate.names}
    return {name: value for name, value in memory.items() if owner.get(_subject(name), jobs[0].name) == job.name}


def _subject(name: str) -> str:
    """Return the source, operator or gate that a state or a memory entry is about."""
    first, _, rest = name.partition(".")
    return rest.partition(".")[0] if first in ("gate", "state") else first
