"""Cut a graph into jobs: what runs in one Spark job and shares one ack.

Everything is fused into one job, "main", but for what the user puts into a job of its own with `stream.job("name")`.
What follows stays in the job that it is in. An operator whose inputs come from different jobs, and which says nothing,
gets a job that is named after it. A source is read where it is taken; by several jobs, in the first of them.

What one job makes and others take is a channel: staged once, named by the ack, read by all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidegate.pipeline.graph.gated import GateNode
from tidegate.pipeline.graph.nodes import Node, OperatorNode, SinkNode, SourceNode, StageNode

__all__ = ["MAIN", "Job", "ahead", "cut", "job_problems", "jobs_of", "overtakable", "share_of"]

T = TypeVar("T")

MAIN = "main"


@dataclass(frozen=True)
class Job:
    """Operators that run in one Spark job and share one ack."""

    name: str
    sources: tuple[SourceNode, ...]
    stages: tuple[Node, ...]
    sinks: tuple[SinkNode, ...]
    takes: tuple[str, ...] = ()
    """Streams that other jobs make."""
    gives: tuple[str, ...] = ()
    """Streams that other jobs take."""
    after: tuple[str, ...] = ()
    """The jobs that make what it takes."""

    @property
    def operators(self) -> tuple[OperatorNode, ...]:
        """The stages that remember."""
        return tuple(stage for stage in self.stages if isinstance(stage, OperatorNode))

    @property
    def gates(self) -> tuple[GateNode, ...]:
        """The stages that judge."""
        return tuple(stage for stage in self.stages if isinstance(stage, GateNode))

    @property
    def names(self) -> frozenset[str]:
        """Its sources and stages."""
        return frozenset(each.name for each in (*self.sources, *self.stages))

    def users(self, stream: str) -> int:
        """How often a stream is taken here."""
        stages = sum(stage.inputs.count(stream) for stage in self.stages)
        return stages + sum(sink.input == stream for sink in self.sinks) + (stream in self.gives)


@dataclass(frozen=True)
class _Places:
    """In which job what is."""

    stages: Mapping[str, str]
    sinks: Mapping[str, str]
    takes: Mapping[str, set[str]]
    """By job, the streams that its stages and sinks take."""
    made: Mapping[str, str]
    """By stream of a stage, the job that makes it."""

    @property
    def jobs(self) -> list[str]:
        """In the order in which they are met."""
        return list(dict.fromkeys([*self.stages.values(), *self.sinks.values()]))

    def after(self, job: str) -> set[str]:
        """The jobs whose stages' streams it takes."""
        return {self.made[name] for name in self.takes[job] if name in self.made} - {job}


def _places(ordered: Sequence[Node], sinks: Iterable[SinkNode]) -> _Places:
    stages: dict[str, str] = {}
    made: dict[str, str] = {}
    takes: dict[str, set[str]] = {}
    for stage in ordered:
        behind = sorted({made[name] for name in stage.inputs if name in made})
        stages[stage.name] = stage.job or (behind[0] if len(behind) == 1 else stage.name if behind else MAIN)
        made |= dict.fromkeys(stage.produces, stages[stage.name])
        takes.setdefault(stages[stage.name], set()).update(stage.inputs)
    of_sinks = {}
    for sink in sinks:
        of_sinks[sink.name] = sink.job or made.get(sink.input, MAIN)
        takes.setdefault(of_sinks[sink.name], set()).add(sink.input)
    return _Places(stages, of_sinks, takes, made)


def _in_order(places: _Places) -> tuple[list[str], list[str]]:
    """The jobs, each behind those that it takes from; and those that wait for each other."""
    ordered: list[str] = []
    left = places.jobs
    while left:
        ready = [job for job in left if places.after(job).isdisjoint(left)]
        if not ready:
            return ordered, left
        ordered += ready
        left = [job for job in left if job not in ready]
    return ordered, []


def job_problems(ordered: Sequence[Node], sinks: Sequence[SinkNode]) -> list[str]:
    """What is wrong with how stages are put into jobs."""
    places = _places(ordered, sinks)
    _, waiting = _in_order(places)
    if not waiting:
        return []
    edges = sorted(
        f"{stage.name} of {places.stages[stage.name]} takes {name} of {places.made[name]}"
        for stage in ordered
        for name in stage.inputs
        if {places.made.get(name), places.stages[stage.name]} <= set(waiting)
        and places.made[name] != places.stages[stage.name]
    )
    return [
        f"jobs {', '.join(sorted(waiting))} wait for each other ({'; '.join(edges)}): "
        "let what lies between be in one of them, with .job(…)"
    ]


def jobs_of(ordered: Sequence[Node], sinks: Iterable[SinkNode]) -> Mapping[str, str]:
    """In which job each stage is."""
    return _places(ordered, sinks).stages


def cut(sources: Collection[SourceNode], ordered: Sequence[Node], sinks: Collection[SinkNode]) -> tuple[Job, ...]:
    """The jobs, each behind those that it takes from."""
    places = _places(ordered, sinks)
    jobs, _ = _in_order(places)
    made = dict(places.made)
    for source in sources:
        made[source.name] = next(job for job in jobs if source.name in places.takes[job])
    taken = {job: {name for name in places.takes[job] if made[name] != job} for job in jobs}
    given = {name for names in taken.values() for name in names}
    return tuple(
        Job(
            name,
            tuple(source for source in sources if made[source.name] == name),
            tuple(stage for stage in ordered if places.stages[stage.name] == name),
            tuple(sink for sink in sinks if places.sinks[sink.name] == name),
            takes=tuple(sorted(taken[name])),
            gives=tuple(sorted(each for each in given if made[each] == name)),
            after=tuple(job for job in jobs if job in {made[each] for each in taken[name]}),
        )
        for name in jobs
    )


def overtakable(jobs: Sequence[Job], aligned: Collection[str]) -> tuple[str, ...]:
    """The jobs that a checkpoint may go past: it need not wait for what they make, for they only take channels.

    A job that reads a source may not be behind, for the checkpoint says how far sources are read; nor one with a gate,
    whose verdict is about the checkpoint; nor one from which such a job takes.
    """
    found: list[str] = []
    for job in reversed(jobs):
        behind = [other.name for other in jobs if job.name in other.after]
        free = job.after and not job.sources and not job.gates and job.name not in aligned
        if free and set(behind) <= set(found):
            found.insert(0, job.name)
    return tuple(found)


def ahead(jobs: Sequence[Job], aligned: Collection[str], updating: Collection[str]) -> tuple[str, ...]:
    """The jobs that, at least once, may take what is there, of later checkpoints, too. Not so

    - what replaces rows: if it comes again, it would take back the same rows twice;
    - what a sink puts in the place of other rows: attempts at one checkpoint would have taken more or less, and one
      that has slept would put older rows over newer ones, which have been taken and do not come again;
    - what is to meet, in a stage here or behind, what comes by another way: a stage sees one checkpoint's rows of each,
      and those that belong together would pass each other by. Operators that join remember, so they may.
    """
    meeting: set[str] = set()
    for job in reversed(jobs):
        behind = {other.name for other in jobs if job.name in other.after}
        if behind & meeting or any(isinstance(s, StageNode) and len(set(s.inputs)) > 1 for s in job.stages):
            meeting.add(job.name)
    kept = {*meeting, *aligned, *(job.name for job in jobs if any(sink.sink.upserts for sink in job.sinks))}
    return tuple(j.name for j in jobs if j.after and j.name not in kept and set(updating).isdisjoint(j.takes))


def share_of(jobs: Sequence[Job], job: Job, told: Mapping[str, T]) -> dict[str, T]:
    """What of all that is remembered lies in this job's ack: each thing in one. What is nobody's is the first job's."""
    owner = {name: each.name for each in jobs for name in each.names}
    return {name: value for name, value in told.items() if owner.get(_about(name), jobs[0].name) == job.name}


def _about(name: str) -> str:
    """The source, operator or gate that a state, or something small, is about."""
    first, _, rest = name.partition(".")
    return rest.partition(".")[0] if first in ("gate", "state") else first
